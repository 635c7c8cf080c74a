"""When a queue's messages are due, as pairs (time, number): all messages before that number are due then."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable


class DueTimes(deque[tuple[int, int]]):
    """The pairs, in order of numbers. Messages of nearly the same time share one.

    It is only looked at from the front: a message behind one that is due later waits for that. Times are of
    the protocol's clock, in its unit.
    """

    __slots__ = ()

    def add(self, due: int, before: int, grain: int = 0) -> None:
        """The messages behind those known here, and before this number, are due then; or up to `grain`
        later."""
        if self and due <= self[-1][0]:
            self[-1] = self[-1][0], before
        else:
            self.append((due + grain, before))

    def passed(self, now: int) -> int:
        """Remove the pairs that are due. Returns the number before which all messages are; 0: none is."""
        before = 0
        while self and self[0][0] <= now:
            before = self.popleft()[1]
        return before

    def cut(self, tail: int) -> None:
        """There are no messages from this number on."""
        for place, (due, before) in enumerate(self):
            if before > tail:
                self[place] = due, tail

    def due_of(self, number: int) -> int:
        """When this message is due, which is among them."""
        return next(due for due, before in self if number < before)

    def restore(self, pairs: Iterable[Iterable[int]]) -> None:
        for due, before in pairs:
            self.append((due, before))
