"""The ready messages of a queue with priorities: those with the highest go first, each in its own order."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain

from shared.queues.runs import Ready, Run


class Priorities:
    """A `Ready` for each priority up to `most`, and in the place of one. `count`: of messages."""

    __slots__ = ("_top", "count", "levels")

    in_order = False

    def __init__(self, most: int) -> None:
        self.levels = tuple([Ready() for _ in range(most + 1)])
        self.count = 0
        self._top = 0
        """No message has a higher priority."""

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[Run]:
        """The runs, the next one out first."""
        for level in reversed(self.levels):
            yield from level

    def first(self) -> Run:
        """The run of the next message. Some must be there."""
        return self._find_top().first()

    def upcoming(self, most: int) -> list[Run]:
        """As `Ready.upcoming`, of the highest priority. Some must be there."""
        return self._find_top().upcoming(most)

    def first_number(self) -> int:
        """The smallest number. Some must be there."""
        return min([level.first_number() for level in self.levels if level.count])

    def add(self, run: Run, priority: int) -> None:
        """Put messages behind all others of their priority. What is above the highest counts as that."""
        self.count += len(run.bodies)
        self._level(priority).add(run)

    def requeue(self, run: Run, priority: int) -> None:
        """Messages that were taken return to their places."""
        self.count += len(run.bodies)
        self._level(priority).requeue(run)

    def take(self, most: int) -> Run:
        """Take the next messages, up to `most`, of one run. Some must be there."""
        top = self._find_top()
        run = top.take(most)
        self.count -= len(run.bodies)
        return run

    def find(self, number: int) -> Run | None:
        """The run that has this message; it stays."""
        found = (level.find(number) for level in self.levels if level.count)
        return next((run for run in found if run is not None), None)

    def take_out(self, number: int) -> Run | None:
        """Take a message, wherever it stands. None: it is not here."""
        for level in self.levels:
            message = level.take_out(number) if level.count else None
            if message is not None:
                self.count -= 1
                return message
        return None

    def clear(self) -> Iterator[list[Run]]:
        """As `Ready.clear`."""
        self.count = self._top = 0
        return chain.from_iterable([level.clear() for level in self.levels])

    def _level(self, priority: int) -> Ready:
        priority = min(priority, len(self.levels) - 1)
        if priority > self._top:
            self._top = priority
        return self.levels[priority]

    def _find_top(self) -> Ready:
        """The highest priority of which there are some."""
        top = self.levels[self._top]
        while not top.count:
            self._top -= 1
            top = self.levels[self._top]
        return top
