"""Store and forward: messages kept for absent clients, within bounds, the oldest dropped first.

A client at its own bound loses its oldest messages. When all clients together are above their bound, or the
budget has no room, a client with the most bytes loses some. Else a few clients that never return would take
the room of all others.

Frames are kept in memory, without their padding. A clean stop writes them into a log, and the next start
reads them back. A crash loses them (PROTOCOL.md, "Away"). Each message is sent at most once.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from typing import cast

from pubsub.metrics import Counts
from pubsub.settings import PubsubSettings
from pubsub.wire import FRAME_BYTES, ID_CHARACTERS_MAX, frame_topic
from shared.budget import Account, unbounded
from shared.by_size import BySizeAndUser
from shared.routing.index import RoutingIndex

FRAME_OVERHEAD_BYTES = 56
"""Memory of a frame beside its bytes."""
RESTRICT_VISITS_MAX = 6_000
"""Visits of a trie at which the lookup of one client's kept messages ends: 9 ms, some 3,000 topics."""


class Kept:
    """Frames by client. Clients without frames have no entry. `user_of`: whose the session of a client is.

    Each user has his share, too: above it his clients lose messages, and not those of others.
    """

    def __init__(
        self,
        settings: PubsubSettings,
        counts: Counts,
        memory: Account | None = None,
        user_of: Callable[[bytes], str] = lambda client_id: "",
    ) -> None:
        self._memory = memory or unbounded()
        self._of_users = self._memory.new_shares()
        self.settings = settings
        self._counts = counts
        self._frames: dict[bytes, deque[bytes]] = {}
        self._bytes = BySizeAndUser[bytes](lambda client_id: self._of_users.bounded(user_of(client_id)))

    @property
    def total_bytes(self) -> int:
        return self._bytes.all.total

    def __contains__(self, client_id: bytes) -> bool:
        return client_id in self._frames

    def __len__(self) -> int:
        """The number of clients with kept messages."""
        return len(self._frames)

    def add(self, client_ids: Iterable[bytes], frame: bytes) -> None:
        """Keep a frame for each client. Above a bound the oldest frames are dropped, even this one."""
        short = frame.rstrip(b"\0")  # once, so that all clients share the bytes
        for client_id in client_ids:
            self._add(client_id, short)

    def _add(self, client_id: bytes, short: bytes) -> None:
        settings = self.settings
        frames = self._frames.get(client_id)
        if frames is None:
            frames = self._frames[client_id] = deque()
        frames.append(short)
        user = self._weigh(client_id, len(short), 1)
        self._counts.messages_kept += 1
        while frames and (
            len(frames) > settings.kept_messages_max or self._bytes.all[client_id] > settings.kept_bytes_max
        ):
            self._drop_oldest(client_id)
        while self.total_bytes and (self.total_bytes > settings.kept_bytes_total_max or self._memory.over):
            self._drop_oldest(self._bytes.all.large())
        while user and not (
            self._of_users.fits(user, settings.kept_bytes_total_max, 0)
            and self._memory.shares.fits(user, self._memory.limit_bytes, 0)
        ):
            self._drop_oldest(self._bytes.large_of(user))

    def append(self, client_id: bytes, frames: Sequence[bytes]) -> None:
        """Keep frames for a client."""
        for frame in frames:
            self._add(client_id, frame.rstrip(b"\0"))

    def put_back(self, client_id: bytes, frames: Sequence[bytes]) -> None:
        """Keep frames that are older than all that is kept for the client. The newest of them are kept."""
        newest = frames[-self.settings.kept_messages_max :]
        self._counts.kept_dropped += len(frames) - len(newest)
        kept = self._frames.get(client_id)
        later = [] if kept is None else list(kept)
        if kept is not None:
            kept.clear()
            self._weigh(client_id, -self._bytes.all[client_id], -len(later))
            self._counts.messages_kept -= len(later)
        for short in chain((frame.rstrip(b"\0") for frame in newest), later):
            self._add(client_id, short)

    def _drop_oldest(self, client_id: bytes) -> None:
        frames = self._frames[client_id]
        self._weigh(client_id, -len(frames.popleft()), -1)
        self._counts.kept_dropped += 1
        if not frames:
            self.forget(client_id)

    def _weigh(self, client_id: bytes, more: int, frames: int) -> str:
        """Add `more` bytes of so many frames to a client's count; negative: subtract. Returns whom it counts
        for."""
        user = self._bytes.put(client_id, self._bytes.all[client_id] + more)
        self._memory.charge(more + frames * FRAME_OVERHEAD_BYTES, user)
        if user:
            self._of_users.add(user, more)
        return user

    def take(self, client_id: bytes) -> bytes:
        """Remove and return a client's frames, padded, the oldest first.

        They are copied into zeroed memory: 8 ms for 10,000. Padding each and joining them took 21 ms.
        """
        kept = self._frames.get(client_id, ())
        frames = bytearray(len(kept) * FRAME_BYTES)
        for at, each in zip(range(0, len(frames), FRAME_BYTES), kept, strict=True):
            frames[at : at + len(each)] = each
        self.forget(client_id)
        return cast("bytes", frames)  # nothing changes it from here on, and a copy would take 5 ms

    def forget(self, client_id: bytes) -> int:
        """Drop a client's frames. Returns their number."""
        count = len(self._frames.pop(client_id, ()))
        self._weigh(client_id, -self._bytes.all[client_id], -count)
        return count

    def restrict(self, client_id: bytes, patterns: RoutingIndex[bytes]) -> None:
        """Drop a client's frames that no pattern matches.

        The newest are looked up first. What `RESTRICT_VISITS_MAX` does not reach is dropped and counted.
        """
        frames = self._frames.get(client_id)
        if frames is None:
            return
        left: deque[bytes] = deque()
        for looked_up, each in enumerate(reversed(frames)):
            if patterns.visits > RESTRICT_VISITS_MAX:
                self._counts.kept_dropped += len(frames) - looked_up
                break
            if patterns.match(frame_topic(each)):
                left.appendleft(each)
        self._weigh(client_id, sum(map(len, left)) - self._bytes.all[client_id], len(left) - len(frames))
        if left:
            self._frames[client_id] = left
        else:
            del self._frames[client_id]

    def held(self, client_id: bytes) -> tuple[int, int]:
        """A client's kept messages and bytes."""
        return len(self._frames.get(client_id, ())), self._bytes.all[client_id]

    def full_percent(self, messages: int, size: int) -> int:
        """How much of one client's room so many messages and bytes take, in percent."""
        settings = self.settings
        of_messages = 100 * messages // max(settings.kept_messages_max, 1)
        return max(of_messages, 100 * size // max(settings.kept_bytes_max, 1))

    # -- as a log's records: `[length u32][id][NUL][frame without its padding]`

    def records(self) -> Iterator[tuple[bytes, int]]:
        """Yield (records, their count), a client at a time."""
        for client_id, frames in self._frames.items():
            start = client_id + b"\0"
            yield (
                b"".join((len(start) + len(each)).to_bytes(4, "big") + start + each for each in frames),
                len(frames),
            )

    def restore(self, records: bytes) -> None:
        """Read whole records back. Malformed ones are left out."""
        at = 0
        while at < len(records):
            end = at + 4 + int.from_bytes(records[at : at + 4], "big")
            client_id, nul, frame = records[at + 4 : end].partition(b"\0")
            if nul and 1 <= len(client_id) <= ID_CHARACTERS_MAX and len(frame) <= FRAME_BYTES:
                self._add(client_id, frame)
                self._counts.messages_kept -= 1  # counted already when it arrived
            at = end

    def clients(self) -> Iterable[bytes]:
        """The ids of clients with kept messages."""
        return list(self._frames)
