"""DMP's bytes (PROTOCOL.md, "DMP"): the dialog's short strings, and messages in envelopes. No I/O, no state;
both ends use it.
"""

import math
import struct
from collections.abc import Iterator
from enum import IntEnum, IntFlag

import attrs

from dmp.data_types import SHORT_BYTES_MAX, short
from dmp.properties import NO_PROPERTIES, end_of_properties
from shared.columns import equal_rows
from shared.errors import RemoteProtocolError

AMQP_HEADER = b"AMQP\x00\x00\x09\x01"
DMP_HEADER = b"AMQP\x0a\x01\x00\x01"
"""The first eight bytes of a connection: which of the two protocols of the port it speaks."""

BODY_BYTES_MAX = (1 << 24) - 1  # what three bytes of length can say
NULL_MESSAGE = b"\0\0\0\0"
SIZE_BYTES = LENGTH_BYTES = 4
FLAGS_BYTES = 2
NAMES_BYTES = 2 + 2 * SHORT_BYTES_MAX
ENVELOPE_BYTES_MIN = 1 + 1 + FLAGS_BYTES + LENGTH_BYTES  # behind the size, of the shortest message there is
PROPERTIES_BYTES_MAX = 128 * 1024
"""Flags and properties: they must fit one frame where a message goes on to AMQP."""

# Codecs of recorded blocks (RECORDING.md), of one layout: whole messages
RECORDED_MESSAGES = 1  # as they came into a sink
RECORDED_PUBLISHES = 2  # as `basic.publish` brought them

_U32 = struct.Struct(">I")
read_u32 = _U32.unpack_from
pack_u32 = _U32.pack


class Reply(IntEnum):
    """The specification's response codes; as text, its indicators."""

    OK = 200
    BAD_LEASE = 402
    NO_ACCESS = 403
    NOT_FOUND = 404
    SYNTAX_ERROR = 502
    INVALID = 503
    NOT_ALLOWED = 530
    NOT_IMPLEMENTED = 540
    INTERNAL_ERROR = 541

    def __str__(self) -> str:
        return f"{int(self)} {self.name.replace('_', '-')}"


class MessageOptions(IntFlag):
    """The options of the later revision; its other bits are ignored."""

    IMMEDIATE = 1
    MANDATORY = 2


NO_OPTIONS = MessageOptions(0)
GREETING = "DMP/0.1"


@attrs.frozen
class Message:
    """One message. `properties`: property flags and properties as AMQP writes them."""

    exchange: bytes
    key: bytes
    body: bytes = attrs.field(repr=lambda body: f"<{len(body)} bytes>")
    properties: bytes = NO_PROPERTIES
    options: MessageOptions = NO_OPTIONS


def wire_error(code: Reply, text: str) -> RemoteProtocolError:
    """The error for what a peer did wrong: its connection is told this reply, and closed."""
    return RemoteProtocolError(text, reply(code, text), fault=f"dmp {code.name}")


def reply(code: Reply, text: str) -> bytes:
    """A response, length and text together; cut where it would be too long."""
    return short(f"{code} {text}".encode()[:SHORT_BYTES_MAX].decode(errors="ignore").encode())


def ready(sink: bool, name: bytes) -> bytes:
    """The answer to a good lease. A name so long that it would not fit is cut."""
    text = f'{Reply.OK} Ready to {"write to" if sink else "read from"} "'
    shown = name.decode(errors="replace").encode()[: SHORT_BYTES_MAX - len(text) - 1]
    return short(text.encode() + shown.decode(errors="ignore").encode() + b'"')


def read_reply(text: bytes) -> tuple[int, str]:
    """A response's code and the rest of it. Raises RemoteProtocolError where it is no response."""
    code, _, rest = text.decode(errors="backslashreplace").partition(" ")
    if len(code) != 3 or not (code.isascii() and code.isdigit()):
        raise RemoteProtocolError(f"{text[:64]!r} is no response")
    return int(code), rest


def envelope(
    exchange: bytes, key: bytes, properties: bytes, body_bytes: int, options: MessageOptions = NO_OPTIONS
) -> bytes:
    """All of a message that stands before its body."""
    inner = b"".join(  # in one go, without `short`: a client does this for each message
        (
            bytes((len(exchange),)),
            exchange,
            bytes((len(key),)),
            key,
            properties,
            pack_u32(options << 24 | body_bytes),
        )
    )
    return pack_u32(len(inner) + body_bytes) + inner


def message(message: Message) -> bytes:
    """A message, whole."""
    head = envelope(message.exchange, message.key, message.properties, len(message.body), message.options)
    return head + message.body


@attrs.frozen
class MessageLayout:
    """Where the parts of a message stand: `[at, properties_end)` are its names and properties."""

    exchange: bytes
    key: bytes
    properties_at: int
    properties_end: int
    body_at: int
    end: int
    options: MessageOptions


