"""Messages that a queue takes once (`x-message-deduplication`): by the header `x-deduplication-header`."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import attrs

from shared.queues.dedup import SeenKeys

if TYPE_CHECKING:
    from dmp.known_keys import KnownKeys, Row
    from dmp.message import Head
    from shared.queues.runs import Run

HEADER = b"x-deduplication-header"
KNOWN_BYTES = 600
"""Memory of a key that is known for a window, with its row."""
_NO_MESSAGES = 1 << 62
"""From here on are the numbers of keys whose messages left before the start."""


@attrs.define(eq=False)
class Once:
    """The keys of one queue's messages: each is known while its message is in the queue, and for `window_ms`
    from when it came (`x-cache-ttl`). `now_ms`: Unix time. `charge`: memory of waiting messages, so much
    more."""

    _queue: bytes
    window_ms: int
    _now_ms: Callable[[], int]
    _charge: Callable[[int], None]
    kept: KnownKeys | None = None
    """Where windows outlive the process."""
    _seen: SeenKeys = attrs.field(
        default=attrs.Factory(
            lambda self: SeenKeys(KNOWN_BYTES if self.window_ms else 0, self._charge), takes_self=True
        ),
        init=False,
    )

    def unseen(self, head: Head, bodies: Sequence[bytes]) -> Sequence[bytes]:
        """Those of messages that come which are not known: all without a key, or else the first at most."""
        key = head.text_in(HEADER)
        if not key:
            return bodies
        self.forget()
        return bodies[:1] if self._seen.number_of(key, 0) is None else ()

    def number_of(self, key: str) -> int | None:
        """The number of the message in the queue that has this key."""
        return self._seen.waiting(key)

    def came(self, run: Run) -> None:
        """New messages are in the queue, or on their way to the disk."""
        self._add(run, self._now_ms() + self.window_ms if self.window_ms and run.first >= 0 else 0)

    def row(self, run: Run) -> Row | None:
        """The row of messages that just came, where their key outlives the process."""
        if self.kept is None or not self.window_ms:
            return None
        until_ms = self._now_ms() + self.window_ms
        return next((self.kept.row(self._queue, key, until_ms) for key in self._keys_of((run,))), None)

    def found(self, run: Run) -> None:
        """A start has found messages."""
        self._add(run, 0)

    def restore(self, windows: Mapping[str, int]) -> None:
        """Keys whose windows are open, and when they end; behind `found`."""
        for number, (key, until_ms) in enumerate(windows.items(), _NO_MESSAGES):
            inside = self._seen.waiting(key)
            self._seen.add(key, number if inside is None else inside, until_ms)
            if inside is None:
                self._seen.leave(key)

    def left(self, runs: Iterable[Run]) -> None:
        """Messages are there no more. Another with the key of one may have come since."""
        for key in self._keys_of(runs):
            self._seen.leave(key)

    def refused(self, runs: Iterable[Run]) -> None:
        """The disk has refused messages: they never came."""
        for key in self._keys_of(runs):
            self._seen.undo(key)

    def forget(self) -> None:
        """Forget the keys whose windows have ended, and whose messages have left."""
        ended = self._seen.forget(self._now_ms()) if self.window_ms else ()
        if ended and self.kept is not None:
            self.kept.drop(self._queue, ended)

    @property
    def next_seconds(self) -> float:
        """When to call `forget` next; inf: never."""
        following = self._seen.next
        return math.inf if following == math.inf else max((following - self._now_ms()) / 1000, 1.0)

    def clear(self) -> None:
        """The queue is deleted."""
        self._seen.clear()

    def _add(self, run: Run, until_ms: int) -> None:
        key = run.head.text_in(HEADER)
        if key and self._seen.waiting(key) is None:
            self._seen.add(key, run.first, until_ms)

    def _keys_of(self, runs: Iterable[Run]) -> Iterable[str]:
        """The keys by which these messages are known."""
        for run in runs:
            key = run.head.text_in(HEADER)
            if key and self._seen.number_of(key, 0) == run.first:
                yield key
