"""How to undo what rests on a commit of a queue's log, should the disk refuse it."""

from bisect import bisect_right
from collections.abc import Callable
from operator import itemgetter

import attrs


@attrs.define(eq=False)
class Undoing:
    """Changes whose records are appended and not confirmed: how to undo each, should its commit fail."""

    _changes: list[tuple[int, Callable[[], None]]] = attrs.Factory(list)

    def add(self, end: int, undo: Callable[[], None]) -> None:
        """`end`: the log's end behind the record."""
        self._changes.append((end, undo))

    def confirmed(self, visible: int) -> None:
        """The disk has the log up to there."""
        if self._changes:
            del self._changes[: bisect_right(self._changes, visible, key=itemgetter(0))]

    def undo(self) -> None:
        """The disk has refused all that it had not confirmed: undo it, the newest first."""
        changes, self._changes = self._changes, []
        for _, undo in reversed(changes):
            undo()
