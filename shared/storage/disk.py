"""The only thing under the storage core that touches files, so that a fake one can stand in for it.

Paths are relative to the data folder (`journal/00000000000000000000.wal`) and are opened below its handle: no
link is followed, files are made 0600 and folders 0700. Errors are OSError with its errno, as the system gives
them; what they mean is decided by the store, not here. All calls block.
"""

from collections.abc import Sequence
from typing import Protocol


class Disk(Protocol):
    """A data folder's files. Descriptors are small ints of this disk's own."""

    read_only: bool
    """Nothing can be written, now or later."""

    def open(self, path: str, *, create: bool = False, exclusive: bool = False) -> int:
        """Open for reading and writing; where that cannot be because the file system has become read-only, a
        file that is there is opened for reading, and `read_only` says so from then on."""

    def close(self, fd: int) -> None: ...

    def size(self, fd: int) -> int: ...

    def read(self, fd: int, length: int, offset: int) -> bytes:
        """Up to `length` bytes; fewer only at the file's end."""

    def read_nowait(self, fd: int, length: int, offset: int) -> bytes | None:
        """Like read, from memory alone; None where the system would have to wait, or fails: `read` tells."""

    def write(self, fd: int, data: bytes | memoryview, offset: int, *, passing: bool = False) -> int:
        """Write some of `data`; returns how many bytes were taken (a short write is legal).

        `passing`: nobody reads it soon, so the system need not keep it in memory.
        """

    def write_pieces(
        self, fd: int, pieces: Sequence[bytes | memoryview], offset: int, *, passing: bool = False
    ) -> int:
        """Like write, of at most 1,024 pieces one behind the other."""

    def write_many(self, writes: Sequence[tuple[int, memoryview, int]]) -> Sequence[int]:
        """Write all (descriptor, bytes, offset), in no order; for each the bytes taken, or minus an errno."""

    def sync_data(self, fd: int) -> None:
        """fdatasync. After any error nothing about the file's unsynced bytes is known."""

    def sync_folder(self, path: str) -> None:
        """Make names in the folder durable ("" is the data folder itself)."""

    def sync_all(self) -> bool:
        """syncfs on the data folder's file system; False where that cannot be trusted: nothing was done."""

    def truncate(self, fd: int, size: int) -> None: ...

    def allocate(self, fd: int, size: int) -> None:
        """Reserve blocks up to `size` and make the file that long."""

    def punch(self, fd: int, offset: int, length: int) -> bool:
        """Give a range's blocks back, keeping the file's length; False where the file system cannot."""

    def rename(self, old: str, new: str) -> None: ...

    def unlink(self, path: str) -> None: ...

    def make_folder(self, path: str) -> None:
        """Make it if it is not there."""

    def names(self, path: str) -> Sequence[str]:
        """The names in a folder, sorted; empty if there is no such folder."""

    def free_bytes(self) -> tuple[int, int]:
        """Bytes free to us, and the size of the whole file system."""
