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


@attrs.define(eq=False)
class Later:
    """All that waits in one queue: `count` messages, in memory. Times are Unix milliseconds."""

    _wall_seconds: Callable[[], float]
    count: int = 0
    _waiting: Waiting[Run] | None = attrs.field(default=None, init=False)
    """None: nothing has waited yet. An empty one is 400 bytes, and most queues need none."""
    _added: int = attrs.field(default=0, init=False)

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
        self._added += 1
        if self._waiting is None:
            self._waiting = Waiting()
        self._waiting.add(self._added, due_ms, run)
        self.count += len(run.bodies)
        return True

    def take_due(self) -> tuple[list[Run], bool]:
        """Take out messages whose time has come: very many in turns. Returns whether more are due."""
        runs: list[Run] = []
        if self._waiting is None:
            return runs, False
        now_ms, turn = self.now_ms, Turn()
        while (found := self._waiting.pop(now_ms)) is not None:
            runs.append(found[1])
            self.count -= len(found[1].bodies)
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
