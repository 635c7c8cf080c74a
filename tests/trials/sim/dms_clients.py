"""What simulated clients of DMS do: produce, consume, acknowledge, give back, vanish; all is checked."""

from collections import deque
from collections.abc import Callable, Sequence

import attrs
import trio

from tests.support import dms_spec as dms
from tests.support.dms_model import ASKED, DEAD, FATES, Consumer, DmsModel, Message, Request
from tests.support.promises import BrokenPromiseError
from tests.trials.sim.dms_dialog import DmsDialog
from tests.trials.sim.network import Wire
from tests.trials.sim.probe_client import ProbeClient

Answered = Callable[[int, bytes], None]
"""Called with the status and the payload of a reply."""


@attrs.define(eq=False)
class Line:
    """What was asked on one connection and is not answered: replies come in order, deliveries between."""

    queue: str
    consumer: Consumer
    replies: deque[tuple[int, int, Answered]] = attrs.Factory(deque)
    """Type, message id, and what to do then."""
    consumes: dict[int, int] = attrs.Factory(dict)
    """Message id, and when it was sent; those first that are answered first."""
    held: dict[int, Message] = attrs.Factory(dict)
    unsure: dict[int, Message] = attrs.Factory(dict)
    """Deliveries that no NACK has ended: they may not count where the connection is lost."""


