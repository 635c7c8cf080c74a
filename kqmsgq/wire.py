"""KqueueMsgQ's events: bytes to events and back. No I/O, no state; both ends use it.

Source: PROTOCOL.md, "Events". A server forwards messages without parsing their fields (`kqmsgq.queues`); it
finds their ends here. A client parses the messages that it gets.
"""

from enum import StrEnum

import attrs

from shared.errors import RemoteProtocolError, printable

PRODUCE = b"produce"
CONSUME = b"consume"
ACCOUNT = b"account"
ROLE_BYTES = 7

MESSAGE = ord("*")
SUBSCRIBE = ord(">")
UNSUBSCRIBE = ord("/")

LENGTH_BYTES = 4
USER_BYTES_MAX = 64
PASSWORD_BYTES_MAX = 1024
NAME_AT = 1 + LENGTH_BYTES
"""The offset of the queue's name in an event."""
HEADER_BYTES = NAME_AT + LENGTH_BYTES
"""Bytes of a message's header without the name: the event byte and both lengths."""

ALL = "*"
"""In the address of a source: all queues, present and future."""
ALL_IS_NO_TARGET = "* is all queues, which is no target"

RECORDED_MESSAGES = 1
"""The codec of recorded blocks (RECORDING.md): whole message events as a producer sent them."""

Buffer = bytes | bytearray


class Fault(StrEnum):
    """Why a connection is closed, without a reply; also the label in metrics."""

    ROLE = "role"
    EVENT = "event"
    SIDE = "side"
    NAME = "name_too_long"
    MESSAGE = "message_too_large"
    SUBSCRIPTIONS = "subscriptions"
    TOO_LATE = "too_late"
    LOGIN = "login"


@attrs.frozen
class Message:
    """A message, and the queue that it was sent to."""

    queue: bytes
    body: bytes = attrs.field(repr=lambda body: f"<{len(body)} bytes>")


def message(queue: bytes, body: bytes) -> bytes:
    """The event that carries `body` to a queue, or from it to a consumer."""
    return b"*%b%b%b%b" % (len(queue).to_bytes(4, "big"), queue, len(body).to_bytes(4, "big"), body)


def subscribe(queue: bytes = b"") -> bytes:
    """The event that subscribes to a queue; without a name, to all queues."""
    return b">%b%b" % (len(queue).to_bytes(4, "big"), queue)


def unsubscribe(queue: bytes = b"") -> bytes:
    """The event that ends the subscription to a queue; without a name, all subscriptions."""
    return b"/%b%b" % (len(queue).to_bytes(4, "big"), queue)


def account(user: str, password: str) -> bytes:
    """The login, which a client sends before its role where the server requires one."""
    return ACCOUNT + b"".join(
        len(each).to_bytes(4, "big") + each for each in (user.encode(), password.encode())
    )


def take_account(data: Buffer, at: int) -> tuple[bytes, bytes, int] | None:
    """User and password behind the word `account` at `at`, and where they end; None if incomplete.

    Raises RemoteProtocolError.
    """
    at += ROLE_BYTES
    found = []
    for what, most in (("a user's name", USER_BYTES_MAX), ("a password", PASSWORD_BYTES_MAX)):
        if len(data) < at + LENGTH_BYTES:
            return None
        length = int.from_bytes(data[at : at + LENGTH_BYTES], "big")
        at += LENGTH_BYTES
        if length > most:
            raise RemoteProtocolError(f"{what} of {length} bytes, {most} at most", fault=Fault.LOGIN)
        if len(data) < at + length:
            return None
        found.append(bytes(data[at : at + length]))
        at += length
    return found[0], found[1], at


def name_end(data: Buffer, at: int, name_bytes_max: int) -> int | None:
    """Where the name of the event at `at` ends; None if its length is incomplete.

    Raises RemoteProtocolError.
    """
    if len(data) < at + NAME_AT:
        return None
    length = int.from_bytes(data[at + 1 : at + NAME_AT], "big")
    if length > name_bytes_max:
        raise RemoteProtocolError(
            f"a queue name of {length} bytes, {name_bytes_max} at most", fault=Fault.NAME
        )
    return at + NAME_AT + length


def message_end(data: Buffer, after_name: int, message_bytes_max: int) -> int | None:
    """Where the message whose name ends at `after_name` ends; None if its length is incomplete.

    Raises RemoteProtocolError.
    """
    begins = after_name + LENGTH_BYTES
    if len(data) < begins:
        return None
    length = int.from_bytes(data[after_name:begins], "big")
    if length > message_bytes_max:
        raise RemoteProtocolError(
            f"a message of {length} bytes, {message_bytes_max} at most", fault=Fault.MESSAGE
        )
    return begins + length


def take_messages(data: Buffer, name_bytes_max: int, message_bytes_max: int) -> tuple[list[Message], int]:
    """Every whole message at the front of `data`, and where they end. Raises RemoteProtocolError."""
    found: list[Message] = []
    at = 0
    while at < len(data):
        if data[at] != MESSAGE:
            said = printable(data[at : at + 1])
            raise RemoteProtocolError(
                f"the server's answer is not KqueueMsgQ's: event {said}", fault=Fault.EVENT
            )
        after_name = name_end(data, at, name_bytes_max)
        if after_name is None:
            break
        end = message_end(data, after_name, message_bytes_max)
        if end is None or end > len(data):
            break
        queue = bytes(data[at + NAME_AT : after_name])
        found.append(Message(queue, bytes(data[after_name + LENGTH_BYTES : end])))
        at = end
    return found, at
