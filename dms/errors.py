"""What a server refuses with, as a client raises it: a class for each status, named after it."""

from typing import ClassVar

from dms.wire import Status
from shared.errors import EXIT_MISSING, EXIT_TEMPORARY, BrokerError


class DmsError(BrokerError):
    """A request that the server refused; `status` is a number that it may have made up.

    `refused`: where many messages were written at once, the places of those that were refused, in order.
    """

    of_status: ClassVar[Status | None] = None

    def __init__(self, text: str, status: int | None = None) -> None:
        super().__init__(text)
        self.text = text
        self.status = self.of_status if status is None else status
        self.refused: tuple[int, ...] = ()

    def __str__(self) -> str:
        name = self.status.name if isinstance(self.status, Status) else f"status {self.status}"
        return f"{name}: {self.text}" if self.text else name

    @staticmethod
    def of(status: int, text: str) -> "DmsError":
        """The exception for an ERROR or HANDSHAKE_NACK."""
        kind = _BY_STATUS.get(status)
        return DmsError(text, status) if kind is None else kind(text)


class QueueFull(DmsError):
    """The queue holds as many messages as it may; later it may take this one."""

    of_status = Status.QUEUE_FULL
    exit_code = EXIT_TEMPORARY


class QueueNotFound(DmsError):
    """There is no such queue, or there is none any more."""

    of_status = Status.QUEUE_NOT_FOUND
    exit_code = EXIT_MISSING


class QueueExists(DmsError):
    """A queue of that name is there already."""

    of_status = Status.QUEUE_EXISTS


class Timeout(DmsError):
    """No message came in the time that the server lets a CONSUME wait."""

    of_status = Status.TIMEOUT
    exit_code = EXIT_TEMPORARY


class ProtocolError(DmsError):
    """What was asked is not allowed here, or not well formed; also a name that no server would take."""

    of_status = Status.PROTOCOL_ERROR


class BadMagic(DmsError):
    """What was sent is not DMS."""

    of_status = Status.BAD_MAGIC


class VersionMismatch(DmsError):
    """The server speaks another version."""

    of_status = Status.VERSION_MISMATCH


class PayloadTooLarge(DmsError):
    """A message and its queue's name are at most 4096 bytes together, the name's length included."""

    of_status = Status.PAYLOAD_TOO_LARGE


class InvalidType(DmsError):
    """The server knows no such request."""

    of_status = Status.INVALID_TYPE


class Internal(DmsError):
    """The server could not do it: its disk, or a limit (clients, queues); the text says which."""

    of_status = Status.INTERNAL


class Denied(DmsError):
    """The login is missing or wrong, or no rule of the user allows it."""

    of_status = Status.DENIED


_BY_STATUS: dict[int, type[DmsError]] = {
    kind.of_status: kind for kind in DmsError.__subclasses__() if kind.of_status is not None
}
