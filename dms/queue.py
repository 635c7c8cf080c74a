"""One queue: its messages in order, who waits for them, who holds them.

Theory of operation. Every message has a *sequence*, counted up from 1 in order of arrival; it keeps it for
life. Those never delivered stand in a row: sequences `head` to `tail`. From `end` on the disk has not
confirmed them, and nobody may see them. `bodies` are those of the row's front that are in memory; what is
behind is *cold*, and is read back from the log when its turn comes, so a deep queue costs nothing a message.
What was delivered and came back is in `back` by its sequence, and those of it that may go out are in the heap
`returned`: all are older than the row, so they go first, and so everything has its old place. What is held
is known to the connection that holds it, and here only counted.

Waiting CONSUMEs stand in `waiting` in the order of arrival. Either messages are ready, or somebody waits,
never both: `give` sees to that. With a keeper (`dms.keeper`) every change is also a record in the queue's
log.
"""

import math
from collections import deque
from collections.abc import Sequence
from heapq import heappop, heappush
from typing import TYPE_CHECKING

from dms.messages import Out
from dms.options import Options

if TYPE_CHECKING:
    from dms.broker import Broker
    from dms.consuming import Consuming
    from dms.keeper import Keeper
    from dms.mortality import Mortality
    from dms.wire import Refusal
    from shared.storage.store import Ticket

EVER = 1 << 62
BODY_OVERHEAD_BYTES = 64
"""A bytes object's header, its slot in the deque, the allocator's rounding."""


class Wait:
    """CONSUMEs of one connection that came together and wait: `ids` from `at` on."""

    __slots__ = ("at", "deadline", "ids", "session")

    def __init__(self, session: "Consuming", ids: Sequence[bytes], deadline: float) -> None:
        self.session = session
        self.ids = ids
        self.at = 0
        self.deadline = deadline

    @property
    def left(self) -> int:
        return len(self.ids) - self.at

    def crashed(self, error: Exception) -> None:
        """Its session did, on another's time or the store's: this wait ends, and this connection."""
        self.at = len(self.ids)
        self.session.connection.crashed(error)