def end_of(data: bytes | bytearray, at: int, size_max: int) -> int | None:
    """Where the message at `at` ends, which may be beyond what is there; None: not even its size is there.

    Raises RemoteProtocolError for a size that no message has.
    """
    if at + SIZE_BYTES > len(data):
        return None
    (size,) = read_u32(data, at)
    if size > size_max or 0 < size < ENVELOPE_BYTES_MIN:
        raise wire_error(Reply.SYNTAX_ERROR, f"a message of size {size}")
    return int(at + SIZE_BYTES + size)


def layout_untrusted(data: bytes, at: int, end: int, body_bytes_max: int = BODY_BYTES_MAX) -> MessageLayout:
    """The message in [at, end), which is not a null message. Raises RemoteProtocolError if malformed."""
    exchange_at = at + SIZE_BYTES
    exchange_end = exchange_at + 1 + data[exchange_at]
    key_end = exchange_end + 1 + data[exchange_end] if exchange_end < end else end
    if key_end + FLAGS_BYTES > end:
        raise wire_error(Reply.SYNTAX_ERROR, "names that reach past the end of their message")
    properties_end = end_of_properties(data, key_end, end)
    body_at = properties_end + LENGTH_BYTES
    if body_at > end:
        raise wire_error(Reply.SYNTAX_ERROR, "properties that reach past the end of their message")
    (length,) = read_u32(data, properties_end)
    options = NO_OPTIONS
    if length != end - body_at:
        if not length >> 24 or length & BODY_BYTES_MAX != end - body_at:
            text = f"a body length of {length} where {end - body_at} bytes are left"
            raise wire_error(Reply.SYNTAX_ERROR, text)
        options = MessageOptions(length >> 24 & (MessageOptions.IMMEDIATE | MessageOptions.MANDATORY))
    if end - body_at > body_bytes_max:
        raise wire_error(Reply.SYNTAX_ERROR, f"a body of {end - body_at} bytes, {body_bytes_max} at most")
    return MessageLayout(
        data[exchange_at + 1 : exchange_end],
        data[exchange_end + 1 : key_end],
        key_end,
        properties_end,
        body_at,
        end,
        options,
    )


def read_envelope(before: bytes) -> tuple[bytes, bytes, bytes, int]:
    """Exchange, key, properties and the body's length, from all that stands before a message's body."""
    exchange_end = SIZE_BYTES + 1 + before[SIZE_BYTES]
    key_end = exchange_end + 1 + before[exchange_end]
    body_bytes = SIZE_BYTES + read_u32(before)[0] - len(before)
    return (
        before[SIZE_BYTES + 1 : exchange_end],
        before[exchange_end + 1 : key_end],
        before[key_end:-LENGTH_BYTES],
        body_bytes,
    )


def take_messages(data: bytes, body_bytes_max: int = BODY_BYTES_MAX) -> tuple[list[Message], int]:
    """Every whole message at the front, null messages left out, and where they end.

    Raises RemoteProtocolError.
    """
    found: list[Message] = []
    at = 0
    size_max = size_max_of(body_bytes_max)
    while (end := end_of(data, at, size_max)) is not None and end <= len(data):
        if end > at + SIZE_BYTES:
            parts = layout_untrusted(data, at, end, body_bytes_max)
            properties = data[parts.properties_at : parts.properties_end]
            found.append(
                Message(parts.exchange, parts.key, data[parts.body_at : end], properties, parts.options)
            )
        at = end
    return found, at


def size_max_of(body_bytes_max: int) -> int:
    """What a message's size field can be at most."""
    return NAMES_BYTES + PROPERTIES_BYTES_MAX + LENGTH_BYTES + body_bytes_max


def uniform(data: bytes, at: int, stride: int, head_bytes: int) -> int:
    """How many whole messages from `at` on have the same envelope as the one there, and so its size `stride`.

    Lengths stand in the last columns: where messages differ they show it first.
    """
    if not data.startswith(data[at : at + head_bytes], at + stride):
        return 1
    return equal_rows(data, at, stride, range(head_bytes - 1, -1, -1), (len(data) - at) // stride)


def runs(data: bytes, most: float = math.inf) -> Iterator[tuple[bytes, list[bytes]]]:
    """Whole, well-formed messages as runs with one envelope, `most` in each at most: that, and the bodies.

    Null messages are left out.
    """
    at, stop = 0, len(data)
    before = b""
    bodies: list[bytes] = []
    while at < stop:
        end = at + SIZE_BYTES + read_u32(data, at)[0]
        if end > at + SIZE_BYTES:
            if not bodies or len(bodies) == most or not data.startswith(before, at):
                if bodies:
                    yield before, bodies
                before, bodies = data[at : layout_untrusted(data, at, end).body_at], []
            bodies.append(data[at + len(before) : end])
        at = end
    if bodies:
        yield before, bodies
