"""What simulated clients do: episodes on one connection each, drawn from the seed, every answer checked."""

import math
from collections.abc import Sequence

import attrs
import trio

from tests.support.promises import BrokenPromiseError
from tests.trials.logmq_model import LENGTH_BYTES, Commitment, Deletion, Message, Model, joined
from tests.trials.sim.dialog import Dialog, Refused
from tests.trials.sim.network import Wire
from tests.trials.sim.probe_client import ProbeClient

Request = Message | Deletion | Commitment

NOT_WRITTEN = frozenset(
    {"TOO_LARGE", "LIMIT", "SYNTAX", "BAD_TOPIC", "BAD_OFFSET", "NO_TOPIC", "OUT_OF_RANGE"}
)
"""Refusals after which nothing was done. After STORAGE it may have been."""


@attrs.define(eq=False)
class Batch:
    """A BATCH that is sent until it is answered. All its messages are there, side by side, or none."""

    topic: str
    seq: int
    messages: list[Message]
    payloads: list[bytes]


@attrs.define(eq=False)
class Client(ProbeClient):
    """A client of LogMQ."""

    port = "logmq"
    _model: Model
    _number: int
    _topics: Sequence[str]
    _made: int = attrs.field(default=0, init=False)
    _seqs: dict[str, int] = attrs.field(factory=dict, init=False)
    _batch: Batch | None = attrs.field(default=None, init=False)
    _open: list[Request] = attrs.field(factory=list, init=False)

    def __attrs_post_init__(self) -> None:
        super().__attrs_post_init__()
        self.episodes = {
            "produce": self._produce,
            "batches": self._send_batches,
            "walk": self._walk,
            "fetch": self._fetch,
            "tail": self._tail,
            "group": self._follow_group,
            "delete": self._delete,
            "inquire": self._inquire,
        }

    async def _play(self, episode: str, wire: Wire) -> None:
        self._open = []
        await self.episodes[episode](Dialog(self._world, wire, self.name))

    async def _closed(self, wire: Wire) -> None:
        unanswered, self._open = self._open, []
        if unanswered:
            await wire.server_done.wait()
            self._model.forgotten(unanswered)

    # -- writing

    def _payload(self) -> bytes:
        """Never the same twice; it may be long, and hold newlines if it is not for PRODUCE."""
        self._made += 1
        mark = b"%d.%d" % (self._number, self._made)
        size = self._chance.choice((0, 0, 3, 20, 20, 60, 400, 1500))
        return mark + b"=" * size

    def _lines(self, topic: str, payload: bytes) -> bytes:
        """One message as PRODUCE or APPEND."""
        if self._chance.random() < 0.6:
            return b"PRODUCE %s %s\n" % (topic.encode(), payload)
        return b"APPEND %s %d\n%s" % (topic.encode(), len(payload), payload)

    async def _produce(self, dialog: Dialog) -> None:
        """Pipelined writes, to one or several topics, perhaps with a half-close behind them."""
        for _ in range(self._chance.randint(1, 3)):
            topic = self._chance.choice(self._topics)
            messages, requests = [], []
            for _ in range(self._chance.choice((1, 1, 2, 5, 12))):
                if self._chance.random() < 0.1:
                    topic = self._chance.choice(self._topics)
                payload = self._payload()
                if self._chance.random() < 0.2:
                    payload += b"\n" + payload
                    requests.append(b"APPEND %s %d\n%s" % (topic.encode(), len(payload), payload))
                else:
                    requests.append(self._lines(topic, payload))
                messages.append(self._model.send(topic, payload, dialog.wire.number))
            self._open.extend(messages)
            await dialog.send_all(requests, self._chance)
            last = self._chance.random() < 0.1
            if last:
                await dialog.half_close()
            for message in messages:
                self._answered(message, await dialog.ok())
                self._open.remove(message)
            if last:
                await dialog.at_end()
                return

    def _answered(self, message: Message, answer: int | Refused) -> None:
        if isinstance(answer, int):
            self._model.acked(message, answer)
        elif answer.code in NOT_WRITTEN:
            self._model.refused(message)
        else:
            self._check_storage(answer)
            self._model.doubted(message)

    def _check_storage(self, answer: Refused) -> None:
        """What is refused in this way is refused for cause."""
        if answer.code != "STORAGE" or not self._wire.excused():
            raise BrokenPromiseError(f"{self.name} was refused without cause: {answer}")

    async def _send_batches(self, dialog: Dialog) -> None:
        """BATCH, sent again until it is answered: what a client does that must not write twice."""
        for _ in range(self._chance.randint(1, 4)):
            batch = self._batch
            if batch is None:
                topic = self._chance.choice(self._topics)
                seq = self._seqs[topic] = self._seqs.get(topic, -1) + 1
                payloads = [self._payload() for _ in range(self._chance.choice((1, 2, 4)))]
                messages = self._model.send_batch(topic, payloads, dialog.wire.number)
                batch = self._batch = Batch(topic, seq, messages, payloads)
            else:
                for message in batch.messages:
                    self._model.send_again(message, dialog.wire.number)
            self._open.extend(batch.messages)
            data = joined(batch.payloads)
            head = b"BATCH %s w%d %d %d\n" % (batch.topic.encode(), self._number, batch.seq, len(data))
            await dialog.send(head + data)
            answer = await dialog.ok()
            offset = answer
            for message in batch.messages:
                self._answered(message, offset)
                self._open.remove(message)
                if isinstance(offset, int):
                    offset += LENGTH_BYTES + len(message.payload)
            if isinstance(answer, int):
                self._batch = None
            else:
                return

    # -- reading

    def _start(self, topic: str) -> int:
        """An offset worth reading at: 0, or that of a message that somebody knows."""
        known = [m.offset for m in self._model.topic(topic).messages.values() if m.offset is not None]
        if not known or self._chance.random() < 0.3:
            return 0
        return self._chance.choice(known[-20:])

    async def _walk(self, dialog: Dialog) -> None:
        """CONSUME, one after the other, some pipelined blindly."""
        topic = self._chance.choice(self._topics)
        offset = self._start(topic)
        for _ in range(self._chance.randint(1, 12)):
            begun = self._model.read()
            ahead = self._chance.randint(1, 3)
            await dialog.send(b"CONSUME %s %d\n" % (topic.encode(), offset) * ahead)
            following = offset
            for _ in range(ahead):
                answer = await dialog.message()
                if isinstance(answer, Refused):
                    self._check_read_refused(answer)
                    continue
                if answer is None:
                    self._model.saw_end(topic, offset, begun)
                    continue
                if isinstance(answer, int) or answer[0] != offset:
                    raise BrokenPromiseError(
                        f"{self.name}: CONSUME {topic} {offset} was answered with {answer}"
                    )
                self._model.saw(topic, answer, begun)
                following = offset + LENGTH_BYTES + len(answer[1])
            if following == offset:
                return
            offset = following

    def _check_read_refused(self, answer: Refused) -> None:
        """A read may be refused where its topic was deleted meanwhile, or the disk fails."""
        if answer.code not in ("NO_TOPIC", "BAD_OFFSET", "OUT_OF_RANGE"):
            self._check_storage(answer)

    async def _fetch(self, dialog: Dialog) -> None:
        """FETCH, some of them waiting, with another request behind."""
        topic = self._chance.choice(self._topics)
        offset = self._start(topic)
        for _ in range(self._chance.randint(1, 6)):
            begun = self._model.read()
            size = self._chance.choice((1, 300, 4000, 1 << 20))
            wait = self._chance.choice((0, 0, 5, 200))
            await dialog.send(b"FETCH %s %d %d %d\nPING\n" % (topic.encode(), offset, size, wait))
            answer = await dialog.chunk()
            if isinstance(answer, Refused):
                self._check_read_refused(answer)
            elif answer is None:
                self._model.saw_end(topic, offset, begun)
            else:
                if answer[0][0] != offset:
                    raise BrokenPromiseError(f"{self.name}: FETCH {topic} {offset} began at {answer[0][0]}")
                for record in answer:
                    self._model.saw(topic, record, begun)
                last, payload = answer[-1]
                offset = last + LENGTH_BYTES + len(payload)
            if await dialog.plain(b"PONG") is not None:
                raise BrokenPromiseError(f"{self.name}: PING was refused")
            if not isinstance(answer, list):
                await trio.sleep(self._chance.random() * 0.005)  # then look again: a commit may be under way

    async def _tail(self, dialog: Dialog) -> None:
        """TAIL for a while: no record is left out, and none comes twice."""
        topic = self._chance.choice(self._topics)
        offset = self._start(topic)
        begun = self._model.read()
        await dialog.send(b"TAIL %s %d\n" % (topic.encode(), offset))
        ending = False
        patience = trio.current_time() + self._chance.random() * 0.5
        while True:
            if not ending and (trio.current_time() >= patience or self._over.is_set()):
                ending = True
                await dialog.send(b"stop\n")
            answer = None
            with trio.move_on_at(math.inf if ending else patience) as waiting:
                answer = await dialog.message()
            if answer is None:
                if not waiting.cancelled_caught:
                    raise BrokenPromiseError(f"{self.name}: TAIL was answered with EOF")
                continue
            if isinstance(answer, Refused):
                self._check_read_refused(answer)
                return
            if isinstance(answer, int):
                # A drain ends a TAIL too, unasked.
                if answer != offset:
                    raise BrokenPromiseError(
                        f"{self.name}: TAIL ended at {answer}, its last record at {offset}"
                    )
                return
            if answer[0] != offset:
                raise BrokenPromiseError(f"{self.name}: TAIL went from {offset} to {answer[0]}")
            self._model.saw(topic, answer, begun)
            offset += LENGTH_BYTES + len(answer[1])

    # -- the rest

    async def _follow_group(self, dialog: Dialog) -> None:
        """COMMIT and COMMITTED of a group that several clients share."""
        # What a weaker mode loses, its groups' offsets follow: nothing is promised of those.
        synced = [name for name in self._topics if name[0] not in "in"]
        if not synced:
            return
        topic = self._chance.choice(synced)
        group = self._chance.choice(("g", "h"))
        for _ in range(self._chance.randint(1, 4)):
            if self._chance.random() < 0.6:
                offset = self._start(topic)
                commitment = self._model.commit(group, topic, offset)
                self._open.append(commitment)
                await dialog.send(b"COMMIT %s %s %d\n" % (group.encode(), topic.encode(), offset))
                answer = await dialog.ok()
                self._open.remove(commitment)
                if isinstance(answer, int):
                    self._model.committed(commitment)
                elif answer.code in NOT_WRITTEN:
                    commitment.refused = True
                else:
                    self._check_storage(answer)
                    self._model.forgotten([commitment])
            else:
                begun = self._model.read()
                await dialog.send(b"COMMITTED %s %s\n" % (group.encode(), topic.encode()))
                self._check_committed(group, topic, await dialog.ok(), begun)

    def _check_committed(self, group: str, topic: str, answer: int | Refused, begun: int) -> None:
        if isinstance(answer, int):
            self._model.saw_committed(group, topic, answer, begun)
        elif answer.code in ("NO_COMMIT", "NO_TOPIC"):
            self._model.saw_committed(group, topic, None, begun)
        else:
            self._check_storage(answer)

    async def _delete(self, dialog: Dialog) -> None:
        """DELETE, with a write to the same name right behind it, which makes it again."""
        topic = self._chance.choice(self._topics)
        deletion = self._model.delete(topic)
        self._open.append(deletion)
        request = b"DELETE %s\n" % topic.encode()
        message = None
        if self._chance.random() < 0.7:
            payload = self._payload()
            request += self._lines(topic, payload)
            message = self._model.send(topic, payload, dialog.wire.number)
            self._open.append(message)
        await dialog.send(request)
        refusal = await dialog.plain(b"OK")
        self._open.remove(deletion)
        if refusal is None:
            self._model.deleted(deletion)
        elif refusal.code == "NO_TOPIC":
            self._model.nothing_to_delete(topic, deletion)
        else:
            self._check_storage(refusal)
            self._model.forgotten([deletion])
        if message is not None:
            self._answered(message, await dialog.ok())
            self._open.remove(message)

    async def _inquire(self, dialog: Dialog) -> None:
        """The questions that change nothing, and requests that are no good: each has its one answer."""
        topic = self._chance.choice(self._topics).encode()
        begun = self._model.read()
        await dialog.send(
            b"TOPICS\nOFFSETS %s\nnonsense\nPRODUCE .bad x\nCONSUME %s 1x\nPING\n" % (topic, topic)
        )
        rows = await dialog.lines_to_end()
        if not isinstance(rows, Refused):
            listed = {row[1].decode() for row in rows if len(row) == 4 and row[0] == b"TOPIC"}
            for name in self._topics:
                if name not in listed:
                    self._model.saw_end(name, 0, begun)
        numbers = await dialog.numbers(b"OFFSETS", 2)
        if isinstance(numbers, Refused):
            if numbers.code == "NO_TOPIC":
                self._model.saw_end(topic.decode(), 0, begun)
        else:
            self._model.saw_end(topic.decode(), numbers[1], begun)
        for code in ("UNKNOWN_COMMAND", "BAD_TOPIC", "SYNTAX"):
            refusal = await dialog.plain(b"")
            if refusal is None or refusal.code != code:
                raise BrokenPromiseError(f"{self.name} expected {code}, not {refusal}")
        if await dialog.plain(b"PONG") is not None:
            raise BrokenPromiseError(f"{self.name}: PING was refused")
