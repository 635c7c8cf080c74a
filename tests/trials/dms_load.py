"""A DMS load over several connections, and a record of all that was sent, answered and delivered.

One thread speaks on raw sockets, so it always knows what it has read when the cut comes. What can be judged
while the server lives is judged at once: no message twice to anybody while it is held or after its ACK, and
first deliveries in the order of arrival.
"""

import random
import time
from collections import deque
from collections.abc import Sequence
from typing import ClassVar

import attrs

from tests.support import dms_spec as spec
from tests.trials.payloads import Payloads
from tests.trials.peers import Asked, PeersLoad, RawPeer, burst, sampled
from tests.trials.queue_ledger import DmsBook, Message, QueueBook, Step

_BODY_BYTES_MAX = 4000
_HELD_MAX = 400


@attrs.define(eq=False)
class DmsPeer(RawPeer):
    """A connection, its requests in order, and its faults."""

    bytes_max: ClassVar[int] = 4096
    _waiting: deque[tuple[int, int, Asked, str]] = attrs.field(factory=deque, init=False)
    _greeted: bool = attrs.field(default=False, init=False)
    _next_id: int = attrs.field(default=0, init=False)

    def __attrs_post_init__(self) -> None:
        super().__attrs_post_init__()
        self._out += spec.frame(spec.HANDSHAKE, 0, self.name.encode())

    def account(self, now: float) -> None:
        try:
            for reply in spec.parse(self._in, self.bytes_max):
                self._account(now, *reply)
        except ValueError as error:
            self.faults.append(f"{self.name}: {error}")
            self.gone = True

    def ask(self, type_: int, payload: bytes, asked: Asked, what: str, message_id: int | None = None) -> None:
        self._next_id += 1
        sent = self._next_id if message_id is None else message_id
        self._waiting.append((type_, sent, asked, what))
        self._out += spec.frame(type_, sent, payload)

    def _account(self, now: float, type_: int, status: int, message_id: int, payload: bytes) -> None:
        if type_ == spec.HANDSHAKE_ACK and not self._greeted:
            self._greeted = True
        elif type_ == spec.DELIVER:
            self.delivered(now, message_id, payload)
        elif type_ == spec.DELIVER_WITH:
            self.delivered_with(now, message_id, payload)
        elif type_ == spec.ERROR and self.not_delivered(status, message_id):
            pass
        elif type_ == spec.DISCONNECT:
            pass  # the server drains
        elif not self._waiting:
            self.faults.append(f"{self.name}: an answer to nothing: type {type_:#x}, {payload[:80]!r}")
        else:
            asked_type, sent, asked, what = self._waiting.popleft()
            asked.answered = now
            if isinstance(asked, Message) and type_ != spec.ERROR:
                self.stored(asked)
            if message_id != sent:
                self.faults.append(f"{self.name}: {what}: id {message_id}, not {sent}")
            if type_ == spec.ERROR:
                asked.refused = f"status {status}: {payload[:80]!r}"
                if not self.may_refuse(asked_type, status):
                    self.refusals.append((now, f"{self.name}: {what}: {asked.refused}"))
            elif type_ != spec.answer_to(asked_type):
                self.faults.append(f"{self.name}: {what}: type {type_:#x}")

    def stored(self, message: Message) -> None:
        """It was acknowledged."""

    def delivered(self, now: float, delivery: int, body: bytes) -> None:
        self.faults.append(f"{self.name}: a message that was not asked for")

    def delivered_with(self, now: float, delivery: int, payload: bytes) -> None:
        self.faults.append(f"{self.name}: a message that was not asked for")

    def may_refuse(self, type_: int, status: int) -> bool:
        """Whether such a request may be refused so."""
        return False

    def not_delivered(self, status: int, message_id: int) -> bool:
        """A CONSUME that ended without a message? Anything else is not ours."""
        return False


@attrs.frozen
class ProducerMix:
    """`window`: requests in flight at most; `delete`: how likely its own queue ends, of one request."""

    window: int
    delete: float = 0.0


@attrs.frozen
class ConsumerMix:
    """`credits`: CONSUMEs that wait at most; the weights say what is done with a message."""

    credits: int
    ack: float = 10.0
    nack: float = 1.0
    hold: float = 1.0


PRODUCERS = (
    ProducerMix(1),
    ProducerMix(16, delete=0.1),
    ProducerMix(64),
    ProducerMix(128, delete=0.01),
)
CONSUMERS = (ConsumerMix(1), ConsumerMix(16, nack=5), ConsumerMix(64), ConsumerMix(8, hold=30))


@attrs.define(eq=False)
class Producer(DmsPeer):
    """Writes to queues that it shares, and to one of its own that it ends and makes again."""

    _mix: ProducerMix
    _own: Sequence[QueueBook]
    _shared: Sequence[QueueBook]
    _payloads: Payloads
    _source: random.Random
    _queues: dict[bytes, QueueBook] = attrs.field(factory=dict, init=False)

    def stored(self, message: Message) -> None:
        kept = self._queues.pop(message.key).kept
        kept.append(max(message.sent, kept[-1] if kept else message.sent))

    def fill(self, now: float) -> None:
        for _ in range(burst(self._mix.window, len(self._waiting))):
            if self._source.random() < self._mix.delete:
                step(self, self._source.choice(self._own), now)
                continue
            queue = self._source.choice(self._own if self._source.random() < 0.2 else self._shared)
            if queue.asked_position % 2 == 0:
                step(self, queue, now)
            body = self._payloads.raw(self.name)[:_BODY_BYTES_MAX]
            message = queue.send(body, self.name, now)
            self._queues[body] = queue
            self.ask(spec.PRODUCE, spec.name(queue.name) + body, message, f"PRODUCE {queue.name}")


