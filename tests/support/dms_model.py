"""What a queue of DMS may do to its messages, and whether what its clients saw can be true at once.

Its three parts serve all who judge DMS from outside. `Fate` and `Course` are what time and tries do to a
message, and what may not be seen of them. `Ages` bounds how long a server has served, which a crash makes
uncertain. `DmsModel` is all that clients know: it is told what they send and read, and raises
BrokenPromiseError. The simulation and the property tests use all of it. The trials of kills and power cuts
have processes of their own and real time, promises that end with a sync, and hundreds of thousands of
messages. So they keep books instead (`tests/trials/queue_ledger.py`), and judge fates by the same rules.

Nothing here knows what the server does inside, every message has its own body, and each request is an
interval: from the tick at which it was sent (`begun`) to that of its answer, or to the tick at which the
server was through with its connection (`over`). What does not overlap has an order.

What is promised: an acknowledged PRODUCE stays until an ACK was sent for it; an acknowledged ACK is never
undone; nobody gets what somebody else holds; and of what is ready the oldest goes out first.

A message with a fate is in one place, once: its own queue, or that of the dead. After a restart times may
last a little longer, since the server is as old as its newest record says, and deliveries of an earlier life
may have been forgotten.
"""

import json
import math
from bisect import bisect_right, insort
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import attrs
import trio

from tests.support.promises import BrokenPromiseError


@attrs.frozen
class Fate:
    """A queue's options, as CREATE_QUEUE has them. 0 and "": without."""

    ttl_ms: int = 0
    delay_ms: int = 0
    retry_ms: int = 0
    retry_max_ms: int = 0
    max_deliveries: int = 0
    dead_letter: str = ""
    loss_counts: str = "all"
    """What is delivered counts, whoever is lost: then each delivery can be judged by itself."""

    @property
    def options(self) -> dict[str, Any]:
        return {name: value for name, value in attrs.asdict(self).items() if value}

    @property
    def json(self) -> bytes:
        return json.dumps(self.options).encode()

    def retry_seconds(self, deliveries: int) -> float:
        """From a NACK of the so-manieth delivery to the next."""
        return min(self.retry_ms << (deliveries - 1), max(self.retry_ms, self.retry_max_ms)) / 1000

    def may_be_past(self, most: float) -> bool:
        """Whether its lifetime may be over at an age of `most` seconds at the most."""
        return bool(self.ttl_ms) and most >= self.ttl_ms / 1000

    def may_be_exhausted(self, deliveries: float) -> bool:
        return bool(self.max_deliveries) and deliveries >= self.max_deliveries

    def may_be_dead(self, most: float, deliveries: float = math.inf) -> bool:
        """Of age, or delivered so often at the most (without a number: nobody counted)."""
        return self.may_be_past(most) or self.may_be_exhausted(deliveries)


@attrs.define
class Course:
    """A message's deliveries from its own queue: in the server's life `life`, and in all its lives.

    The server may have counted fewer: one that nobody could try does not count. One that was NACKed does.
    """

    life: int = 0
    deliveries: int = 0
    deliveries_ever: int = 0
    nacks: int = 0
    """Deliveries in this life that came after a NACK."""
    nacked: float = -math.inf
    """When the NACK of the last delivery was sent; -inf: none was."""

    def delivered(
        self,
        fate: Fate,
        life: int,
        now: float,
        *,
        most: float,
        least: float,
        late: float,
        leaving: bool = False,
    ) -> Iterator[str]:
        """What is wrong with a delivery, read at `now`.

        `leaving`: its consumer had sent DISCONNECT, or is lost later and holds more, so it may not count:
        of what a connection held that is lost only the oldest does.

        `most`, `least`: the message's age, at the most when it came and at the least when it was asked for.
        `late`: how much later than it is due something may happen.
        """
        if self.life != life:
            self.life, self.deliveries, self.nacks, self.nacked = life, 0, 0, -math.inf
        self.deliveries += not leaving
        self.deliveries_ever += 1
        since_nack, self.nacked = now - self.nacked, -math.inf
        self.nacks += since_nack < math.inf
        if most < fate.delay_ms / 1000:
            yield f"delivered after {most:.3f} s, before its delay is over"
        if fate.ttl_ms and least > fate.ttl_ms / 1000 + late:
            yield f"delivered after {least:.3f} s of service at least, past its lifetime"
        if fate.max_deliveries and self.deliveries > fate.max_deliveries:
            yield f"delivered for the {self.deliveries}. time"
        if fate.retry_ms and since_nack < fate.retry_seconds(max(self.nacks, 1)):
            yield f"delivered {since_nack:.3f} s after its NACK"

    def may_not_count(self) -> None:
        """The connection of the last delivery is lost, and may have held an older one."""
        self.deliveries = max(self.deliveries - 1, 0)


