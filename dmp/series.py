"""What goes to very many queues, and what leaves them, in slices (`wide`, and transactions)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import attrs

from dmp.message import Head
from dmp.queue_records import put_bytes, putter
from shared.errors import StoreError

if TYPE_CHECKING:
    from dmp.queue_log import QueueLog
    from dmp.queues import Queue

QUEUES_PER_STEP = 128  # that get a message, or are about to: half a millisecond


@attrs.define(eq=False)
class Series:
    """Messages that are alike, on their way to queues. `record_bytes`: of the record of one of these."""

    head: Head
    bodies: Sequence[bytes]
    record_bytes: int = attrs.field(
        default=attrs.Factory(lambda self: put_bytes(self.head), takes_self=True), init=False
    )
    _putter: Callable[[int], bytes] | None = attrs.field(default=None, init=False)

    def prepare(self) -> None:
        """Make now what all their records have, which is most of the work: the batch may be cut short."""
        if self._putter is None:
            self._putter = putter(self.head, self.bodies)

    def pack(self, first: int) -> bytes:
        """Their records in one queue, by the number of the first."""
        self.prepare()
        assert self._putter is not None
        return self._putter(first)


@attrs.define(eq=False)
class Leaving:
    """Messages that leave their queue, whose log gets `record` of that: `count` of them. `written`: called
    once it is there, or its queue is deleted."""

    queue: Queue
    log: QueueLog
    record: bytes
    count: int
    written: Callable[[], None]


def bug(error: Exception) -> StoreError:
    """What is told to who waits for what a bug has kept from being written."""
    return StoreError(f"a bug in the broker: {type(error).__name__}")
