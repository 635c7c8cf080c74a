"""What time and tries do to the messages of DMS: the options of a queue, and what may not be seen of them.

Whoever watches from outside knows bounds only: how old a message may be, how old it is at least, how often it
was delivered. The trials and the simulation judge what they see by the same rules.
"""

import json
import math
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from typing import Any

import attrs


@attrs.frozen
class Fate:
    """A queue's options, as CREATE_QUEUE has them. 0 and "": without."""

    ttl_ms: int = 0
    delay_ms: int = 0
    retry_ms: int = 0
    retry_max_ms: int = 0
    max_deliveries: int = 0
    dead_letter: str = ""

    @property
    def options(self) -> dict[str, Any]:
        return {name: value for name, value in attrs.asdict(self).items() if value}

    @property
    def json(self) -> bytes:
        return json.dumps(self.options).encode()

    def retry_seconds(self, deliveries: int) -> float:
        """From a NACK of the so-manieth delivery to the next."""
        return min(self.retry_ms << (deliveries - 1), max(self.retry_ms, self.retry_max_ms)) / 1000

    def may_be_past(self, most: float) -> bool:
        """Whether its lifetime may be over at an age of `most` seconds at the most."""
        return bool(self.ttl_ms) and most >= self.ttl_ms / 1000

    def may_be_exhausted(self, deliveries: float) -> bool:
        return bool(self.max_deliveries) and deliveries >= self.max_deliveries

    def may_be_dead(self, most: float, deliveries: float = math.inf) -> bool:
        """Of age, or delivered so often at the most (without a number: nobody counted)."""
        return self.may_be_past(most) or self.may_be_exhausted(deliveries)


@attrs.define
class Course:
    """A message's deliveries from its own queue: in the server's life `life`, and in all its lives."""

    life: int = 0
    deliveries: int = 0
    deliveries_ever: int = 0
    nacked: float = -math.inf
    """When the NACK of the last delivery was sent; -inf: none was."""

    def delivered(
        self, fate: Fate, life: int, now: float, *, most: float, least: float, late: float
    ) -> Iterator[str]:
        """What is wrong with a delivery, read at `now`.

        `most`, `least`: the message's age, at the most when it came and at the least when it was asked for.
        `late`: how much later than it is due something may happen.
        """
        if self.life != life:
            self.life, self.deliveries, self.nacked = life, 0, -math.inf
        self.deliveries += 1
        self.deliveries_ever += 1
        since_nack, self.nacked = now - self.nacked, -math.inf
        if most < fate.delay_ms / 1000:
            yield f"delivered after {most:.3f} s, before its delay is over"
        if fate.ttl_ms and least > fate.ttl_ms / 1000 + late:
            yield f"delivered after {least:.3f} s of service at least, past its lifetime"
        if fate.max_deliveries and self.deliveries > fate.max_deliveries:
            yield f"delivered for the {self.deliveries}. time"
        if fate.retry_ms and since_nack < fate.retry_seconds(max(self.deliveries - 1, 1)):
            yield f"delivered {since_nack:.3f} s after its NACK"


@attrs.define
class _Life:
    """It served at the earliest from `begun` on, certainly from `serving` on, and until `ended`."""

    begun: float
    serving: float = math.inf
    ended: float = math.inf


class Ages:
    """The lives of one server: how long it may have served between two moments, and how long at least.

    Lifetimes and delays count only while the server runs, and a crash may take back a little of what it knew
    of its age. So a client that sees the server begin and end knows two bounds. At most it is all the time of
    its lives in between. At least it is what an acknowledged record tells of the lives that are over, and all
    of the present one. Times are the caller's, in seconds.
    """

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
