"""What DMS's clients sent and were told, and whether all of it can be true at once.

As in model.py nothing here knows what the server does inside, every message has its own body, and each
request is an interval: from the tick at which it was sent (`begun`) to that of its answer, or to the tick at
which the server was through with its connection (`over`). What does not overlap has an order.

What is promised: an acknowledged PRODUCE stays until an ACK was sent for it; an acknowledged ACK is never
undone; nobody gets what somebody else holds; and of what is ready the oldest goes out first. What time and
tries do to messages is judged in dms_fates.py.
"""

import math
from collections.abc import Iterable, Sequence

import attrs

from tests.trials.sim.dms_fates import FATES, Course, Fates
from tests.trials.sim.network import Wire
from tests.trials.sim.world import BrokenPromise, World


@attrs.define(eq=False)
class Request:
    """`ended`: it had taken effect by then (it was answered, or somebody saw it)."""

    wire: Wire
    begun: int
    ended: float = math.inf
    acknowledged: bool = False
    refused: bool = False
    """It was certainly not done."""
    undone: bool = False
    """A look at the whole queue found no trace of it; its answer may still be under way."""

    @property
    def over(self) -> float:
        """It cannot take effect later."""
        return min(self.ended, self.wire.over)


@attrs.define(eq=False)
class Message(Request):
    """A PRODUCE."""

    queue: str = ""
    body: bytes = b""
    ack: Request | None = None
    """The last ACK that was sent for it."""
    holder: "Consumer | None" = None
    """Who got it, and has sent neither ACK nor NACK."""
    held_since: int = 0
    gone: float = math.inf
    """The tick of a look at the whole queue that did not find it."""
    course: Course = attrs.Factory(Course)

    def __str__(self) -> str:
        return f"{self.body[:24]!r} in {self.queue}"


@attrs.define(eq=False)
class Consumer:
    """A connection that consumes from one queue. `leaving`: it has said so, and its messages go back."""

    wire: Wire
    leaving: bool = False
    returning: dict[Message, int] = attrs.Factory(dict)
    """NACKs without an answer yet, and the deliveries that they are of."""


@attrs.define(eq=False)
class Queue:
    """All that clients know of one queue's name."""

    name: str
    messages: dict[bytes, Message] = attrs.Factory(dict)
    creations: list[Request] = attrs.Factory(list)
    deletions: list[Request] = attrs.Factory(list)
    consumers: list[Consumer] = attrs.Factory(list)