@attrs.define
class _Life:
    """It served at the earliest from `begun` on, certainly from `serving` on, and until `ended`."""

    begun: float
    serving: float = math.inf
    ended: float = math.inf


class Ages:
    """The lives of one server: how long it may have served between two moments, and how long at least.

    Lifetimes and delays count only while the server runs, and a crash may take back a little of what it knew
    of its age. So a client that sees the server begin and end knows two bounds. At most it is all the time of
    its lives in between. At least it is what an acknowledged record tells of the lives that are over, and all
    of the present one. Times are the caller's, in seconds.
    """

    def __init__(self) -> None:
        self._lives: list[_Life] = []

    @property
    def life(self) -> int:
        """Which one it is."""
        return len(self._lives)

    def begins(self, now: float) -> None:
        """It is started."""
        self._lives.append(_Life(now))

    def serves(self, now: float) -> None:
        """It has answered."""
        life = self._lives[-1]
        life.serving = min(life.serving, now)

    def ends(self, now: float) -> None:
        """However; it may be that it had ended before."""
        self._lives[-1].ended = min(self._lives[-1].ended, now)

    def most(self, since: float, until: float) -> float:
        """No more time of service lies between."""
        return sum(max(min(life.ended, until) - max(life.begun, since), 0.0) for life in self._lives)

    def least(self, since: float, until: float, kept: Sequence[float]) -> float:
        """No less does. `kept`: moments, in order, whose age is on disk for certain."""
        passed = 0.0
        for life in self._lives:
            first = max(life.serving, since)
            last = until
            if life.ended <= until:
                at = bisect_right(kept, life.ended)
                last = kept[at - 1] if at else -math.inf
            passed += max(last - first, 0.0)
        return passed


class Surroundings(Protocol):
    """The time of a run. `tick()` orders everything that clients do and see."""

    on_answer: Callable[[], None]
    """Called when a client has had a good answer to what changes something."""
    on_sight: Callable[[], None]
    """Called when a client has read what nobody knew yet to be written."""

    def tick(self) -> int: ...

    def time_of(self, tick: int) -> float:
        """When it was, in seconds."""

    def now(self) -> float: ...


class Wire(Protocol):
    """A client's connection."""

    excused: Callable[[], bool]
    """Says whether what is refused on it is refused for cause."""
    server_done: trio.Event
    """The server is through with it."""
    over: float
    """The tick of that; inf: it is not."""
    left: bool
    """The client has gone."""


DEAD = "x"
"""The queue that the dead move to. Nobody deletes it, or what it has dead of."""

LATE_SECONDS = 0.02
"""What is due happens with the next turn of the server's loop, and that may hang in a sync of its own."""

