"""A connection's unsent output: a bounded queue of chunks, and the policy when it is full.

An `Outbox` belongs to one connection, and only that connection's driver takes from it. All outboxes of a
process share one `Backlogs`, because memory is the process's.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from enum import Enum
from itertools import islice
from typing import Protocol

from shared.budget import Account
from shared.by_size import BySizeAndUser
from shared.file_range import FileRange

JOIN_BYTES = 256 * 1024
GATHER_CHUNKS = 512
CHUNK_OVERHEAD_BYTES = 64  # a bytes object's header, its slot in the deque, the allocator's rounding

PACK_CHUNKS = 1024
PACK_BYTES = 16 * 1024
"""Every `PACK_CHUNKS` new chunks are joined to pieces of this size, if they average below
`PACK_AVERAGE_BYTES`."""
PACK_AVERAGE_BYTES = 256


class Policy(Enum):
    """What happens when an outbox is above its bound."""

    WAIT = "wait"
    """Read no input until the outbox is below half its bound: for requests and replies."""
    DROP = "drop"
    """Drop and count the oldest whole chunks not yet begun; the newest always stays: for pushes."""
    DISCONNECT = "disconnect"
    """Close the connection: for pushes that may not have gaps."""


Chunk = bytes | memoryview | FileRange


class Outbox:
    """A queue of chunks. The deque is made at the first write, so that an idle connection costs little.

    `size`: bytes that the transport has not taken, file ranges included. `bound`: bytes above which `policy`
    applies. `begun`: the first chunk as it was written, if part of it may be sent already; it is not dropped.
    A session may set `bound`, `policy`, `on_drop` (called with each dropped chunk of bytes) and `on_clear`.
    """

    __slots__ = (
        "begun",
        "bound",
        "chunks",
        "dropped_bytes",
        "dropped_chunks",
        "file_bytes",
        "on_clear",
        "on_drop",
        "pack_at",
        "policy",
        "size",
    )

    def __init__(self, bound: int, policy: Policy = Policy.WAIT) -> None:
        self.chunks: deque[Chunk] | None = None
        self.size = 0
        self.file_bytes = 0
        self.bound = bound
        self.policy = policy
        self.begun: Chunk | None = None
        self.on_drop: Callable[[bytes | memoryview], None] | None = None
        self.on_clear: Callable[[Sequence[Chunk], Chunk | None], None] | None = None
        """Called with the chunks that are left when the connection goes, and `begun`. Where the transport
        tells how far it came, `begun` is longer than the first chunk that is left."""
        self.dropped_chunks = 0
        self.dropped_bytes = 0
        self.pack_at = PACK_CHUNKS
        """The number of chunks at which `pack` next looks at the newest."""

    def push(self, data: bytes | memoryview) -> int:
        """Append a chunk, not empty; returns the new size."""
        chunks = self.chunks
        if chunks is None:
            chunks = self.chunks = deque()
        chunks.append(data)
        self.size = size = self.size + len(data)
        return size

    def push_file(self, part: FileRange) -> int:
        """Append a range of a file, not empty; returns the new size."""
        if self.chunks is None:
            self.chunks = deque()
        self.chunks.append(part)
        self.file_bytes += part.length
        self.size += part.length
        return self.size

    @property
    def waiting_bytes(self) -> int:
        """Bytes behind a first chunk that is being sent; all bytes while none is."""
        chunks = self.chunks
        if self.begun is None or not chunks:
            return self.size
        first = chunks[0]
        return self.size - (first.length if isinstance(first, FileRange) else len(first))

    @property
    def waiting_chunks(self) -> int:
        return len(self.chunks or ()) - (self.begun is not None)

    @property
    def memory_bytes(self) -> int:
        """Approximate memory of the queue; file ranges take none."""
        return self.size - self.file_bytes + CHUNK_OVERHEAD_BYTES * len(self.chunks or ())

    def gather(self, bytes_max: int = JOIN_BYTES) -> list[bytes | memoryview]:
        """The chunks in front that are in memory, up to `bytes_max` and `GATHER_CHUNKS` (IOV_MAX is 1024).

        At least one; empty if a file range is in front. They stay in the queue.
        """
        gathered: list[bytes | memoryview] = []
        total = 0
        for chunk in islice(self.chunks or (), GATHER_CHUNKS):
            if isinstance(chunk, FileRange):
                break
            total += len(chunk)
            if total > bytes_max and gathered:
                break
            gathered.append(chunk)
        return gathered

    def pack(self) -> None:
        """Join the newest small chunks, once there are many: each costs `CHUNK_OVERHEAD_BYTES` of memory.

        Dropping is by chunk: half a backlog of 8 MiB in 10-byte messages took 1.6 s. After joining, a whole
        piece is dropped at once. With `on_clear` nothing is joined, as that is told each chunk.
        """
        chunks = self.chunks
        count = len(chunks or ())
        if count < self.pack_at:
            self.pack_at = min(self.pack_at, count + PACK_CHUNKS)
            return
        assert chunks
        if self.on_clear is None:
            newest: list[bytes | memoryview] = []
            while len(newest) < PACK_CHUNKS and len(chunks) > 1:
                chunk = chunks.pop()
                if isinstance(chunk, FileRange):
                    chunks.append(chunk)
                    break
                newest.append(chunk)
            newest.reverse()
            small = sum(map(len, newest)) < PACK_AVERAGE_BYTES * len(newest)
            chunks.extend(_joined(newest) if small else newest)
        self.pack_at = len(chunks) + PACK_CHUNKS

    def begin(self) -> bytes | memoryview:
        """What to send next, marked as begun; for a transport that takes time and then calls `advance`.

        Joins chunks in place, so that what is being sent is one chunk, which is not dropped. Not for an empty
        outbox. Raises EOFError where a file is shorter than its range.
        """
        chunks = self.chunks
        assert chunks
        self.begun = first = chunks[0]
        if isinstance(first, FileRange):
            return first.read(JOIN_BYTES)
        gathered = self.gather()
        if len(gathered) > 1:
            for _ in gathered:
                chunks.popleft()
            self.begun = first = b"".join(gathered)
            chunks.appendleft(first)
        return first

    def advance(self, count: int) -> None:
        """The transport took `count` bytes off the front."""
        chunks = self.chunks
        assert chunks is not None
        self.size -= count
        if not self.size:
            self.begun = None
            if not self.file_bytes:
                chunks.clear()
                return
        while count:
            first = chunks[0]
            if isinstance(first, FileRange):
                taken = min(count, first.length)
                first.offset += taken
                first.length -= taken
                self.file_bytes -= taken
                if first.length:
                    self.begun = first
                    return
                chunks.popleft()
                first.release()
            else:
                taken = len(first)
                if count < taken:
                    if self.begun is None:
                        self.begun = first
                    chunks[0] = memoryview(first)[count:]
                    return
                chunks.popleft()
            self.begun = None
            count -= taken

    def drop_oldest(self, size: int) -> int:
        """Drop oldest whole chunks until `size` bytes wait; returns the bytes dropped.

        The newest chunk stays: one message always fits, however large. A chunk that is being sent neither
        counts nor goes.
        """
        chunks = self.chunks
        if chunks is None:
            return 0
        size += self.size - self.waiting_bytes
        begun = chunks.popleft() if self.begun is not None and chunks else None
        before = self.size
        while self.size > size and len(chunks) > 1:
            chunk = chunks.popleft()
            if isinstance(chunk, FileRange):
                self.size -= chunk.length
                self.file_bytes -= chunk.length
                chunk.release()
            else:
                self.size -= len(chunk)
                if self.on_drop is not None:
                    self.on_drop(chunk)
            self.dropped_chunks += 1
        if begun is not None:
            chunks.appendleft(begun)
        dropped = before - self.size
        self.dropped_bytes += dropped
        return dropped

    def clear(self) -> None:
        """Forget everything and let go of the files: the connection is gone."""
        chunks, self.chunks = self.chunks, None
        begun, self.begun = self.begun, None
        self.size = self.file_bytes = 0
        if chunks and self.on_clear is not None:
            self.on_clear(tuple(chunks), begun)
        for chunk in chunks or ():
            if isinstance(chunk, FileRange):
                chunk.release()


def _joined(chunks: Iterable[bytes | memoryview]) -> Iterator[bytes | memoryview]:
    """The bytes of `chunks` in pieces of up to `PACK_BYTES`; chunks are never cut."""
    piece: list[bytes | memoryview] = []
    size = 0
    for chunk in chunks:
        size += len(chunk)
        if size > PACK_BYTES and piece:
            yield b"".join(piece)
            piece.clear()
            size = len(chunk)
        piece.append(chunk)
    yield b"".join(piece)


class BacklogOwner(Protocol):
    """A connection with a backlog."""

    @property
    def user(self) -> str:
        """Who has logged in; "" while nobody has."""

    def shed(self) -> int:
        """Free memory by policy: drop some of the backlog, or close. Returns the bytes still held."""


class Backlogs:
    """All backlogs of the process, within the limit of `memory`: above it large ones are shed. So are a
    user's above his share of it.

    A backlog is unsent output, plus what has come of an incomplete large message. Connections without one are
    not in here, so those that keep up cost nothing.
    """

    def __init__(self, memory: Account) -> None:
        self.memory = memory
        self.times_shed = 0
        self._held = BySizeAndUser[BacklogOwner](lambda owner: memory.shares.bounded(owner.user))

    @property
    def held_bytes(self) -> int:
        return self._held.all.total

    def hold(self, owner: BacklogOwner, held_bytes: int) -> None:
        """`owner` now holds `held_bytes` (0: nothing). May make an owner shed, `owner` itself included."""
        user, memory = self._set(owner, held_bytes), self.memory
        while self.held_bytes > memory.limit_bytes:
            self._shed(self._held.all.large())
        while not memory.shares.fits(user, memory.limit_bytes, 0):
            self._shed(self._held.large_of(user))

    def _shed(self, owner: BacklogOwner) -> None:
        before = self._held.all[owner]
        self._set(owner, 0)
        self.times_shed += 1
        held = owner.shed()
        if 0 < held < before:  # otherwise it has been closed, and holds nothing
            self._set(owner, held)

    def _set(self, owner: BacklogOwner, held_bytes: int) -> str:
        more = held_bytes - self._held.all[owner]
        user = self._held.put(owner, held_bytes)
        self.memory.charge(more, user)
        return user
