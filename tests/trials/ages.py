"""How long a server may have served between two moments, and how long at least.

What happens to messages after a while (their lifetime is over, their delay) counts only while the server
runs, and a crash may take back a little of what it knew of its age. So a client that sees the server begin
and end knows two bounds: at most all the time of its lives in between; at least what a record that was
acknowledged has told of the lives that are over, and all of the present one.
"""

import math
from bisect import bisect_right
from collections.abc import Sequence

import attrs


@attrs.define
class _Life:
    """It served at the earliest from `begun` on, certainly from `serving` on, and until `ended`."""

    begun: float
    serving: float = math.inf
    ended: float = math.inf


class Ages:
    """The lives of one server; times are the caller's, in seconds."""

    def __init__(self) -> None:
        self._lives: list[_Life] = []

    @property
    def life(self) -> int:
        """Which one it is."""
        return len(self._lives)

    def begins(self, now: float) -> None:
        """It is started."""
        self._lives.append(_Life(now))

    def serves(self, now: float) -> None:
        """It has answered."""
        life = self._lives[-1]
        life.serving = min(life.serving, now)

    def ends(self, now: float) -> None:
        """However; it may be that it had ended before."""
        self._lives[-1].ended = min(self._lives[-1].ended, now)

    def most(self, since: float, until: float) -> float:
        """No more time of service lies between."""
        return sum(max(min(life.ended, until) - max(life.begun, since), 0.0) for life in self._lives)

    def least(self, since: float, until: float, kept: Sequence[float]) -> float:
        """No less does. `kept`: moments, in order, whose age is on disk for certain."""
        passed = 0.0
        for life in self._lives:
            first = max(life.serving, since)
            last = until
            if life.ended <= until:
                at = bisect_right(kept, life.ended)
                last = kept[at - 1] if at else -math.inf
            passed += max(last - first, 0.0)
        return passed
