"""One process per data folder: the file LOCK, held with flock while the process lives."""

import errno
import fcntl
import os
from pathlib import Path
from typing import Self

from shared.errors import StoreInUse

LOCK_NAME = "LOCK"


class FolderLock:
    """The right to use a data folder, until `release()` or the end of the process, however it ends.

    The file stays after that: unlinking it would let two processes hold locks on two files.
    """

    def __init__(self, fd: int) -> None:
        self.fd: int | None = fd

    @classmethod
    def take(cls, folder: Path, name: str = LOCK_NAME, mode: int = 0o600) -> Self:
        """Lock an existing folder by its file `name`.

        Raises StoreInUse (with the holder's pid if known) and OSError.
        """
        root = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
        try:
            fd = os.open(name, flags, mode, dir_fd=root)
        finally:
            os.close(root)
        try:
            _lock(fd, folder)
            os.ftruncate(fd, 0)
            os.pwrite(fd, b"%d\n" % os.getpid(), 0)
        except BaseException:
            os.close(fd)
            raise
        return cls(fd)

    def release(self) -> None:
        if self.fd is not None:
            os.close(self.fd)
            self.fd = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.release()


def _lock(fd: int, folder: Path) -> None:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno not in (errno.EWOULDBLOCK, errno.EACCES):
            raise
        holder = os.pread(fd, 32, 0).strip()
        by = f"process {holder.decode()}" if holder.isdigit() else "another process"
        raise StoreInUse(f"{folder} is in use by {by}") from None
