"""Bytes in memory that are served as ranges of files are."""

import os
import tempfile

from shared.errors import StoreError
from shared.file_range import FileRange
from shared.storage.files import describe


class MemoryRange(FileRange):
    """A range whose bytes are in memory, for what reads it through `read`."""

    __slots__ = ("_data",)

    def __init__(self, data: bytes) -> None:
        super().__init__(-1, 0, len(data), lambda: None)
        self._data = data

    def read(self, bytes_max: int) -> bytes:
        return self._data[self.offset : self.offset + min(bytes_max, self.length)]


def spooled(data: bytes) -> FileRange:
    """Bytes that are only in memory, as a range of a file that the system can send."""
    try:
        fd = os.memfd_create("brokers") if hasattr(os, "memfd_create") else _unnamed_file()
        os.write(fd, data)
    except OSError as error:
        raise StoreError(f"no file for bytes in memory: {describe(error)}") from error
    return FileRange(fd, 0, len(data), lambda: os.close(fd))


def _unnamed_file() -> int:
    with tempfile.TemporaryFile(buffering=0) as file:
        return os.dup(file.fileno())