class DmsModel:
    """The clients' knowledge, all of it."""

    def __init__(self, world: World, names: Iterable[str]) -> None:
        self._world = world
        self.queues = {name: Queue(name) for name in names}
        self.fates = Fates(world)
        self.sent = self.acknowledged = self.records_checked = 0

    # -- queues

    def creates(self, name: str, wire: Wire) -> Request:
        request = Request(wire, self._world.tick())
        self.queues[name].creations.append(request)
        return request

    def deletes(self, name: str, wire: Wire) -> Request:
        request = Request(wire, self._world.tick())
        self.queues[name].deletions.append(request)
        return request

    def done(self, request: Request) -> None:
        """It was acknowledged."""
        if request.undone:
            raise BrokenPromise(f"what was done is undone before its answer is read: {request}")
        request.ended = min(request.ended, self._world.tick())
        request.acknowledged = True
        if isinstance(request, Message):
            self.acknowledged += 1
            self.fates.stored(request.queue, request.begun)
        self._world.on_answer()

    def refused(self, request: Request) -> None:
        request.refused = True

    def is_missing(self, name: str, begun: int, wire: Wire) -> None:
        """A request that began at `begun` was told that there is no such queue."""
        if wire.excused():
            return  # a queue whose log cannot be read is left alone
        queue = self.queues[name]
        for made in queue.creations:
            if made.ended < begun and not self._maybe_deleted_since(queue, made.begun):
                raise BrokenPromise(f"{name} was made, and is missing")

    def is_there(self, name: str, begun: int) -> None:
        """It exists, at some time since `begun`."""
        queue = self.queues[name]
        now = self._world.tick()
        last = max((d.begun for d in queue.deletions if d.acknowledged and d.over < begun), default=-1)
        if not any(c.over > last and c.begun < now and not c.refused for c in queue.creations):
            raise BrokenPromise(f"{name} was deleted, or never made, and is there")

    def _maybe_deleted_since(self, queue: Queue, begun: float) -> bool:
        return any(d.over > begun and not d.refused for d in queue.deletions)

    # -- producing

    def sends(self, name: str, body: bytes, wire: Wire) -> Message:
        self.sent += 1
        message = Message(wire, self._world.tick(), queue=name, body=body)
        self.queues[name].messages[body] = message
        return message

    def _certainly_there(self, message: Message, begun: int) -> bool:
        """Whether it stands in its queue, or somebody holds it, from `begun` on."""
        if message.ended >= begun or message.ack is not None or message.gone < math.inf:
            return False
        return not self._maybe_deleted_since(self.queues[message.queue], message.begun)

    # -- consuming

    def asks(self, name: str) -> int:
        """A CONSUME goes out."""
        self.fates.asked(name)
        return self._world.tick()

    def was_not_delivered(self, name: str) -> None:
        """It was answered, and not by a message."""
        self.fates.asked(name, -1)

    def consumer(self, name: str, wire: Wire) -> Consumer:
        consumer = Consumer(wire)
        self.queues[name].consumers.append(consumer)
        return consumer

    def delivered(self, name: str, body: bytes, consumer: Consumer, begun: int) -> Message:
        """A DELIVER answers a CONSUME that was sent at `begun`."""
        message = self._of_body(name, body)
        now = self._world.tick()
        self.records_checked += 1
        # What a live connection got it has not lost since: nobody else can have had it after that.
        live = not consumer.leaving and not consumer.wire.server_done.is_set()
        if message is None:
            raise BrokenPromise(f"{name} delivers what nobody sent: {body[:64]!r}")
        queue = self.queues[message.queue]
        if message.refused:
            raise BrokenPromise(f"{message} was refused, and is delivered")
        if message.gone < begun:
            raise BrokenPromise(f"{message} was gone, and is delivered")
        if any(d.acknowledged and d.begun > message.over and d.over < begun for d in queue.deletions):
            raise BrokenPromise(f"{message} was deleted with its queue, and is delivered")
        if message.ack is not None and message.ack.acknowledged and (live or message.ack.ended < begun):
            raise BrokenPromise(f"{message} was acknowledged by a consumer, and is delivered again")
        holder = message.holder
        held = holder is not None and not holder.leaving and not holder.wire.left
        held = held and holder is not None and not holder.wire.server_done.is_set()
        if held and (message.held_since < begun or (live and holder is not consumer)):
            raise BrokenPromise(f"{message} is delivered while a connection holds it")
        consumer.returning.pop(message, None)
        if name == message.queue:
            self._check_turn(queue, consumer, begun, message)
        self.fates.delivered(message, name, begun)
        if message.ended == math.inf:
            message.ended = now
            self._world.on_sight()
        message.holder, message.held_since = consumer, now
        return message

    def _of_body(self, name: str, body: bytes) -> Message | None:
        """What was sent to that queue, or to one whose dead it takes."""
        froms = (each for each, fate in FATES.items() if each in self.queues and fate.dead_letter == name)
        for each in (name, *froms):
            if body in self.queues[each].messages:
                return self.queues[each].messages[body]
        return None

    def _check_turn(self, queue: Queue, consumer: Consumer, begun: int, got: Message) -> None:
        """Nothing older is ready. Where others may hold it, nobody can tell."""
        others = (each for each in queue.consumers if each is not consumer)
        if consumer.wire.excused() or any(each.wire.over > begun for each in others):
            return
        for older in queue.messages.values():
            if (
                older is not got
                and older.holder is not consumer
                and older not in consumer.returning
                and self._certainly_there(older, begun)
                and not self.fates.may_be_dead(older)
                and not self.fates.may_wait(older)
                and _came_before(older, got)
            ):
                raise BrokenPromise(f"{older} is ready, and {got} is delivered")

    def acks(self, message: Message, wire: Wire) -> Request:
        message.holder = None
        message.ack = Request(wire, self._world.tick())
        return message.ack

    def gives_back(self, message: Message, consumer: Consumer, delivery_id: int) -> None:
        """A NACK goes out."""
        message.holder = None
        consumer.returning[message] = delivery_id
        self.fates.nacked(message, consumer.wire)

    def gave_back(self, message: Message, consumer: Consumer, delivery_id: int) -> None:
        """It is answered; meanwhile the message may have come once more, and gone back again."""
        if consumer.returning.get(message) == delivery_id:
            del consumer.returning[message]
            if message.course.nack is not None:
                message.course.nack.answered = True

    def was_deleted(self, message: Message) -> None:
        """What was delivered is worth nothing any more: an ACK or NACK was told so."""
        if not self._maybe_deleted_since(self.queues[message.queue], message.begun):
            raise BrokenPromise(f"{message} is said to be of a deleted queue")

    # -- after a restart, when nothing else is under way

    def saw_all(
        self,
        name: str,
        found: Sequence[Message] | None,
        begun: int,
        wire: Wire,
        dead: Iterable[Message] = (),
    ) -> None:
        """All that a queue holds, in the order in which it was delivered; None: there is no such queue.

        `dead`: what was found in the queue that its dead move to.
        """
        if found is None:
            self.is_missing(name, begun, wire)
            if wire.excused():
                return
        else:
            self.is_there(name, begun)
            self._check_order(found)
        queue, there = self.queues[name], {*(found or ()), *dead}
        first = min((message.ended for message in found or ()), default=math.inf)
        for message in queue.messages.values():
            if message in there:
                if message.ack is not None and message.ack.over < begun:
                    message.ack.undone = True  # it never came to pass, and never will
                    message.ack = None
                continue
            drops = name in FATES and not FATES[name].dead_letter and self.fates.may_be_dead(message)
            if self._certainly_there(message, begun) and not drops:
                how = "acknowledged" if message.acknowledged else "shown to a consumer"
                raise BrokenPromise(f"{message} was {how}, and is gone")
            if message.ended < begun and message.ack is None and message.gone == math.inf and not drops:
                self._check_deleted(queue, message, first)
            if message.over < begun:
                message.gone = min(message.gone, begun)
                deleted = self._maybe_deleted_since(queue, message.begun)
                message.undone = message.ack is None and not drops and not deleted

    def _check_deleted(self, queue: Queue, message: Message, first: float) -> None:
        """A deletion takes all that came before it, or nothing."""
        if not any(d.over > message.begun and d.begun < first and not d.refused for d in queue.deletions):
            raise BrokenPromise(f"{message} is gone: no deletion took it and left the rest")

    def _check_order(self, found: Sequence[Message]) -> None:
        """The order of arrival, as far as anybody knows it."""
        last: Message | None = None
        by_wire: dict[Wire, Message] = {}
        for message in found:
            if last is not None and message.ended < last.begun:
                raise BrokenPromise(f"{message} was there before {last} was sent, and stands behind it")
            if last is None or message.begun > last.begun:
                last = message
            before = by_wire.get(message.wire)
            if before is not None and before.begun > message.begun:
                raise BrokenPromise(f"{message} was sent before {before}, and stands behind it")
            by_wire[message.wire] = message


def _came_before(one: Message, other: Message) -> bool:
    return one.ended < other.begun or (one.wire is other.wire and one.begun < other.begun)