def step(peer: DmsPeer, queue: QueueBook, now: float) -> None:
    """End the queue, or make it."""
    asked = Step(now, position=queue.asked_position + 1)
    queue.steps.append(asked)
    type_ = spec.CREATE if asked.position % 2 else spec.DELETE
    peer.ask(
        type_, spec.name(queue.name), asked, f"{'CREATE' if asked.position % 2 else 'DELETE'} {queue.name}"
    )


@attrs.define(eq=False)
class Consumer(DmsPeer):
    """Takes from one queue; acknowledges, gives back, or keeps."""

    _mix: ConsumerMix
    _book: DmsBook
    _queue: QueueBook
    _source: random.Random
    _consuming: dict[int, float] = attrs.field(factory=dict, init=False)
    """Ids of CONSUMEs without an answer, and when they were sent."""
    _held: deque[tuple[int, Message]] = attrs.field(factory=deque, init=False)
    _last_first: dict[str, int] = attrs.field(factory=dict, init=False)

    def fill(self, now: float) -> None:
        mix = self._mix
        while len(self._consuming) < mix.credits and len(self._held) < _HELD_MAX:
            self._next_id += 1
            self._consuming[self._next_id] = now
            self._out += spec.frame(spec.CONSUME, self._next_id, spec.name(self._queue.name))
        if len(self._held) >= _HELD_MAX:
            self._settle(now, *self._held.popleft())

    def not_delivered(self, status: int, message_id: int) -> bool:
        if message_id not in self._consuming:
            return False
        del self._consuming[message_id]
        if status != 4:
            self.refusals.append((time.monotonic(), f"{self.name}: CONSUME {self._queue.name}: {status}"))
        return True

    def delivered(self, now: float, delivery: int, body: bytes) -> None:
        if not self._consuming:
            self.faults.append(f"{self.name}: more messages than were asked for")
            return
        asked = self._consuming.pop(min(self._consuming))
        queue = self._queue
        message, owner = queue.find(body)
        if message is None:
            what = "back, which was gone" if body in queue.gone else "which nobody sent"
            self.faults.append(f"{queue.name}: delivered, {what}: {body[:48]!r}")
            return
        if message.held:
            self.faults.append(f"{queue.name}: delivered while it is held: {body[:48]!r}")
        elif message.ack is not None and not message.ack.refused:
            self.faults.append(f"{queue.name}: delivered after an ACK was sent for it: {body[:48]!r}")
        self.faults += self._book.deliveries_wrong(queue, message, owner, asked, now)
        if message.shown is None and owner is queue:
            message.shown = now
            last = self._last_first.get(message.writer, -1)
            # One that was delivered before a loss may have waited since it was given back.
            if message.place < last and message.course.deliveries_ever <= 1:
                self.faults.append(f"{queue.name}: first delivered after a later one: {body[:48]!r}")
            self._last_first[message.writer] = message.place
        message.held = True
        mix = self._mix
        (way,) = self._source.choices(("ack", "nack", "hold"), (mix.ack, mix.nack, mix.hold))
        if way == "hold":
            self._held.append((delivery, message))
        elif way == "ack":
            self._settle(now, delivery, message)
        else:
            message.held = False
            message.course.nacked = now
            self.ask(spec.NACK, b"", Asked(now), f"NACK in {queue.name}", delivery)

    def _settle(self, now: float, delivery: int, message: Message) -> None:
        message.held = False
        message.ack = Asked(now)
        self.ask(spec.ACK, b"", message.ack, f"ACK in {self._queue.name}", delivery)


class DmsLoad(PeersLoad):
    """Producers and consumers, on one server."""

    def __init__(
        self, address: tuple[str, int], book: DmsBook, modes: Sequence[str], source: random.Random
    ) -> None:
        payloads = Payloads(source)
        mortals: list[QueueBook] = []
        graves: list[QueueBook] = []
        lasting = [book.open(f"{mode}-shared-{number}", mode) for mode in modes for number in range(2)]
        for mode in modes:
            *mortal, dead = book.open_mortals(mode)
            mortals += mortal
            graves.append(dead)
        _make(address, [queue for queue in (*graves, *mortals, *lasting) if queue.asked_position == 0])
        peers: list[RawPeer] = []
        for number, mix in sampled(source, PRODUCERS):
            own = [book.open(f"{mode}-own-{number}", mode) for mode in modes]
            writer = f"writer-{number}"
            shared = [*lasting, *lasting, *mortals]
            peers.append(Producer(address, writer, mix, own, shared, payloads, source))
        for number, habit in sampled(source, CONSUMERS):
            queue = source.choice(lasting)
            peers.append(Consumer(address, f"reader-{number}", habit, book, queue, source))
        habit, queue = source.choice(CONSUMERS), source.choice([*mortals, *mortals, *graves])
        peers.append(Consumer(address, "reader-of-mortals", habit, book, queue, source))
        super().__init__(peers)


def _make(address: tuple[str, int], queues: Sequence[QueueBook]) -> None:
    """Those that nobody deletes, once and for all."""
    with spec.SpecClient(address) as client:
        for queue in queues:
            queue.steps.append(Step(time.monotonic(), position=1))
            client.create(queue.name, queue.fate.json if queue.fate is not None else b"")
            queue.steps[-1].answered = time.monotonic()
