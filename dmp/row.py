"""The row of a queue: the messages that are ready, the next one out first.

In memory the row is read from the front, and gets new messages at the end. Those that come back go before all
that were never given out; with priorities, before those of their own. So each has its old place. Of a durable
queue only the front need be in memory. The rest, which is *cold*, is in the log alone, and is read back when
the front has gone.
"""

import math
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

import attrs

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
    """All that is ready in one queue. `body_bytes`, `cost_bytes`: of the messages in memory."""

    _memory: Memory
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
        return self.body_bytes if self.cold is None else self.body_bytes + self.cold.body_bytes

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
        """Messages that were cold are in memory now."""
        for run in runs:
            self._count(run, 1)
            self._put(run)

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
        """The run of the next message that may be taken, as far as it is in memory; None: there is none."""
        return self.ready.first() if self.ready.count else None

    def oldest(self) -> Run | None:
        """About the oldest run in memory: the next one out, or where none may be taken one that waits for its
        key."""
        front = self.front()
        return self.keys.held_up() if front is None and self.keys is not None else front

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
        if self.keys is None or not self.keys.count:
            return None
        run = self.keys.take_oldest(most)
        self._count(run, -1)
        return run

    def take(self, most: int, body_bytes_most: float = math.inf, now: float = -math.inf) -> list[Run]:
        """Take some of the next ones out, up to `most`, and so many bytes of bodies and one message: as far
        as they are in memory, and have not expired by `now`."""
        ready = self.ready
        runs: list[Run] = []
        while most > 0 and ready.count and body_bytes_most >= 0:
            front = ready.first()
            if front is None or front.expires <= now:
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
        """Have some of the row in memory, where nothing is; whether something may be taken there now."""
        if not self.ready.count and self.cold is not None:
            before = -1
            while not self.ready.count and before != self.cold.count:  # what was read may wait for its time
                before = self.cold.count
                self.cold.fetch()
        return self.front() is not None

    @property
    def is_loading(self) -> bool:
        """Whether the next message is on its way from the log."""
        return not self.ready.count and self.cold is not None and self.cold.reading

    def when_loaded(self, callback: Callable[[], None]) -> None:
        """Call it once, when what is on its way from the log is there."""
        self._when_loaded.append(callback)

    def tell_loaded(self) -> None:
        waiting, self._when_loaded = self._when_loaded, []
        for callback in waiting:
            callback()
