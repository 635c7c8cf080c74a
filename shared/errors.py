"""Every error that this project raises on purpose, under one root."""

from typing import ClassVar

import attrs

EXIT_USAGE = 2
EXIT_MISSING = 66
EXIT_UNAVAILABLE = 69
EXIT_DATA_FOLDER = 73
EXIT_LOST = 74
EXIT_TEMPORARY = 75
"""Exit codes of errors that are raised below the host; `brokers.errors.ExitCode` explains each."""


class BrokerError(Exception):
    """The root of all errors. Any other exception is a bug, and is logged with its traceback."""

    exit_code: ClassVar[int | None] = None
    """The exit code of a command that this error ends; None: the host decides."""


@attrs.define(eq=False)
class RemoteProtocolError(BrokerError):
    """The peer broke its protocol: send `reply` (may be empty), then close that connection, and only that.

    `fault`: what it did, as its protocol counts it (the label of a metric).
    """

    text: str
    reply: bytes = b""
    fault: str = ""

    def __str__(self) -> str:
        return self.text


@attrs.define(eq=False)
class ConfigError(BrokerError):
    """A setting is unknown or not usable; `key` is written as in TOML (`logmq.port`)."""

    key: str
    text: str

    def __str__(self) -> str:
        return f"{self.key}: {self.text}"


@attrs.define(eq=False)
class UsageError(BrokerError):
    """A command's arguments do not make sense; `argument` is written as in its help (`--from`)."""

    argument: str
    text: str
    exit_code: ClassVar[int] = EXIT_USAGE

    def __str__(self) -> str:
        return f"{self.argument}: {self.text}"


class NotThere(BrokerError):
    """The object of a command does not exist; the text names it."""

    exit_code: ClassVar[int] = EXIT_MISSING


class NoneInTime(BrokerError):
    """A command waited for a message for as long as it was told, and none came."""

    exit_code: ClassVar[int] = EXIT_TEMPORARY


class StoreError(BrokerError):
    """The storage core could not do what was asked; nothing was acknowledged."""


class StoreReadOnly(StoreError):
    """A sync failed or a write could not be taken back: no more writes until a restart."""


class StoreFull(StoreError):
    """The file system is short of space: writing stops, reading goes on."""


class StoreClosed(StoreError):
    """The store is closed; the caller kept a log handle for too long."""


class StoreInUse(StoreError):
    """Another process holds the data folder."""

    exit_code: ClassVar[int] = EXIT_DATA_FOLDER


class StoreFormat(StoreError):
    """The data folder or backup is from a newer version, is not ours, or is not empty as required."""

    exit_code: ClassVar[int] = EXIT_DATA_FOLDER


class LogMissing(StoreError):
    """There is no such log."""

    exit_code: ClassVar[int] = EXIT_MISSING


class LogDeleted(StoreError):
    """The log was deleted; a log made later under its name is another log."""


@attrs.define(eq=False)
class OutOfRange(StoreError):
    """The offset is below the first kept one."""

    first: int

    def __str__(self) -> str:
        return f"the first kept offset is {self.first}"


class BucketAway(StoreError):
    """Bytes that only the bucket has cannot be read now: it does not answer, or has not got them."""

    exit_code: ClassVar[int] = EXIT_UNAVAILABLE


@attrs.define(eq=False)
class BeyondEnd(StoreError):
    """The offset is above the end: it is of another log, or of what a crash took."""

    end: int

    def __str__(self) -> str:
        return f"the end is {self.end}"


@attrs.define(eq=False)
class NotARecord(StoreError):
    """The offset is not the start of a record; `below` is the nearest one that is."""

    below: int

    def __str__(self) -> str:
        return f"not the start of a record; the nearest below is {self.below}"


@attrs.define(eq=False)
class CorruptRecord(StoreError):
    """The bytes at `offset` of `path` are not those that were written (their CRC differs). `end`: where
    records can be read again, or the visible end; None: unknown."""

    path: str
    offset: int
    end: int | None = None

    def __str__(self) -> str:
        return f"damaged bytes in {self.path} at offset {self.offset}{self.goes_on}"

    @property
    def goes_on(self) -> str:
        """For a text that names the damaged offset."""
        return "" if self.end is None else f"; records go on at {self.end}"


def printable(data: bytes | bytearray) -> str:
    """A peer's bytes for an error's text or a log line: quoted, escaped, and cut after 64 bytes.

    `b"a\\n"` is shown as `'a\\\\n'`.
    """
    return repr(bytes(data[:64]))[1:] + ("..." if len(data) > 64 else "")