SET = {
    "t": Fate(ttl_ms=80, dead_letter=DEAD),
    "e": Fate(ttl_ms=50),
    "m": Fate(max_deliveries=2, dead_letter=DEAD),
}
"""These the settings say, by the queue's name;"""
ASKED = {
    "d": Fate(delay_ms=60),
    "r": Fate(retry_ms=20, retry_max_ms=60, max_deliveries=4, dead_letter=DEAD),
}
"""these CREATE_QUEUE asks for."""
FATES: Mapping[str, Fate] = {**SET, **ASKED}


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
    nack: Request | None = None
    """That of the last delivery."""

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
    unread: int = 0
    """CONSUMEs whose senders may never read what is delivered to them."""
    kept: list[float] = attrs.Factory(list)
    """When PRODUCEs were sent that were acknowledged: a record of that age is on disk."""

    @property
    def fate(self) -> Fate:
        return FATES.get(self.name, Fate())


class DmsModel:
    """The clients' knowledge, all of it."""

    def __init__(self, world: Surroundings, names: Iterable[str]) -> None:
        self._world = world
        self.queues = {name: Queue(name) for name in names}
        self.ages = Ages()
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
            raise BrokenPromiseError(f"what was done is undone before its answer is read: {request}")
        request.ended = min(request.ended, self._world.tick())
        request.acknowledged = True
        if isinstance(request, Message):
            self.acknowledged += 1
            insort(self.queues[request.queue].kept, self._world.time_of(request.begun))
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
                raise BrokenPromiseError(f"{name} was made, and is missing")

    def is_there(self, name: str, begun: int) -> None:
        """It exists, at some time since `begun`."""
        queue = self.queues[name]
        now = self._world.tick()
        last = max((d.begun for d in queue.deletions if d.acknowledged and d.over < begun), default=-1)
        if not any(c.over > last and c.begun < now and not c.refused for c in queue.creations):
            raise BrokenPromiseError(f"{name} was deleted, or never made, and is there")

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

    def asks(self, name: str, count: int = 1) -> int:
        """CONSUMEs go out."""
        self.queues[name].unread += count
        return self._world.tick()

    def was_not_delivered(self, name: str) -> None:
        """It was answered, and not by a message."""
        self.queues[name].unread -= 1

    def consumer(self, name: str, wire: Wire) -> Consumer:
        consumer = Consumer(wire)
        self.queues[name].consumers.append(consumer)
        return consumer

    def delivered(self, name: str, body: bytes, consumer: Consumer, begun: int) -> Message:
        """A DELIVER answers a CONSUME that was sent at `begun`."""
        message = self.find(name, body)
        now = self._world.tick()
        self.records_checked += 1
        # What a live connection got it has not lost since: nobody else can have had it after that.
        live = not consumer.leaving and not consumer.wire.server_done.is_set()
        queue = self.queues[message.queue]
        if message.refused:
            raise BrokenPromiseError(f"{message} was refused, and is delivered")
        if message.gone < begun:
            raise BrokenPromiseError(f"{message} was gone, and is delivered")
        if any(d.acknowledged and d.begun > message.over and d.over < begun for d in queue.deletions):
            raise BrokenPromiseError(f"{message} was deleted with its queue, and is delivered")
        if message.ack is not None and message.ack.acknowledged and (live or message.ack.ended < begun):
            raise BrokenPromiseError(f"{message} was acknowledged by a consumer, and is delivered again")
        holder = message.holder
        held = holder is not None and not holder.leaving and not holder.wire.left
        held = held and holder is not None and not holder.wire.server_done.is_set()
        if held and (message.held_since < begun or (live and holder is not consumer)):
            raise BrokenPromiseError(f"{message} is delivered while a connection holds it")
        consumer.returning.pop(message, None)
        if name == message.queue:
            self._check_turn(queue, consumer, begun, message)
        self._check_fate(message, self.queues[name], begun, leaving=consumer.leaving)
        if message.ended == math.inf:
            message.ended = now
            self._world.on_sight()
        message.holder, message.held_since = consumer, now
        return message

    def find(self, name: str, body: bytes) -> Message:
        """What was sent to that queue, or to one whose dead it takes, and is seen there."""
        froms = (each for each, fate in FATES.items() if each in self.queues and fate.dead_letter == name)
        for each in (name, *froms):
            if body in self.queues[each].messages:
                return self.queues[each].messages[body]
        raise BrokenPromiseError(f"{name} has what nobody sent: {body[:64]!r}")

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
                and not self._may_be_dead(older)
                and not (queue.fate.retry_ms and older.nack is not None)  # it may wait for another try
                and _came_before(older, got)
            ):
                raise BrokenPromiseError(f"{older} is ready, and {got} is delivered")

    def acks(self, message: Message, wire: Wire) -> Request:
        message.holder = None
        message.ack = Request(wire, self._world.tick())
        return message.ack

    def gives_back(self, message: Message, consumer: Consumer, delivery_id: int) -> None:
        """A NACK goes out."""
        message.holder = None
        consumer.returning[message] = delivery_id
        message.nack = Request(consumer.wire, self._world.tick())
        message.course.nacked = self._world.now()

    def gave_back(self, message: Message, consumer: Consumer, delivery_id: int) -> None:
        """It is answered; meanwhile the message may have come once more, and gone back again."""
        if consumer.returning.get(message) == delivery_id:
            del consumer.returning[message]
            if message.nack is not None:
                message.nack.acknowledged = True

    def was_deleted(self, message: Message) -> None:
        """What was delivered is worth nothing any more: an ACK or NACK was told so."""
        if not self._maybe_deleted_since(self.queues[message.queue], message.begun):
            raise BrokenPromiseError(f"{message} is said to be of a deleted queue")

    # -- time and tries

    def _check_fate(self, message: Message, place: Queue, begun: int, *, leaving: bool) -> None:
        """A DELIVER answers a CONSUME of the queue `place` that was sent at `begun`."""
        place.unread -= 1
        queue = self.queues[message.queue]
        if place is not queue:
            if place.name != queue.fate.dead_letter:
                raise BrokenPromiseError(f"{message} is delivered from {place.name}")
            if not self._may_be_dead(message):
                raise BrokenPromiseError(f"{message} is among the dead before its time")
            return
        nack, message.nack = message.nack, None
        if nack and not nack.acknowledged and (nack.wire.left or nack.wire.server_done.is_set()):
            message.course.nacked = -math.inf  # its connection may have been lost first: that costs no time
        least = 0.0 if message.wire.excused() else self._served_since(message, self._world.time_of(begun))
        most, now = self._most(message), self._world.now()
        for what in message.course.delivered(
            queue.fate, self.ages.life, now, most=most, least=least, late=LATE_SECONDS, leaving=leaving
        ):
            raise BrokenPromiseError(f"{message} is {what}")

    def _may_be_dead(self, message: Message) -> bool:
        """Or on its way there."""
        queue = self.queues[message.queue]
        return queue.fate.may_be_dead(self._most(message), message.course.deliveries_ever + queue.unread)

    def is_ready(self, message: Message) -> bool:
        """Its delay is over for certain."""
        delay_seconds = self.queues[message.queue].fate.delay_ms / 1000
        return self._served_since(message, self._world.now()) > delay_seconds + LATE_SECONDS

    def shows(self, message: Message, about: Mapping[str, Any]) -> None:
        """A look at its own queue shows this of it."""
        course = message.course
        least = course.deliveries if course.life == self.ages.life else 0
        if not least <= about["deliveries"] <= course.deliveries_ever + self.queues[message.queue].unread:
            raise BrokenPromiseError(f"{message} is said to have been delivered {about['deliveries']} times")

    def found_dead(self, message: Message, about: Mapping[str, Any]) -> None:
        """A look at the queue of the dead shows this of it."""
        fate, unread = self.queues[message.queue].fate, self.queues[message.queue].unread
        past = about["reason"] == "ttl" and fate.may_be_past(self._most(message))
        tries = about["reason"] == "max_deliveries" and about["deliveries"] >= fate.max_deliveries
        tries = tries and fate.may_be_exhausted(message.course.deliveries_ever + unread)
        if about["origin"] != message.queue or not (past or tries):
            raise BrokenPromiseError(f"{message} is among the dead, and it says {about}")

    def _most(self, message: Message) -> float:
        """It is no older."""
        return self.ages.most(self._world.time_of(message.begun), self._world.now())

    def _served_since(self, message: Message, until: float) -> float:
        """Since it had come, at least."""
        if message.ended == math.inf:
            return 0.0
        ended = self._world.time_of(int(message.ended))
        return self.ages.least(ended, until, self.queues[message.queue].kept)

    # -- after a restart, when nothing else is under way

    def saw_places(
        self,
        before: Sequence[Mapping[str, Any]],
        rows: Mapping[str, Sequence[Mapping[str, Any]] | None],
        after: Sequence[Mapping[str, Any]],
        begun: int,
        wire: Wire,
    ) -> None:
        """All that several queues hold, as `peek` shows it; None: there is no such queue.

        `before` and `after` that: the dead. Each is in its queue or with them, and may move meanwhile.
        """
        dead: dict[str, list[Message]] = {name: [] for name in rows}
        for row in after:
            message = self.find(DEAD, row["text"].encode())
            if "dead_letter" not in row["properties"]:
                raise BrokenPromiseError(f"{message} is among the dead, and does not say why")
            self.found_dead(message, row["properties"]["dead_letter"])
            dead[message.queue].append(message)
        were, are = ({row["text"] for row in each} for each in (before, after))
        if len(are) != len(after):
            raise BrokenPromiseError(f"somebody is twice among the dead: {after}")
        if were - are:
            raise BrokenPromiseError(f"{were - are} were among the dead, and are not any more")
        for name, each in rows.items():
            found = [self.find(name, row["text"].encode()) for row in each or ()]
            for message, row in zip(found, each or (), strict=True):
                self.shows(message, row["properties"])
                if row["text"] in were:
                    raise BrokenPromiseError(f"{message} is there, and among the dead")
            if len(set(found)) < len(found):
                raise BrokenPromiseError(f"{name} has a message twice")
            self.saw_all(name, None if each is None else found, begun, wire, dead[name])

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
            drops = not queue.fate.dead_letter and self._may_be_dead(message)
            if self._certainly_there(message, begun) and not drops:
                how = "acknowledged" if message.acknowledged else "shown to a consumer"
                raise BrokenPromiseError(f"{message} was {how}, and is gone")
            if message.ended < begun and message.ack is None and message.gone == math.inf and not drops:
                self._check_deleted(queue, message, first)
            if message.over < begun:
                message.gone = min(message.gone, begun)
                deleted = self._maybe_deleted_since(queue, message.begun)
                message.undone = message.ack is None and not drops and not deleted

    def _check_deleted(self, queue: Queue, message: Message, first: float) -> None:
        """A deletion takes all that came before it, or nothing."""
        if not any(d.over > message.begun and d.begun < first and not d.refused for d in queue.deletions):
            raise BrokenPromiseError(f"{message} is gone: no deletion took it and left the rest")

    def _check_order(self, found: Sequence[Message]) -> None:
        """The order of arrival, as far as anybody knows it."""
        last: Message | None = None
        by_wire: dict[Wire, Message] = {}
        for message in found:
            if last is not None and message.ended < last.begun:
                raise BrokenPromiseError(f"{message} was there before {last} was sent, and stands behind it")
            if last is None or message.begun > last.begun:
                last = message
            before = by_wire.get(message.wire)
            if before is not None and before.begun > message.begun:
                raise BrokenPromiseError(f"{message} was sent before {before}, and stands behind it")
            by_wire[message.wire] = message


def _came_before(one: Message, other: Message) -> bool:
    return one.ended < other.begun or (one.wire is other.wire and one.begun < other.begun)
