"""A range of an open file: the store returns it, and a connection sends it."""

from collections.abc import Callable


class FileRange:
    """Bytes of an open file, sent without passing through Python where the system can (sendfile).

    `release` is called exactly once, when the bytes are sent or will never be; the descriptor must stay open
    until then. `offset` and `length` move as parts are sent. A negative `fd` says that there is no file:
    then a subclass has a `read` of its own.
    """

    __slots__ = ("fd", "length", "offset", "release")

    def __init__(self, fd: int, offset: int, length: int, release: Callable[[], None]) -> None:
        self.fd = fd
        self.offset = offset
        self.length = length
        self.release = release

    def __repr__(self) -> str:
        return f"FileRange(fd={self.fd}, offset={self.offset}, length={self.length})"

    def chunk(self) -> "bytes | FileRange":
        """What to send: the range itself, or its bytes if they are in memory; then it is released."""
        return self

    def read(self, bytes_max: int) -> bytes:
        """Up to `bytes_max` bytes off the front, through memory; raises EOFError if the file is shorter.

        A subclass whose bytes are on their way raises BlockingIOError, and calls `Connection.go_on` when they
        are there.
        """
        import os  # imported here, because sessions hold ranges and must load without I/O modules

        data = os.pread(self.fd, min(bytes_max, self.length), self.offset)
        if not data:
            raise EOFError(f"{self!r} reaches past the end of its file")
        return data
