"""A LogMQ load over several connections, and a record of all that was sent and answered.

Connections differ in mix: one request at a time, or up to 128 in flight; several write to the same topics;
each has a topic of its own that it deletes and makes again now and then.
"""

import random
from collections import deque
from collections.abc import Sequence

import attrs

from tests.trials.logmq_ledger import Book, Commit, Delete, Ledger, Repeat, Write, record
from tests.trials.payloads import Payloads
from tests.trials.peers import Asked, PeersLoad, RawPeer, burst, sampled

_BATCH_RECORDS_MAX = 20
RETENTION_BYTES = 500_000
RETENTION_UNIT_BYTES = 420_000
"""What goes at once: the longest record here, where one fills an index entry by itself."""
KEPT = "retention"
"""In the names of topics of which no more than that is kept."""


@attrs.frozen
class RequestMix:
    """How a connection behaves. `window`: requests in flight at most; the weights say what it sends."""

    window: int
    produce: float = 10.0
    append: float = 2.0
    batch: float = 0.5
    repeat: float = 0.2
    commit: float = 0.5
    delete: float = 0.05


REQUEST_MIXES = (
    RequestMix(window=1),
    RequestMix(window=1, produce=0, append=0, batch=5, repeat=1),
    RequestMix(window=128),
    RequestMix(window=64, delete=1, commit=1),
    RequestMix(window=16, batch=5, repeat=1, produce=2),
    RequestMix(window=8, produce=1, append=1, delete=4, batch=1),
)


@attrs.define(eq=False)
class Peer(RawPeer):
    """A connection of the load. `name` is the writer's name in every ledger."""

    _mix: RequestMix
    _own: Sequence[Ledger]
    _shared: Sequence[Ledger]
    _payloads: Payloads
    _source: random.Random
    _waiting: deque[tuple[Ledger, Asked, int]] = attrs.field(factory=deque, init=False)
    _known: dict[str, list[int]] = attrs.field(factory=dict, init=False)
    """Offsets that may be committed, of each topic's present life."""
    _lives: dict[str, int] = attrs.field(factory=dict, init=False)

    def fill(self, now: float) -> None:
        """Think of requests until the window is full."""
        mix = self._mix
        kinds = (self._produce, self._append, self._batch, self._repeat, self._commit, self._delete)
        weights = (mix.produce, mix.append, mix.batch, mix.repeat, mix.commit, mix.delete)
        for kind in self._source.choices(kinds, weights, k=burst(mix.window, len(self._waiting))):
            kind(now)

    def account(self, now: float) -> None:
        *lines, rest = self._in.split(b"\n")
        self._in = rest
        for line in lines:
            if not self._waiting:
                self.faults.append(f"{self.name}: an answer to nothing: {bytes(line[:80])!r}")
                continue
            ledger, operation, life = self._waiting.popleft()
            operation.answered = now
            word, _, value = bytes(line).partition(b" ")
            if word == b"ERR":
                operation.refused = str(bytes(line))
                self.refusals.append((now, f"{ledger.name}: {type(operation).__name__}: {operation.refused}"))
            elif word != b"OK":
                self.faults.append(f"{self.name}: {bytes(line[:80])!r} for a {type(operation).__name__}")
            else:
                self._answered(ledger, operation, value, life)

    def _answered(self, ledger: Ledger, operation: Asked, value: bytes, life: int) -> None:
        match operation:
            case Write():
                operation.offset = int(value)
                if life == self._lives.get(ledger.name, 0):
                    self._known.setdefault(ledger.name, []).append(operation.offset)
            case Repeat(of=first):
                if first.refused:
                    ledger.written_again(operation, int(value))
                elif first.offset != int(value):
                    self.faults.append(
                        f"{ledger.name}: batch {first.batch} at {first.offset}, sent again at {value!r}"
                    )
            case Commit(value=committed):
                if committed != int(value):
                    self.faults.append(f"{ledger.name}: COMMIT {committed} answered {value!r}")
            case Delete():
                if value:
                    self.faults.append(f"{ledger.name}: DELETE answered {value!r}")

    # What may be sent.

    def _ask(self, ledger: Ledger, operation: Asked, request: bytes) -> None:
        ledger.operations.append(operation)
        self._waiting.append((ledger, operation, self._lives.get(ledger.name, 0)))
        self._out += request

    def _any(self) -> Ledger:
        return self._source.choice(self._own if self._source.random() < 0.5 else self._shared)

    def _produce(self, now: float) -> None:
        ledger = self._any()
        payload = self._payloads.line(self.name)
        write = Write(now, writer=self.name, records=record(payload))
        self._ask(ledger, write, b"PRODUCE %s %s\n" % (ledger.name.encode(), payload))

    def _append(self, now: float) -> None:
        ledger = self._any()
        # Where nobody else writes an empty message can be told from others by its place.
        payload = (
            b"" if ledger in self._own and self._source.random() < 0.1 else self._payloads.raw(self.name)
        )
        write = Write(now, writer=self.name, records=record(payload))
        self._ask(ledger, write, b"APPEND %s %d\n%s" % (ledger.name.encode(), len(payload), payload))

    def _batch(self, now: float) -> None:
        ledger = self._any()
        count = self._source.randint(1, _BATCH_RECORDS_MAX)
        records = b"".join(record(self._payloads.raw(self.name)) for _ in range(count))
        seq = ledger.next_seq(self.name)
        write = Write(now, writer=self.name, records=records, count=count, batch=(self.name, seq))
        self._ask(ledger, write, batch_request(ledger.name, write))

    def _repeat(self, now: float) -> None:
        ledger = self._any()
        for operation in reversed(ledger.operations[-40:]):
            if isinstance(operation, Delete):
                return
            if isinstance(operation, Write) and operation.batch and operation.writer == self.name:
                request = batch_request(ledger.name, operation)
                self._ask(ledger, Repeat(now, of=operation), request)
                return

    def _commit(self, now: float) -> None:
        ledger = self._any()
        known = self._known.get(ledger.name)
        if known and ledger.kept_bytes is None:  # what is dropped meanwhile cannot be committed
            value = self._source.choice(known)
            commit = Commit(now, group=f"group-{self.name}", value=value)
            request = b"COMMIT %s %s %d\n" % (commit.group.encode(), ledger.name.encode(), value)
            ledger.groups.add(commit.group)
            self._ask(ledger, commit, request)

    def _delete(self, now: float) -> None:
        ledger = self._source.choice(self._own)
        if ledger.standing:
            self._known.pop(ledger.name, None)
            self._lives[ledger.name] = self._lives.get(ledger.name, 0) + 1
            self._ask(ledger, Delete(now), b"DELETE %s\n" % ledger.name.encode())


