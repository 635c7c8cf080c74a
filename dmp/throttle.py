"""How many messages a queue may give out now (`x-rate`)."""

from __future__ import annotations

import math
from collections.abc import Callable

import attrs

from shared.rates import Rate, TokenBucket


@attrs.define(eq=False)
class Throttle:
    """The rate of one queue. `now`: monotonic seconds."""

    _now: Callable[[], float]
    _bucket: TokenBucket
    _waits: bool = attrs.field(default=False, init=False)
    """It has held up somebody since it was last looked at."""

    @classmethod
    def asked_for(cls, rate: Rate | None, now: Callable[[], float]) -> Throttle | None:
        """None: there is no rate."""
        return None if rate is None else cls(now, TokenBucket(rate))

    def allowance(self) -> int:
        """How many may be given out now."""
        count = self._bucket.allowance(self._now())
        self._waits = count < 1
        return max(count, 0)

    def take(self, count: int) -> None:
        """So many were given out."""
        self._bucket.take(count)

    @property
    def next_seconds(self) -> float:
        """In how many seconds who was held up may have one; inf: nobody was."""
        return self._bucket.wait_seconds if self._waits else math.inf
