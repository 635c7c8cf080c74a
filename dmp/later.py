"""The messages of a queue that wait for their time, and are not ready before."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import attrs

from shared.queues.waiting import Waiting
from shared.turns import Turn

if TYPE_CHECKING:
    from shared.queues.runs import Run

LOOK_AGAIN_SECONDS = 60.0
"""The system's clock may be set: a time is looked at again so soon."""
_NUMBERS_END = 1 << 62
"""No message has such a number: from here on is what a feed gave back, with a number that another has, too,
or below 0."""


@attrs.define(eq=False)
class Later:
    """All that waits in one queue: `count` messages, in memory. Times are Unix milliseconds."""

    _wall_seconds: Callable[[], float]
    count: int = 0
    _waiting: Waiting[Run] | None = attrs.field(default=None, init=False)
    """None: nothing has waited yet. An empty one is 400 bytes, and most queues need none."""
    _others: int = attrs.field(default=_NUMBERS_END, init=False)

    def __iter__(self) -> Iterator[Run]:
        """The runs, the next one due first."""
        for _, _, run in sorted((due, key, run) for key, due, run in self._waiting or ()):
            yield run

    @property
    def now_ms(self) -> int:
        return int(self._wall_seconds() * 1000)

    def keep(self, run: Run) -> bool:
        """Have messages wait, if their time has not come; whether they do."""
        due_ms: int = run.head.due_ms or 0
        if due_ms <= self.now_ms:
            return False
        if self._waiting is None:
            self._waiting = Waiting()
        for message in run.singles() if len(run.bodies) > 1 else (run,):
            number = message.first
            if number < 0 or number in self._waiting:
                number = self._others = self._others + 1
            self._waiting.add(number, due_ms, message)
        self.count += len(run.bodies)
        return True

    def find(self, number: int) -> Run | None:
        """The message of this number; it stays."""
        return None if self._waiting is None else self._waiting.get(number)

    def take_out(self, number: int) -> Run | None:
        """Take a message out before its time. None: it is not here."""
        run = None if self._waiting is None else self._waiting.take(number)
        self.count -= run is not None
        return run

    def take_due(self) -> tuple[list[Run], bool]:
        """Take out messages whose time has come: very many in turns. Returns whether more are due."""
        runs: list[Run] = []
        if self._waiting is None:
            return runs, False
        now_ms, turn = self.now_ms, Turn()
        while (found := self._waiting.pop(now_ms)) is not None:
            runs.append(found[1])
            self.count -= 1
            if turn.over_now():
                return runs, True
        return runs, False

    @property
    def next_seconds(self) -> float:
        """In how many seconds to look again; inf: nothing waits."""
        if not self.count or self._waiting is None:
            return float("inf")
        return min(max((self._waiting.next - self.now_ms) / 1000, 0.0), LOOK_AGAIN_SECONDS)

    def clear(self) -> list[Run]:
        """Take out all."""
        runs = [*self]
        self._waiting, self.count = None, 0
        return runs
