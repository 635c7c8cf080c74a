"""A server's refusals as a client raises them: a class for each status, named after it."""

from typing import ClassVar

from dms.wire import NO_JOB, NOT_HELD, Status
from shared.errors import EXIT_MISSING, EXIT_TEMPORARY, BrokerError


class DmsError(BrokerError):
    """A request that the server refused; `status` may be an unknown number.

    `refused`: where many messages were written at once, the indexes of the refused ones, in order.
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
        if kind is ProtocolError and text.startswith(NO_JOB):
            kind = JobNotFound
        if kind is ProtocolError and text == NOT_HELD:
            kind = NotHeld
        return DmsError(text, status) if kind is None else kind(text)


class QueueFull(DmsError):
    """The queue is at its depth; it may take the message later."""

    of_status = Status.QUEUE_FULL
    exit_code = EXIT_TEMPORARY


class QueueNotFound(DmsError):
    """The queue does not exist, or no longer."""

    of_status = Status.QUEUE_NOT_FOUND
    exit_code = EXIT_MISSING


class QueueExists(DmsError):
    """A queue of that name exists."""

    of_status = Status.QUEUE_EXISTS


class Timeout(DmsError):
    """No message came while the server let the CONSUME wait."""

    of_status = Status.TIMEOUT
    exit_code = EXIT_TEMPORARY


class ProtocolError(DmsError):
    """The request is not allowed here, or malformed; also a name that no server would accept."""

    of_status = Status.PROTOCOL_ERROR


class JobNotFound(ProtocolError):
    """The job is in the queue no more, or never was."""

    exit_code = EXIT_MISSING


class NotHeld(ProtocolError):
    """The connection holds no such delivery: it was settled, or the time for it is over."""


class BadMagic(DmsError):
    """What was sent is not DMS."""

    of_status = Status.BAD_MAGIC


class VersionMismatch(DmsError):
    """The server speaks another version."""

    of_status = Status.VERSION_MISMATCH


class PayloadTooLarge(DmsError):
    """A message and its queue's name, with the name's length, are at most 4096 bytes together."""

    of_status = Status.PAYLOAD_TOO_LARGE


class InvalidType(DmsError):
    """The server does not know the request."""

    of_status = Status.INVALID_TYPE


class Internal(DmsError):
    """The server failed: its disk, or a limit (clients, queues); the text says which."""

    of_status = Status.INTERNAL


class Denied(DmsError):
    """The login is missing or wrong, or no rule of the user allows it."""

    of_status = Status.DENIED


_BY_STATUS: dict[int, type[DmsError]] = {
    kind.of_status: kind for kind in DmsError.__subclasses__() if kind.of_status is not None
}