@attrs.define(eq=False)
class DmsClient(ProbeClient):
    """One client of DMS."""

    port = "dms"
    _model: DmsModel
    _number: int
    _queues: Sequence[str]
    _made: int = attrs.field(default=0, init=False)
    _ids: int = attrs.field(default=1, init=False)

    def __attrs_post_init__(self) -> None:
        super().__attrs_post_init__()
        self.episodes = {
            "produce": self._produce,
            "consume": self._consume,
            "delete": self._delete,
            "inquire": self._inquire,
        }

    async def _play(self, episode: str, wire: Wire) -> None:
        dialog = DmsDialog(self._world, wire, self.name)
        await dialog.shake_hands()
        await self.episodes[episode](dialog)

    def _id(self) -> int:
        self._ids += 1
        return self._ids

    def _check_internal(self, status: int, payload: bytes) -> None:
        """What is refused in this way is refused for cause."""
        if status != dms.INTERNAL or not self._wire.excused():
            raise BrokenPromiseError(f"{self.name} was refused without cause: {status} {payload!r}")

    # -- queues

    async def _create(self, dialog: DmsDialog, queue: str) -> None:
        begun = self._world.tick()
        request = self._model.creates(queue, dialog.wire)
        message_id = self._id()
        options = ASKED[queue].json if queue in ASKED else b""
        await dialog.send(
            dms.frame(dms.CREATE, message_id, dms.name(queue, options)), f"CREATE {queue} {options!r}"
        )
        status, payload = await dialog.answer(dms.CREATE, message_id)
        if not status:
            self._model.done(request)
        elif status == dms.EXISTS:
            self._model.refused(request)
            self._model.is_there(queue, begun)
        else:
            self._check_internal(status, payload)

    async def _delete(self, dialog: DmsDialog) -> None:
        """DELETE, and making it again."""
        queue = self._chance.choice(self._queues)
        if queue == DEAD or queue in FATES:
            await self._create(dialog, queue)
            return
        begun = self._world.tick()
        request = self._model.deletes(queue, dialog.wire)
        message_id = self._id()
        await dialog.send(dms.frame(dms.DELETE, message_id, dms.name(queue)), f"DELETE {queue}")
        status, payload = await dialog.answer(dms.DELETE, message_id)
        if not status:
            self._model.done(request)
        elif status == dms.NOT_FOUND:
            self._model.refused(request)
            self._model.is_missing(queue, begun, dialog.wire)
        else:
            self._check_internal(status, payload)
        if self._chance.random() < 0.7:
            await self._create(dialog, queue)

    # -- producing

    def _body(self) -> bytes:
        """Never the same twice."""
        self._made += 1
        return b"%d.%d" % (self._number, self._made) + b"=" * self._chance.choice(
            (0, 0, 3, 20, 60, 400, 1500)
        )

    async def _produce(self, dialog: DmsDialog) -> None:
        """Pipelined PRODUCEs, to one or several queues; a queue that is missing is made."""
        targets = [name for name in self._queues if name != DEAD]
        queue = self._chance.choice(targets)
        for _ in range(self._chance.randint(1, 3)):
            messages: list[Message] = []
            requests: list[bytes] = []
            first = self._ids + 1
            for _ in range(self._chance.choice((1, 1, 2, 5, 12))):
                if self._chance.random() < 0.1:
                    queue = self._chance.choice(targets)
                body = self._body()
                requests.append(dms.frame(dms.PRODUCE, self._id(), dms.name(queue, body)))
                messages.append(self._model.sends(queue, body, dialog.wire))
            what = f"PRODUCE {queue} {messages[0].body[:12]!r}..."
            await dialog.send_all(requests, self._chance, what)
            missing = ""
            for message_id, message in enumerate(messages, first):
                status, payload = await dialog.answer(dms.PRODUCE, message_id)
                if status == dms.NOT_FOUND:
                    missing = message.queue
                self._produced(message, status, payload)
            if missing:
                await self._create(dialog, missing)

    def _produced(self, message: Message, status: int, payload: bytes) -> None:
        match status:
            case 0:
                self._model.done(message)
            case dms.NOT_FOUND:
                self._model.refused(message)
                self._model.is_missing(message.queue, message.begun, message.wire)
            case dms.FULL:
                self._model.refused(message)
            case _:
                self._check_internal(status, payload)

    # -- consuming

    async def _consume(self, dialog: DmsDialog) -> None:
        """CONSUMEs, one or many at a time; ACK, NACK, or keep what comes; then leave, politely or not."""
        queue = self._chance.choice(self._queues)
        line = Line(queue, self._model.consumer(queue, dialog.wire))
        credits_ = self._chance.choice((1, 1, 2, 8))
        left = self._chance.choice((1, 3, 10, 40))
        until = trio.current_time() + self._chance.choice((0.02, 0.1, 0.3)) * self._chance.random()
        while left > 0 and not self._over.is_set():
            asked = b""
            while len(line.consumes) < min(credits_, left):
                message_id = self._id()
                line.consumes[message_id] = self._model.asks(queue)
                asked += dms.frame(dms.CONSUME, message_id, dms.name(queue))
            if asked:
                await dialog.send(asked, f"CONSUME {queue}")
            frame = None
            with trio.move_on_at(until):
                frame = await dialog.frame()
            if frame is None:
                break
            left -= 1
            requests = self._heard(line, frame, ends=False)
            if requests:
                await dialog.send(requests, "ACK, NACK")
        await self._leave(dialog, line)

    async def _leave(self, dialog: DmsDialog, line: Line) -> None:
        """Vanish, hang up after the last answer, half-close, or say goodbye."""
        manner = self._chance.choice(("vanish", "answers", "half-close", "goodbye"))
        if manner == "answers":
            while line.replies:
                self._heard(line, await dialog.frame(), ends=True)
        for message in line.unsure.values():
            message.course.may_not_count()
        if manner in ("vanish", "answers"):
            return
        line.consumer.leaving = True
        if manner == "half-close":
            await dialog.half_close()
        else:
            await dialog.send(dms.frame(dms.DISCONNECT, self._id()), "DISCONNECT")
            line.replies.append((dms.DISCONNECT, self._ids, lambda status, payload: None))
        while line.replies or line.consumes:
            self._heard(line, await dialog.frame(), ends=True)

    def _heard(self, line: Line, frame: dms.Reply, *, ends: bool) -> bytes:
        """Take in one frame; returns what to send then. `ends`: nothing more is sent."""
        type_, status, message_id, payload = frame
        if type_ == dms.DELIVER:
            if not line.consumes:
                raise BrokenPromiseError(f"{self.name} was sent a message that it did not ask for")
            begun = line.consumes.pop(next(iter(line.consumes)))
            message = self._model.delivered(line.queue, payload, line.consumer, begun)
            line.held[message_id] = message
            line.unsure[message_id] = message
            return b"" if ends else self._answers(line)
        if type_ == dms.ERROR and message_id in line.consumes:
            self._not_delivered(line, status, payload, line.consumes.pop(message_id))
            return b""
        if not line.replies or line.replies[0][1] != message_id:
            raise BrokenPromiseError(f"{self.name} was answered out of turn: {frame}")
        asked, _, answered = line.replies.popleft()
        if type_ != (dms.ERROR if status else asked + 1):
            raise BrokenPromiseError(f"{self.name} asked {asked:#04x}, and was told {frame}")
        answered(status, payload)
        return b""

    def _not_delivered(self, line: Line, status: int, payload: bytes, begun: int) -> None:
        self._model.was_not_delivered(line.queue)
        match status:
            case dms.NOT_FOUND:
                self._model.is_missing(line.queue, begun, line.consumer.wire)
            case dms.TIMEOUT:
                pass  # what is ready may have to be read from the disk first, and the disk be slow
            case _:
                self._check_internal(status, payload)

    def _answers(self, line: Line) -> bytes:
        """ACK some of what is held, in any order, give some back, keep the rest."""
        out = b""
        for delivery_id in self._chance.sample(list(line.held), len(line.held)):
            draw = self._chance.random()
            if draw < 0.6:
                out += self._ack(line, delivery_id)
            elif draw < 0.8:
                out += self._nack(line, delivery_id)
        return out

    def _ack(self, line: Line, delivery_id: int) -> bytes:
        message = line.held.pop(delivery_id)
        request: Request = self._model.acks(message, line.consumer.wire)

        def answered(status: int, payload: bytes) -> None:
            if not status:
                self._model.done(request)
            elif status == dms.NOT_FOUND:
                self._model.was_deleted(message)
            else:
                self._check_internal(status, payload)

        line.replies.append((dms.ACK, delivery_id, answered))
        return dms.frame(dms.ACK, delivery_id, dms.name(line.queue) if self._chance.random() < 0.2 else b"")

    def _nack(self, line: Line, delivery_id: int) -> bytes:
        message = line.held.pop(delivery_id)
        self._model.gives_back(message, line.consumer, delivery_id)

        def answered(status: int, payload: bytes) -> None:
            self._model.gave_back(message, line.consumer, delivery_id)
            line.unsure.pop(delivery_id, None)
            if status == dms.NOT_FOUND:
                self._model.was_deleted(message)
            elif status:
                raise BrokenPromiseError(f"{self.name}: NACK was refused: {status} {payload!r}")

        line.replies.append((dms.NACK, delivery_id, answered))
        return dms.frame(dms.NACK, delivery_id)

    # -- the rest

    async def _inquire(self, dialog: DmsDialog) -> None:
        """What changes nothing, and requests that are no good: each has its one answer."""
        queue = self._chance.choice(self._queues)
        wrong = (
            (dms.ACK, b"", dms.PROTOCOL),
            (dms.NACK, dms.name(queue), dms.PROTOCOL),
            (dms.CREATE, dms.name(""), dms.PROTOCOL),
            (dms.CREATE, dms.name(queue, b'{"unknown": 1}'), dms.PROTOCOL),
            (dms.PRODUCE, dms.name("no such queue", b"x"), dms.NOT_FOUND),
            (dms.CONSUME, dms.name("no such queue"), dms.NOT_FOUND),
            (0x61, b"", dms.TYPE),
            (dms.LIST, b"", 0),
        )
        first = self._ids + 1
        requests = [dms.frame(type_, self._id(), payload) for type_, payload, _ in wrong]
        await dialog.send_all(requests, self._chance, "what is no good")
        for message_id, (type_, payload, expected) in enumerate(wrong, first):
            status, _ = await dialog.answer(type_, message_id)
            if status != expected:
                raise BrokenPromiseError(f"{self.name}: {type_:#04x} {payload!r} was answered with {status}")
