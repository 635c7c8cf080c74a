"""What a client that subscribes is sent before anything newer: retained messages, and the past of recordings.

A look back begins at a cut: the retained messages of that instant, and all that is recorded until then. What
comes later waits here until what was before is sent, so nothing is missing or twice in between. The service
reads the recording (`pubsub.listener`), a piece at a time, each when the client has taken the one before.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import attrs

from pubsub.recording import recorded_frames
from pubsub.retained import row_frame, row_ms
from pubsub.wire import TOPIC_AT, TYPE_AT, WILDCARDS
from shared.recording import blocks
from shared.routing.index import RoutingIndex

if TYPE_CHECKING:
    from shared.storage.log import Log, Ticket

    Cut = tuple[Log, int, Ticket | None]
    """A recorded log, where what has passed until now ends, and what its newest records wait for."""

NEVER = 1 << 62
"""Where no past is asked for."""
TOPICS_MAX = 8192
"""Remembered first bytes of recorded frames; above it all are forgotten."""


@attrs.define(eq=False)
class LookBack:
    """`at`: how many messages had come before the cut. `retained`: topics and their rows.

    `asked`: patterns, and since when the past of each is wanted (Unix us; `NEVER`: retained messages alone).
    `begun`: more patterns have to wait. `waiting`: frames that have come since the cut, of `size` bytes.
    """

    at: int
    retained: Sequence[tuple[bytes, bytes]]
    cut: "Cut | None" = None
    begun: bool = False
    size: int = 0
    asked: dict[bytes, int] = attrs.Factory(dict)
    waiting: deque[bytes] = attrs.Factory(deque)
    _known: dict[bytes, tuple[int, bytes]] = attrs.Factory(dict)
    _index: RoutingIndex[int] = attrs.Factory(lambda: RoutingIndex(WILDCARDS, cache_bytes_max=0))

    def begin(self) -> int:
        """Look back from now on. Returns since when, at the earliest, in Unix us."""
        self.begun = True
        for pattern, since in self.asked.items():
            self._index.subscribe(since, pattern)
        return min(self.asked.values(), default=NEVER)

    def forget(self, pattern: bytes) -> None:
        """Nothing more is sent for this pattern of what was before."""
        since = self.asked.pop(pattern, None)
        if since is not None and self.begun:
            self._index.unsubscribe(since, pattern)
            self._known.clear()

    def add(self, frames: bytes) -> None:
        self.waiting.append(frames)
        self.size += len(frames)

    def drop_oldest(self) -> bytes:
        frames = self.waiting.popleft()
        self.size -= len(frames)
        return frames

    def retained_frames(self) -> Iterator[bytes | None]:
        """The frames of retained messages that are asked for; those that the past has come with it. None: not
        this one."""
        for topic, row in self.retained:
            since = min(self._index.match(topic), default=None)
            is_past = self.cut is not None and since is not None and 1000 * row_ms(row) >= since
            yield None if since is None or is_past else row_frame(row)

    def past_frames(self, records: bytes) -> Iterator[bytes | None]:
        """The frames of whole records that are asked for. None: not this one. Malformed ones are left out."""
        at = 0
        while at < len(records):
            end = at + 4 + int.from_bytes(records[at : at + 4], "big")
            payload = records[at + 4 : end]
            at = end
            try:
                block = blocks.unpack(payload)
                for frame in recorded_frames(block, payload[block.frames_at :]):
                    since, head = self._wanted(frame[TOPIC_AT:TYPE_AT])
                    yield None if since > block.time_us else frame[:TOPIC_AT] + head + frame[TYPE_AT:]
            except ValueError:
                yield None

    def _wanted(self, head: bytes) -> tuple[int, bytes]:
        """Since when messages of a topic are wanted, and the topic as it is sent. `head`: as it came."""
        known = self._known.get(head)
        if known is None:
            topic = head.partition(b"\0")[0]
            if len(self._known) >= TOPICS_MAX:
                self._known.clear()
            since = min(self._index.match(topic), default=NEVER)
            known = self._known[head] = since, topic.ljust(TYPE_AT - TOPIC_AT, b"\0")
        return known
