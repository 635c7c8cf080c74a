"""How many messages a queue may give out now (`x-rate`)."""

from __future__ import annotations

import math
from collections.abc import Callable

import attrs

from shared.rates import Rate, TokenBucket

ANY_NUMBER = 1 << 62


@attrs.define(eq=False)
class Throttle:
    """Of one queue; without a rate it holds nothing up. `now`: monotonic seconds."""

    _now: Callable[[], float]
    _bucket: TokenBucket | None = None
    _waits: bool = attrs.field(default=False, init=False)
    """It has held up somebody, and nothing was given out since."""

    def set_rate(self, rate: Rate | None) -> None:
        """Hold to this from now on; None: there is none."""
        self._bucket = None if rate is None else TokenBucket(rate)

    @property
    def is_on(self) -> bool:
        return self._bucket is not None

    def allowance(self) -> int:
        """How many may be given out now."""
        if self._bucket is None:
            return ANY_NUMBER
        count = self._bucket.allowance(self._now())
        self._waits = count < 1
        return max(count, 0)

    def take(self, count: int) -> None:
        """So many were given out."""
        if self._bucket is not None:
            self._bucket.take(count)

    @property
    def next_seconds(self) -> float:
        """In how many seconds who was held up may have one; inf: nobody was."""
        if self._bucket is None or not self._waits:
            return math.inf
        return self._bucket.wait_seconds
