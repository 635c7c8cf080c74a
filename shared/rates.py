"""Rates of messages: how they are written, and a bucket of tokens that keeps one."""

import math
import re
from typing import Self

import attrs

RATE_MAX = 10_000_000
"""More messages a second than any machine passes on."""
_ROUNDING = 1e-9
"""A token of which so little lacks is whole: the wait for the rest would be shorter than the clock tells."""
_RATE = re.compile(r"(\d+(?:\.\d+)?)/s", re.ASCII)


@attrs.frozen
class Rate:
    """Messages a second, written as `1000/s`."""

    per_second: float

    @classmethod
    def parse(cls, text: str) -> Self:
        """Raises ValueError."""
        match = _RATE.fullmatch(text) if len(text) < 32 else None
        rate = float(match[1]) if match else 0.0
        if not 0 < rate <= RATE_MAX:
            raise ValueError('is so many messages a second, as "1000/s"')
        return cls(rate)

    def __str__(self) -> str:
        return f"{self.per_second:g}/s"


@attrs.define(eq=False)
class TokenBucket:
    """What a rate allows now: a second of it at most, and one message at least. It starts full.

    Times are monotonic seconds.
    """

    rate: Rate
    _tokens: float = attrs.field(init=False)
    _filled_at: float = attrs.field(default=-math.inf, init=False)

    def __attrs_post_init__(self) -> None:
        self._tokens = self._size

    @property
    def _size(self) -> float:
        return max(self.rate.per_second, 1.0)

    def allowance(self, now: float) -> int:
        """How many messages may pass now."""
        if now > self._filled_at:
            if self._filled_at > -math.inf:
                filled = self._tokens + (now - self._filled_at) * self.rate.per_second
                self._tokens = min(self._size, filled)
            self._filled_at = now
        return int(self._tokens + _ROUNDING)

    def take(self, count: int) -> None:
        """So many have passed."""
        self._tokens -= count

    def give_back(self, count: int) -> None:
        """So many have not passed after all."""
        self._tokens += count

    @property
    def wait_seconds(self) -> float:
        """Seconds from the last look until one message may pass; 0: it may now."""
        lacks = 1 - self._tokens
        return lacks / self.rate.per_second if lacks > _ROUNDING else 0.0
