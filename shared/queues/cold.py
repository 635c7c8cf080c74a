"""Reading back what a queue has on disk alone, in order, batch after batch."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

if TYPE_CHECKING:
    from shared.errors import StoreError
    from shared.storage.store import Log


@attrs.define(eq=False)
class ColdReader:
    """The cold part of a queue. `offset`: where in the log to read next. At most one read is under way."""

    log: Log
    offset: int = attrs.field(default=attrs.Factory(lambda self: self.log.end, takes_self=True), init=False)
    _fetching: object | None = attrs.field(default=None, init=False)
    """The reading under way. Batches of another one are not wanted any more."""

    @property
    def reading(self) -> bool:
        """Whether something is on its way."""
        return self._fetching is not None

    def _takes_more(self, data: bytes | StoreError) -> bool:
        """Take what was read at `offset`, and move that. Returns whether to read on."""
        raise NotImplementedError

    def _on_read(self) -> None:
        """The reading has ended, later than the call that began it."""
        raise NotImplementedError

    def _read_on(self, size: int) -> None:
        """Read batches of so many bytes until `_takes_more` has enough: before this returns, as far as they
        are at hand."""
        fetching = self._fetching = object()
        inside = True
        more: bool | None = True

        def done(data: bytes | StoreError) -> None:
            nonlocal more
            if self._fetching is not fetching:
                return
            more = self._takes_more(data)
            if inside:
                return
            if more:
                self._read_on(size)
            else:
                self._ends(fetching)
            if self._fetching is None:
                self._on_read()

        while more:  # all that was read may have left already
            more = None
            self.log.read(self.offset, size, done)
        inside = False
        if more is not None:
            self._ends(fetching)

    def _ends(self, fetching: object) -> None:
        if self._fetching is fetching:
            self._fetching = None
