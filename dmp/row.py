"""The row of a queue: the messages that are ready, the next one out first.

In memory the row is read from the front, and gets new messages at the end. Those that come back go before all
that were never given out; with priorities, before those of their own. So each has its old place. Of a durable
queue only the front need be in memory. The rest, which is *cold*, is in the log alone, and is read back when
the front has gone. One that has waited for its time in the log alone is cold on its own: a run without a body
has its place, and it is read back when it is about the next one out.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

import attrs

from dmp.cold_records import IN_ROW, ColdHead
from dmp.memory import Memory
from shared.queues.core import HOT_LEAST_BYTES
from shared.queues.keys import Keys
from shared.queues.priorities import Priorities
from shared.queues.runs import Ready, Run
from shared.turns import ITEMS

if TYPE_CHECKING:
    from dmp.queue_log import Cold, QueueLog


@attrs.define(eq=False)
class Row:
    """All that is ready in one queue. `body_bytes`, `cost_bytes`: of the messages in memory. `_read_back`:
    have those in memory that are cold on their own, and have places by these runs; maybe at once."""

    _memory: Memory
    _read_back: Callable[[Sequence[Run]], None]
    ready: Ready | Priorities | Keys
    """The messages in memory; the queue's."""
    key_header: bytes = b""
    keys: Keys | None = attrs.field(init=False)
    """`ready`, where messages' keys count. They are in that header."""
    log: "QueueLog | None" = attrs.field(default=None, init=False)
    """The queue's, where it is durable."""
    cold: "Cold | None" = attrs.field(default=None, init=False)
    body_bytes: int = attrs.field(default=0, init=False)
    cost_bytes: int = attrs.field(default=0, init=False)
    _when_loaded: list[Callable[[], None]] = attrs.field(factory=list, init=False)

    def __attrs_post_init__(self) -> None:
        self.keys = self.ready if isinstance(self.ready, Keys) else None

    def __len__(self) -> int:
        return self.ready.count if self.cold is None else self.ready.count + self.cold.count

    @property
    def all_body_bytes(self) -> int:
        """The bytes of the bodies of all that is ready, in memory and on disk."""
        cold, log = self.cold, self.log
        on_disk = 0 if log is None else log.waiting.due_body_bytes
        return self.body_bytes + on_disk + (0 if cold is None else cold.body_bytes)

    @property
    def has_cold(self) -> bool:
        """Whether some of the row is in the log alone: what comes now needs a record."""
        return self.cold is not None and self.cold.count > 0

    def add(self, run: Run, *, may_cool: bool) -> bool:
        """Put messages at the end. They are cold where others before them are. So they are, too, where they
        may, and memory is scarce, and some of the row waits in memory. Returns whether they are in memory."""
        cold = self.cold
        if cold is not None and (
            cold.count
            or (
                may_cool
                and self.cost_bytes > HOT_LEAST_BYTES
                and (self._memory.scarce or ((payer := run.head.payer) is not None and payer.scarce))
                and run.offset >= 0
            )
        ):
            cold.add(run)
            return False
        if self.log is not None:
            self.log.keep(run)
        self._count(run, 1)
        self._put(run)
        return True

    def load(self, runs: Iterable[Run]) -> None:
        """Messages that were cold are in memory now, or a start has found them."""
        for run in runs:
            if self._is_behind_cold(run):
                self.put_back((run,))
            else:
                self._count(run, 1)
                self._put(run)

    def put_due(self, message: Run) -> None:
        """A message that waited in the log alone is ready, and stays there."""
        head: ColdHead = message.head
        run = Run(IN_ROW, [b""], message.first)
        if self.keys is None:
            self.ready.requeue(run, head.priority)
        else:
            self.keys.requeue(run, head.priority, head.text_in(self.key_header))

    def read(self, run: Run, message: Run) -> None:
        """A message that was cold on its own is in memory now, in its place."""
        run.head, run.bodies, run.tries = message.head, message.bodies, message.tries
        run.offset, run.stride, run.expires = message.offset, message.stride, message.expires
        self._count(run, 1)

    def _put(self, run: Run) -> None:
        if self.keys is None:
            self.ready.add(run, run.head.noted.priority)
        else:
            self.keys.add(run, run.head.noted.priority, run.head.text_in(self.key_header))

    def release(self, runs: Iterable[Run]) -> None:
        """Messages that were taken have left, or come back: others of their keys may be next."""
        if self.keys is not None:
            for run in runs:
                self.keys.release(run.head.text_in(self.key_header), len(run.bodies))

    def waits(self, runs: Iterable[Run]) -> None:
        """Messages that were released wait for their time."""
        if self.keys is not None:
            for run in runs:
                key = run.head.text_in(self.key_header)
                for number in run.numbers:
                    self.keys.waits(number, key, tried=run.head.tries > 0)

    def waits_no_more(self, runs: Iterable[Run]) -> None:
        """Messages do not wait for their time any more."""
        if self.keys is not None:
            for run in runs:
                key = run.head.text_in(self.key_header)
                for number in run.numbers:
                    self.keys.waits_no_more(number, key)

    def take_out(self, number: int) -> Run | None:
        """Take a message out of those in memory. None: it is not there."""
        run = self.ready.take_out(number)
        if run is not None:
            self._count(run, -1)
        return run

    def front(self) -> Run | None:
        """The run of the next message that may be taken, if it is in memory; None: there is none."""
        run = self.ready.first() if self.ready.count else None
        return None if run is None or run.head.cold or self._is_behind_cold(run) else run

    def _is_behind_cold(self, run: Run) -> bool:
        cold = self.cold
        return cold is not None and cold.count > 0 and cold.first < run.first

    @property
    def next_is_cold(self) -> bool:
        """Whether the next message that may be taken is in the log alone."""
        run = self.ready.first() if self.ready.count else None
        if run is None:
            return not self.ready.count and self.has_cold
        return run.head.cold or self._is_behind_cold(run)

    def oldest(self) -> Run | None:
        """About the oldest run that has a place in memory: the next one out, or where none may be taken one
        that waits for its key."""
        first = self.ready.first() if self.ready.count else None
        return self.keys.held_up() if first is None and self.keys is not None else first

    def put_back(self, runs: Iterable[Run]) -> None:
        """Messages that were taken return to their places."""
        for run in runs:
            self._count(run, 1)
            if self.keys is None:
                self.ready.requeue(run, run.head.noted.priority)
            else:
                self._put(run)

    def _count(self, run: Run, sign: int) -> None:
        head, count = run.head, sign * len(run.bodies)
        self.body_bytes += head.body_bytes * count
        self.cost_bytes += head.cost_bytes * count

    def take_run(self, most: int) -> Run:
        """Take up to `most` of the next ones out, of one run. Some must be in memory."""
        run = self.ready.take(most)
        self._count(run, -1)
        return run

    def take_expired(self) -> Run:
        """Take some of one run out, which is the next one and has expired: that takes no turn of its key."""
        run = self.ready.take(ITEMS) if self.keys is None else self.keys.take(ITEMS, keeps_turn=True)
        self._count(run, -1)
        return run

    def take_surplus(self, most: int) -> Run | None:
        """Take up to `most` of the next ones out, of one run; or the oldest, where all wait for their keys.
        None: none is in memory."""
        if self.load_front():
            return self.take_run(most)
        if self.keys is None or not self.keys.count or self.next_is_cold:
            return None
        oldest = self.keys.oldest()
        if oldest.head.cold:
            self._read_back((oldest,))
            if oldest.head.cold:
                return None
        run = self.keys.take_oldest(most)
        self._count(run, -1)
        return run

    def take(self, most: int, body_bytes_most: float = math.inf, now: float = -math.inf) -> list[Run]:
        """Take some of the next ones out, up to `most`, and so many bytes of bodies and one message: as far
        as they are in memory, and have not expired by `now`."""
        ready, cold = self.ready, self.cold
        runs: list[Run] = []
        on_disk = self._on_disk > 0
        first_cold = math.inf if cold is None or not cold.count else cold.first
        while most > 0 and ready.count and body_bytes_most >= 0:
            front = ready.first()
            if front is None or front.expires <= now:
                break
            if on_disk and (front.head.cold or front.first > first_cold):
                break
            fitting = most
            if most > 1 and ready.count > 1 and body_bytes_most < math.inf:
                fitting = min(most, int(body_bytes_most) // max(front.head.body_bytes, 1) + 1)
            run = self.take_run(fitting)
            count = len(run.bodies)
            most -= count
            body_bytes_most -= run.head.body_bytes * count
            runs.append(run)
        return runs

    def clear(self) -> Iterator[list[Run]]:
        """Nothing is ready any more. Returns what was in memory, which is still to be freed, as
        `Ready.clear`."""
        self.body_bytes = self.cost_bytes = 0
        return self.ready.clear()

    def drop_cold(self) -> tuple[tuple[int, int] | None, list[bytes]]:
        """What is cold is there no more. Returns its numbers, from the first to the end, and the references
        of its large bodies."""
        cold = self.cold
        if cold is None or not cold.count:
            return None, []
        numbers, large = (cold.first, cold.end), [*cold.large.values()]
        if self.log is not None:
            self.log.cold_left()
        cold.large = {}
        cold.clear()
        self.tell_loaded()
        return numbers, large

    def load_front(self) -> bool:
        """Have the next message in memory; whether something may be taken there now."""
        if self.front() is not None:
            return True
        before = -1
        while self.next_is_cold and before != self._on_disk:  # what was read may wait, or be lost
            before = self._on_disk
            run = self.ready.first() if self.ready.count else None
            if run is not None and not self._is_behind_cold(run):
                self._read_back(self.ready.upcoming(ITEMS))
            elif self.cold is not None:
                self.cold.fetch()
        return self.front() is not None

    @property
    def _on_disk(self) -> int:
        """How many messages are in the log alone."""
        cold, log = self.cold, self.log
        return (0 if cold is None else cold.count) + (0 if log is None else len(log.waiting.due))

    @property
    def is_loading(self) -> bool:
        """Whether the next message is on its way from the log."""
        cold, log = self.cold, self.log
        reading = (cold is not None and cold.reading) or (log is not None and bool(log.waiting.reading))
        return reading and self.next_is_cold

    def when_loaded(self, callback: Callable[[], None]) -> None:
        """Call it once, when what is on its way from the log is there."""
        self._when_loaded.append(callback)

    def tell_loaded(self) -> None:
        waiting, self._when_loaded = self._when_loaded, []
        for callback in waiting:
            callback()
