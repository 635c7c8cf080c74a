"""The feed of a topic: those who wait for its next records, and what wakes them.

All tails that have caught up share their topic's feed: what a commit makes visible is read once, encoded
once, and the same bytes go to every one of them.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

from logmq.runs import message_lines
from logmq.wire import refusal_for
from shared.errors import LogDeleted, StoreError
from shared.storage.store import Log

if TYPE_CHECKING:
    from logmq.readers import Fetch, Tail

READ_BYTES = 256 * 1024
"""Of one read for tails: about a millisecond's work, after which other connections have their turn."""


class Feed:
    """Who waits for news of one log; it watches the log while anybody does."""

    __slots__ = ("_closed", "_fetches", "_position", "_reading", "_tails", "_unwatched", "log")

    def __init__(self, log: Log, unwatched: Callable[["Feed"], None]) -> None:
        self.log = log
        self._unwatched = unwatched
        self._tails: dict[Tail, None] = {}  # ordered, unlike a set: the first to come is served first
        self._fetches: dict[Fetch, None] = {}
        self._position = log.visible
        """Up to here the tails have been served."""
        self._reading = False
        self._closed = False
        log.watchers.add(self.moved)

    def moved(self, log: Log) -> None:
        """The log's visible end moved, or the log was deleted."""
        if log.deleted:
            gone = refusal_for(LogDeleted())
            for fetch in tuple(self._fetches):
                fetch.replies.attempt(fetch.refuse, gone)
            for tail in tuple(self._tails):
                tail.replies.attempt(tail.refuse, gone)
        else:
            visible = log.visible
            for fetch in tuple(self._fetches):
                if visible > fetch.offset:
                    fetch.replies.attempt(fetch.go)
            if self._tails:
                self._push()
        self._close_if_idle()

    def add_fetch(self, fetch: "Fetch") -> None:
        self._fetches[fetch] = None

    def drop_fetch(self, fetch: "Fetch") -> None:
        self._fetches.pop(fetch, None)
        self._close_if_idle()

    def join(self, tail: "Tail") -> None:
        """`tail` has had everything that is visible, or waits for an offset beyond that."""
        if not self._tails and not self._reading:
            self._position = self.log.visible
        self._tails[tail] = None

    def leave(self, tail: "Tail") -> None:
        if tail in self._tails:
            del self._tails[tail]
            if self._tails and self._position < self.log.visible and not self._reading:
                self._push_soon()  # it may have been the one whose turn would have gone on
        self._close_if_idle()

    def _push(self) -> None:
        if not self._reading and self._tails and self._position < self.log.visible:
            self._reading = True
            self.log.read(self._position, READ_BYTES, self._pushed)

    def _push_soon(self) -> None:
        next(iter(self._tails)).owner.soon(self._push)

    def _pushed(self, records: bytes | StoreError) -> None:
        self._reading = False
        if isinstance(records, StoreError):
            refusal = refusal_for(records)
            for tail in tuple(self._tails):
                tail.replies.attempt(tail.refuse, refusal)
            self._close_if_idle()
            return
        start = self._position
        self._position = end = start + len(records)
        lines = message_lines(records, start) if self._tails else b""
        for tail in tuple(self._tails):
            if tail.next == start:
                tail.replies.attempt(tail.push, lines, end)
            elif tail.next < end:
                # It joined ahead of a push under way, or waited for an offset that is not a record's start.
                del self._tails[tail]
                tail.replies.attempt(tail.fell_out)
        if self._tails and end < self.log.visible:
            self._push_soon()
        self._close_if_idle()

    def _close_if_idle(self) -> None:
        if not self._closed and not self._tails and not self._fetches and not self._reading:
            self._closed = True
            self.log.watchers.discard(self.moved)
            self._unwatched(self)