@attrs.define(eq=False)
class Watcher(RawPeer):
    """A connection that reads a topic as it grows, and keeps what it was shown."""

    _ledger: Ledger
    _next: int
    _asked: bool = attrs.field(default=False, init=False)

    def fill(self, now: float) -> None:
        if not self._asked:
            self._out += b"FETCH %s %d 100000 200\n" % (self._ledger.name.encode(), self._next)
            self._asked = True

    def account(self, now: float) -> None:
        end = self._in.find(b"\n")
        if end < 0:
            return
        word, *fields = bytes(self._in[:end]).split(b" ")
        if word == b"CHUNK":
            offset, length, after = map(int, fields)
            if len(self._in) < end + 1 + length:
                return
            if (offset, after) != (self._next, self._next + length):
                self.faults.append(f"{self._ledger.name}: asked for {self._next}, got {offset} to {after}")
            self._ledger.read += self._in[end + 1 : end + 1 + length]
            self._next = after
            end += length
        elif word != b"EOF":
            text = f"{self._ledger.name}: FETCH {self._next}: {bytes(self._in[:80])!r}"
            self.refusals.append((now, text))
        del self._in[: end + 1]
        self._asked = False


def batch_request(topic: str, write: Write) -> bytes:
    """A BATCH as it goes over the wire, the first time and any other."""
    assert write.batch is not None
    writer, seq = write.batch
    return b"BATCH %s %s %d %d\n%s" % (
        topic.encode(),
        writer.encode(),
        seq,
        len(write.records),
        write.records,
    )


class LogmqLoad(PeersLoad):
    """Several peers and a watcher, on one server."""

    def __init__(
        self, address: tuple[str, int], book: Book, modes: Sequence[str], source: random.Random
    ) -> None:
        payloads = Payloads(source)
        lasting = [book.open(f"{mode}-shared-{number}", mode) for mode in modes for number in range(2)]
        kept = [book.open(f"{mode}-{KEPT}", mode, RETENTION_BYTES - RETENTION_UNIT_BYTES) for mode in modes]
        peers: list[RawPeer] = []
        for number, mix in sampled(source, REQUEST_MIXES, 2):
            own = [book.open(f"{mode}-own-{number}", mode) for mode in modes]
            peers.append(Peer(address, f"writer-{number}", mix, own, lasting + kept, payloads, source))
        watched = source.choice(lasting)
        peers.append(Watcher(address, "watcher", watched, watched.end))
        super().__init__(peers)