class Queue:
    """One queue, from its creation to its end."""

    __slots__ = (
        "back",
        "back_bytes",
        "bodies",
        "broker",
        "deadline",
        "deleted",
        "depth",
        "end",
        "head",
        "heaped",
        "held",
        "hot_bytes",
        "keeper",
        "mortality",
        "name",
        "options",
        "released",
        "returned",
        "tail",
        "text",
        "waiting",
    )

    def __init__(self, broker: "Broker", name: str, options: Options) -> None:
        self.broker = broker
        self.text = name
        self.name = name.encode()
        self.options = options
        self.keeper: Keeper | None = None
        self.mortality: Mortality | None = None
        self.deleted = False
        self.depth = 0
        """All that is in it, held deliveries counted, also what the disk has not confirmed yet."""
        self.held = 0
        self.head = self.end = self.tail = 1
        self.released = EVER
        """Below this sequence nothing is delayed any more."""
        self.bodies: deque[bytes] = deque()
        self.hot_bytes = 0
        self.back: dict[int, tuple[bytes, int]] = {}
        """By sequence: body, and how often it was delivered."""
        self.back_bytes = 0
        """What it takes in memory."""
        self.returned: list[int] = []
        self.waiting: deque[Wait] = deque()
        self.deadline = self.heaped = math.inf  # for the broker's Deadlines

    def __repr__(self) -> str:
        return f"<Queue {self.text!r} {self.head}..{self.end}..{self.tail}, {len(self.back)} back>"

    @property
    def cold(self) -> bool:
        """Whether some of the row is not in memory."""
        return self.head + len(self.bodies) < self.end

    @property
    def room(self) -> int:
        """How many messages may still come."""
        return self.options.depth - self.depth

    # -- messages come

    def produce(self, bodies: Sequence[bytes], size: int) -> "Ticket | None":
        """Add messages, as many as `room` at most; `size`: the bytes of all. None: done. Raises Refusal."""
        count = len(bodies)
        ticket = None
        if self.keeper is not None and not self.keeper.detached:
            ticket = self.keeper.enqueue(bodies, size)
        self.broker.counts.produced += count
        self.added(count)
        if ticket is None:
            if self.broker.durable is not None:
                self.broker.unkept(count)
            self.show(bodies, size)
            if self.waiting:
                self.give()
        return ticket

    def added(self, count: int) -> None:
        """So many have come."""
        self.depth += count
        self.tail += count
        if self.mortality is not None:
            self.mortality.came(self.tail)

    def show(self, bodies: Sequence[bytes], size: int) -> None:
        """The next of the row may be seen, and stay in memory."""
        if self.keeper is not None and (self.cold or self.keeper.overflow):
            self.keeper.overflow.append((bodies, size))
            return
        self.bodies.extend(bodies)
        self.end += len(bodies)
        self.heat(size + BODY_OVERHEAD_BYTES * len(bodies))

    def took_back(self, first: int, count: int) -> None:
        """The newest, from `first` on, have not come after all."""
        self.tail = first
        self.broker.counts.produced -= count
        if self.mortality is not None:
            self.mortality.took_back(first)
        self.left(count)

    def heat(self, size: int) -> None:
        self.hot_bytes += size
        self.broker.hot_bytes += size

    def keep_back(self, seq: int, body: bytes, deliveries: int) -> None:
        """A message is behind the row's front, and nobody holds it."""
        self.back[seq] = body, deliveries
        size = len(body) + BODY_OVERHEAD_BYTES
        self.back_bytes += size
        self.broker.hot_bytes += size

    def take_out(self, seq: int) -> tuple[bytes, int]:
        """It is no longer there: its body, and how often it was delivered."""
        entry = self.back.pop(seq)
        size = len(entry[0]) + BODY_OVERHEAD_BYTES
        self.back_bytes -= size
        self.broker.hot_bytes -= size
        return entry

    # -- messages go

    def line_up(self, wait: Wait) -> None:
        """CONSUMEs; they are served at once, or wait."""
        waiting = self.waiting
        while waiting and waiting[0].at == len(waiting[0].ids):  # they have ended
            waiting.popleft()
        waiting.append(wait)
        if len(waiting) == 1:
            self.give()

    def give(self) -> None:
        """Serve those who wait, in their order, as far as messages are ready."""
        waiting, bodies = self.waiting, self.bodies
        while waiting:
            wait = waiting[0]
            want = len(wait.ids) - wait.at
            if not want:
                waiting.popleft()
                continue
            if self.returned:
                seq = heappop(self.returned)
                body, deliveries = self.take_out(seq)
                self.held += 1
                self.broker.counts.redelivered += 1
                if self.keeper is not None:
                    self.keeper.delivered(seq, 1)
                out: Out = self, seq, body, deliveries + 1
                try:
                    wait.session.deliver_again(wait, out)
                except Exception as error:
                    self._not_taken(wait, (out,), error)
                continue
            ready = len(bodies)
            if self.released < self.head + ready:
                ready = self.released - self.head
            if ready <= 0:
                if self.keeper is not None and not bodies and self.cold and self.released > self.head:
                    self.keeper.reading.fetch()  # which may have brought some at once
                    if bodies:
                        continue
                return
            taken = self._take(min(ready, want))
            seq = self.head - len(taken)
            try:
                wait.session.deliver(wait, self, seq, taken)
            except Exception as error:
                outs = [(self, at, body, 1) for at, body in enumerate(taken, start=seq)]
                self._not_taken(wait, outs, error)

    def _not_taken(self, wait: Wait, outs: Sequence[Out], error: Exception) -> None:
        """A session crashed over a delivery: what it does not hold, and so will not give back, comes back."""
        wait.crashed(error)
        held = {out[1] for out in wait.session.held.values() if out[0] is self}
        self.put_back([out for out in outs if out[1] not in held], nacked=False)

    def take_next(self) -> bytes | None:
        """The first of the row, now held by somebody, if it is ready and nothing and nobody is before it."""
        bodies, seq = self.bodies, self.head
        if not bodies or self.waiting or self.returned or seq >= self.released:
            return None
        keeper = self.keeper
        if keeper is not None:
            if keeper.damaged is not None:
                return None
            keeper.delivered(seq, 1)
        self.heat(-(self.hot_bytes // len(bodies)))
        self.head = seq + 1
        self.held += 1
        return bodies.popleft()

    def _take(self, count: int) -> list[bytes]:
        """The front of the row, now held by somebody."""
        bodies = self.bodies
        seq = self.head
        if count >= len(bodies):
            taken = list(bodies)
            bodies.clear()
            self.heat(-self.hot_bytes)
        else:
            self.heat(-(self.hot_bytes * count // len(bodies)))
            taken = [bodies.popleft()] if count == 1 else [bodies.popleft() for _ in range(count)]
        count = len(taken)
        self.head = seq + count
        self.held += count
        if self.keeper is not None:
            self.keeper.delivered(seq, count)
        return taken

    def acked(self, session: "Consuming", ids: Sequence[bytes], outs: Sequence[Out]) -> "Ticket | None":
        """Messages of this queue have left it. None: done. Raises Refusal: they have not."""
        ticket = None
        if self.keeper is not None and not self.keeper.detached:
            ticket = self.keeper.ack(session, ids, outs)
        count = len(outs)
        self.held -= count
        self.broker.counts.acked += count
        self.left(count)
        if ticket is None and self.broker.durable is not None:
            self.broker.unkept(count)
        return ticket

    def put_back(self, outs: Sequence[Out], *, nacked: bool) -> None:
        """Messages come back to their old places; `nacked`: their consumer said so."""
        if self.deleted:
            return
        self.held -= len(outs)
        self.broker.counts.returned += len(outs)
        for _, seq, body, deliveries in outs:
            self.keep_back(seq, body, deliveries)
            if self.mortality is not None:
                self.mortality.returned(seq, deliveries, nacked=nacked)
            else:
                heappush(self.returned, seq)
        if self.keeper is not None:
            self.keeper.returned([seq for _, seq, _, _ in outs], nacked=nacked)
        if self.mortality is not None:
            self.mortality.bury()
        if self.waiting:
            self.give()

    def left(self, count: int) -> None:
        """So many are in it no more: others' dead may have waited for the room."""
        self.depth -= count
        if self.broker.parked:
            self.broker.has_room(self)

    def pass_over(self, count: int) -> None:
        """The first of the row, none of which is in memory, are lost."""
        self.head += count
        self.left(count)
        if self.mortality is not None:
            self.mortality.passed_over()

    def held_again(self, count: int) -> None:
        """ACKs of so many were not made after all, and their connections hold the messages again."""
        self.depth += count
        self.held += count
        self.broker.counts.acked -= count

    def on_time(self, now_ms: int) -> None:
        """It is time for something."""
        if self.deleted:
            return
        if self.keeper is not None:
            self.keeper.flush_notes()
        if self.mortality is not None:
            self.mortality.on_time(now_ms)

    # -- the end of many

    def take_ready(self) -> list[int]:
        """Take out of memory all that nobody holds, and return the sequences of what was in `back`.

        The row up to `end` goes too. What the disk has not confirmed yet stays.
        """
        seqs = sorted(self.back)
        gone = len(seqs) + self.end - self.head
        self.back.clear()
        self.returned.clear()
        self.bodies.clear()
        self.cool()
        self.head = self.end
        self.left(gone)
        return seqs

    def cool(self) -> None:
        """Nothing of it counts as memory any more."""
        self.broker.hot_bytes -= self.hot_bytes + self.back_bytes
        self.hot_bytes = self.back_bytes = 0

    def end_waits(self, refusal: "Refusal") -> None:
        """Answer all who wait."""
        waiting = self.waiting.copy()
        self.waiting.clear()
        for wait in waiting:
            if wait.left:
                try:
                    wait.session.end_wait(wait, refusal)
                except Exception as error:
                    wait.crashed(error)
