"""What a seed settles: time, chance, the order of tasks; and the trace of what happened."""

import hashlib
import random
import sys
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from unittest.mock import patch

import structlog
import trio
import trio.testing
from trio._core import _run as trio_run

from tests.support.promises import BrokenPromiseError

TRACE_EVENTS_KEPT = 400
PASSES_MAX = 20_000
"""Of trio's loop at one moment of virtual time; a hundred are usual."""


class Trace:
    """Every event in order: all of them in the digest, the last ones kept to be read."""

    def __init__(self, echo: bool = False) -> None:
        self.last: deque[str] = deque(maxlen=TRACE_EVENTS_KEPT)
        self.events = 0
        self._hash = hashlib.blake2b(digest_size=8)
        self._echo = echo

    def add(self, event: str) -> None:
        self.events += 1
        self._hash.update(event.encode())
        self.last.append(event)
        if self._echo:
            print(event, flush=True)

    @property
    def digest(self) -> str:
        return self._hash.hexdigest()


class World:
    """The surroundings of one run. `tick()` orders everything that clients do and see."""

    def __init__(self, seed: int, *, echo: bool = False) -> None:
        self.seed = seed
        self.clock = trio.testing.MockClock(autojump_threshold=0)
        self.trace = Trace(echo)
        self.wall_offset_ms = 1_700_000_000_000
        self.failures: list[Exception] = []
        """What the server logged with a traceback: bugs that it survived."""
        self.on_answer: Callable[[], None] = lambda: None
        """Called when a client has had a good answer to what changes something."""
        self.on_sight: Callable[[], None] = lambda: None
        """Called when a client has read what nobody knew yet to be written."""
        self.on_wall_set: Callable[[int, int], None] = lambda before_ms, after_ms: None
        """Called when the wall clock is set, with what it showed and what it shows."""
        self._times = [0.0]
        self._wall_peak_ms = 0

    def source(self, purpose: str) -> random.Random:
        """A random source of its own for each purpose, so that one more draw here changes nothing there."""
        return random.Random(f"{self.seed}/{purpose}")

    def tick(self) -> int:
        self._times.append(self.now())
        return len(self._times) - 1

    def time_of(self, tick: int) -> float:
        """When it was, in virtual seconds."""
        return self._times[tick]

    def now(self) -> float:
        """Virtual seconds; the same as trio.current_time(), but callable from anywhere."""
        return self.clock.current_time()

    def say(self, event: str) -> None:
        self.trace.add(f"{self.now():10.6f} {event}")

    # -- the store's Clock

    def wall_ms(self) -> int:
        return self.wall_offset_ms + int(self.now() * 1000)

    def monotonic(self) -> float:
        return self.now()

    @property
    def wall_peak_ms(self) -> int:
        """The latest time that the wall clock has shown."""
        return max(self._wall_peak_ms, self.wall_ms())

    def set_wall(self, by_ms: int) -> None:
        self._wall_peak_ms, before_ms = self.wall_peak_ms, self.wall_ms()
        self.wall_offset_ms += by_ms
        if by_ms:
            self.on_wall_set(before_ms, before_ms + by_ms)

    # -- the server's log

    @contextmanager
    def hearing_logs(self) -> Iterator[None]:
        """Within it all that is logged goes into the trace; an error with a traceback is a failure."""
        before = structlog.get_config()
        structlog.configure(processors=[self._hear], cache_logger_on_first_use=False)
        try:
            yield
        finally:
            structlog.configure(**before)

    def _hear(self, logger: object, method: str, event: structlog.typing.EventDict) -> str:
        told = event.pop("exc_info", None)
        error = sys.exc_info()[1] if told is True else told
        self.say(f"log {method}: {event}")
        if isinstance(error, Exception):
            self.failures.append(error)
        raise structlog.DropEvent

    # -- running

    def run(self, main: Callable[[], Awaitable[None]]) -> None:
        """Run `main` under trio, every choice of the scheduler drawn from the seed."""
        patience = Patience(self)

        async def main_with_patience() -> None:
            with patience.scope:
                await main()

        with seeded_scheduling(self.seed), self.hearing_logs():
            trio.run(main_with_patience, clock=self.clock, instruments=[patience])
        if patience.scope.cancelled_caught:
            raise BrokenPromiseError("tasks keep each other busy, and no time passes")


class Patience(trio.abc.Instrument):
    """Ends a run in which time stands still: everybody is busy, and nobody waits for anything."""

    def __init__(self, world: World) -> None:
        self.scope = trio.CancelScope()
        self._world = world
        self._now = -1.0
        self._passes = 0

    def before_io_wait(self, timeout: float) -> None:
        now = self._world.now()
        if now != self._now:
            self._now = now
            self._passes = 0
        else:
            self._passes += 1
            if self._passes == PASSES_MAX:
                self.scope.cancel()


@contextmanager
def seeded_scheduling(seed: int) -> Iterator[None]:
    """Within it the order in which trio runs tasks that are ready is shuffled by `seed` alone.

    The one place that reaches into trio: its runner shuffles each batch of ready tasks with a random source
    of its own module, after sorting them by age where this switch (made for hypothesis) is on. Without the
    switch the order hangs on memory addresses, by way of sets of tasks.
    """
    state = trio_run._r.getstate()
    trio_run._r.seed(seed)
    try:
        with patch.object(trio_run, "_ALLOW_DETERMINISTIC_SCHEDULING", True):
            yield
    finally:
        trio_run._r.setstate(state)
