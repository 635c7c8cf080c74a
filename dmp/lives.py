"""How long the messages of a queue live: by its argument, or by their own `expiration`.

A message is looked at when it is the next one out: one behind a longer-lived one waits for it to go.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import attrs

from shared.queues.runs import Run, join
from shared.turns import Turn

if TYPE_CHECKING:
    from collections.abc import Callable

    from dmp.message import Head
    from dmp.row import Row


@attrs.define(eq=False)
class Lives:
    """The lives of one queue's messages: those of its row, and of what waits. Times are of the broker's clock
    `now`, in seconds. `expired` gets what has left the row; `arm` is called behind each look at that."""

    _row: Row
    _now: Callable[[], float]
    _arm: Callable[[], None]
    expired: Callable[[list[Run]], None]
    _ttl_ms: int | None = attrs.field(default=None, init=False)
    some: bool = attrs.field(default=False, init=False)
    """Some message may expire."""
    behind: bool = attrs.field(default=False, init=False)
    """The next one out has expired, and waits for its turn to go."""
    _started: float = attrs.field(default=0.0, init=False)
    _started_ms: int = attrs.field(default=0, init=False)
    """When the queue's messages were found in its log, by the broker's clock and in Unix ms."""

    def define(self, ttl_ms: int | None) -> None:
        """Each message that comes lives so long, at most."""
        self._ttl_ms = ttl_ms
        self.some = self.some or ttl_ms is not None

    def end(self, head: Head, since: float) -> float:
        """When messages are too old that live from then on; inf: never."""
        ttls_ms = [ms for ms in (head.ttl_ms, self._ttl_ms) if ms is not None]
        if not ttls_ms:
            return math.inf
        self.some = True
        return since + min(ttls_ms) / 1000

    def start(self, now_ms: int) -> None:
        """What stands in the queue's log was found at this Unix time."""
        self._started, self._started_ms = self._now(), now_ms

    def end_of_found(self, head: Head) -> float:
        """As `end`, of messages that a start has found: they live since they came, or were due. An older
        version did not write that down: then since the start."""
        age_ms = self._started_ms - max(head.came_ms, head.due_ms or 0) if head.came_ms else 0
        return self.end(head, self._started - max(age_ms, 0) / 1000)

    def expire(self) -> None:
        """Messages at the front that are too old leave, some at a time: the timers bring the next."""
        row, now = self._row, self._now()
        expired: list[Run] = []
        turn = Turn()
        while row.load_front() and (front := row.front()) is not None and front.expires <= now:
            join(expired, row.take_expired())
            if turn.over_now():
                break
        self.behind = (front := row.front()) is not None and front.expires <= now
        self._arm()
        if expired:
            self.expired(expired)
