"""Copying open files: holes stay holes, blocks are shared where the file system can, every byte can be
checked.

All calls block.
"""

import errno
import os
from collections.abc import Iterator

from crc32c import crc32c

_PIECE_BYTES = 1 << 20
_ZEROS = bytes(_PIECE_BYTES)

# Errors of file systems, kernels and files that cannot do this: then the bytes are copied through here.
_CANNOT_COPY_RANGE = frozenset(
    {errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.EPERM, errno.EBADF, errno.ETXTBSY}
)


def data_ranges(fd: int, start: int, end: int) -> Iterator[tuple[int, int]]:
    """The parts of [start, end) that hold data, as (start, end); all of it if holes cannot be detected."""
    seek_data, seek_hole = getattr(os, "SEEK_DATA", None), getattr(os, "SEEK_HOLE", None)
    while start < end:
        if seek_data is None or seek_hole is None:
            yield start, end
            return
        try:
            data = os.lseek(fd, start, seek_data)
            hole = os.lseek(fd, data, seek_hole)
        except OSError as error:
            if error.errno == errno.ENXIO:  # a hole to the end
                return
            if error.errno in (errno.EINVAL, errno.EOPNOTSUPP):
                seek_data = None
                continue
            raise
        if data >= end:
            return
        yield data, min(hole, end)
        start = hole


def copy_range(source: int, target: int, start: int, end: int) -> None:
    """Copy [start, end) to the same place in `target`, an empty file, which is then `end` long.

    File systems that can share the blocks (copy_file_range clones there). Raises OSError; EIO if the source
    is shorter.
    """
    by_kernel = hasattr(os, "copy_file_range")
    for position, stop in data_ranges(source, start, end):
        while position < stop:
            if by_kernel:
                try:
                    count = os.copy_file_range(source, target, stop - position, position, position)
                except OSError as error:
                    if error.errno not in _CANNOT_COPY_RANGE:
                        raise
                    by_kernel = False
                    continue
            else:
                data = os.pread(source, min(stop - position, _PIECE_BYTES), position)
                count = os.pwrite(target, data, position)
            if count == 0:
                raise OSError(errno.EIO, "the file ended before its time")
            position += count
    os.ftruncate(target, end)


def crc_of_range(fd: int, start: int, end: int) -> int:
    """CRC-32C of [start, end), holes as zeros. Raises OSError; EIO if the file is shorter."""
    if os.fstat(fd).st_size < end:
        raise OSError(errno.EIO, "the file ended before its time")
    crc = 0
    position = start
    for data, stop in [*data_ranges(fd, start, end), (end, end)]:
        while position < data:
            zeros = min(data - position, _PIECE_BYTES)
            crc = crc32c(memoryview(_ZEROS)[:zeros], crc)
            position += zeros
        while position < stop:
            piece = os.pread(fd, min(stop - position, _PIECE_BYTES), position)
            if not piece:
                raise OSError(errno.EIO, "the file ended before its time")
            crc = crc32c(piece, crc)
            position += len(piece)
    return crc
