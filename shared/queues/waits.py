"""How long messages wait in queues, from sampled ones: a clock read for each message would cost too much.

`tick` rises ten times a second, while messages come. A queue that gets messages in a new tick remembers when
the first of them came, and tells when that one goes out. So a queue is sampled ten times a second at most. A
run of messages costs two comparisons of numbers.
"""

from collections.abc import Awaitable, Callable
from typing import Protocol

from shared.metrics import Histogram

TICK_SECONDS = 0.1
NONE = 1 << 62
"""A `mark` beyond every message."""


class Sampled(Protocol):
    """A queue. `mark`: the number of the message that it watches; `marked_at`: when it came."""

    mark: int
    marked_at: float
    tick: int


class Event(Protocol):
    def set(self) -> None: ...

    async def wait(self) -> None: ...


class Waits:
    """Of all queues of one protocol. `now`: monotonic seconds."""

    def __init__(self, now: Callable[[], float]) -> None:
        self.tick = 1
        self.seconds = Histogram((0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1, 5, 10, 60, 300, 1800, 7200, 86400))
        self._now = now
        self._wake: Callable[[], object] = lambda: None

    def came(self, queue: Sampled, number: int) -> None:
        """The first message of a tick: the queue has seen `tick` now. One that it watches already goes on."""
        queue.tick = self.tick
        self._wake()
        if queue.mark == NONE:
            queue.mark, queue.marked_at = number, self._now()

    def went(self, queue: Sampled) -> None:
        """The message at `mark` goes out for the first time."""
        self.seconds.observe(self._now() - queue.marked_at)
        queue.mark = NONE

    async def run(self, sleep: Callable[[float], Awaitable[object]], new_event: Callable[[], Event]) -> None:
        """Until cancelled."""
        while True:
            seen = new_event()
            self._wake = seen.set
            await seen.wait()
            await sleep(TICK_SECONDS)
            self.tick += 1
