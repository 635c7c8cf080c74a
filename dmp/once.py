"""Messages that a queue takes once (`x-message-deduplication`): by the header `x-deduplication-header`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import attrs

from shared.queues.dedup import SeenKeys

if TYPE_CHECKING:
    from dmp.message import Head
    from shared.queues.runs import Run

HEADER = b"x-deduplication-header"


@attrs.define(eq=False)
class Once:
    """The keys of one queue's messages: each is known while its message is in the queue."""

    _seen: SeenKeys = attrs.Factory(SeenKeys)

    def unseen(self, head: Head, bodies: Sequence[bytes]) -> Sequence[bytes]:
        """Those of messages that come which are not there: all without a key, or else the first at most."""
        key = head.text_in(HEADER)
        if not key:
            return bodies
        return bodies[:1] if self._seen.number_of(key, 0) is None else ()

    def number_of(self, key: str) -> int | None:
        """The number of the message in the queue that has this key."""
        return self._seen.waiting(key)

    def came(self, run: Run) -> None:
        """Messages are in the queue, or on their way to the disk."""
        key = run.head.text_in(HEADER)
        if key and self._seen.number_of(key, 0) is None:
            self._seen.add(key, run.first, 0)

    def left(self, runs: Iterable[Run]) -> None:
        """Messages are there no more. Another with the key of one may have come since."""
        for run in runs:
            key = run.head.text_in(HEADER)
            if key and self._seen.number_of(key, 0) == run.first:
                self._seen.leave(key)
