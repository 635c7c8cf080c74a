"""How long messages wait in queues, measured on samples: a clock read per message would cost too much.

`tick` rises ten times a second while messages come. The first message that a queue gets in a new tick is the
sample. The queue notes its time, and reports its wait when it goes out. So each queue takes at most ten
samples a second, and a run of messages costs two comparisons of numbers.
"""

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Protocol

from shared.metrics import Histogram

if TYPE_CHECKING:
    from shared.queues.core import RunQueue

TICK_SECONDS = 0.1
NONE = 1 << 62
"""The `mark` of a queue that has no sample: above every message number. Else it is the sample's number, and
`marked_at` when that came."""


class WakeUp(Protocol):
    def set(self) -> None: ...

    async def wait(self) -> None: ...


class Waits:
    """The waits of all queues of one protocol. `now`: monotonic seconds."""

    def __init__(self, now: Callable[[], float]) -> None:
        self.tick = 1
        self.seconds = Histogram((0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1, 5, 10, 60, 300, 1800, 7200, 86400))
        self._now = now
        self._wake: Callable[[], object] = lambda: None

    def take_sample(self, queue: "RunQueue", number: int) -> None:
        """The queue got its first message of a tick. A sample that is still waiting stays the sample."""
        queue.tick = self.tick
        self._wake()
        if queue.mark == NONE:
            queue.mark, queue.marked_at = number, self._now()

    def count_sample(self, queue: "RunQueue") -> None:
        """The sample goes out for the first time: count its wait."""
        self.seconds.observe(self._now() - queue.marked_at)
        queue.mark = NONE

    async def run(self, sleep: Callable[[float], Awaitable[object]], new_event: Callable[[], WakeUp]) -> None:
        """Raise `tick` ten times a second, until cancelled."""
        while True:
            seen = new_event()
            self._wake = seen.set
            await seen.wait()
            await sleep(TICK_SECONDS)
            self.tick += 1
