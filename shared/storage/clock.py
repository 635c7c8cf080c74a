"""Time as the storage core sees it: one wall clock for log times, one monotonic for everything else."""

import time
from typing import Protocol


class Clock(Protocol):
    """What time it is."""

    def wall_ms(self) -> int:
        """Unix milliseconds; may jump."""

    def monotonic(self) -> float:
        """Seconds; never jumps."""


class SystemClock:
    """The machine's clocks."""

    def wall_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic(self) -> float:
        return time.monotonic()
