"""DMS's frames: bytes to tuples and back, for client and server. No I/O, no state.

Source: PROTOCOL.md, "Frames". For speed a server reads runs of equal frames at once (`dms.runs`).
"""

import json
import struct
from collections.abc import Iterable, Mapping, Sequence
from enum import IntEnum
from typing import Any

import attrs

from shared.errors import BrokerError, LogDeleted, RemoteProtocolError, StoreError

MAGIC = 0xDEADBEEF
VERSION = 1
HEADER = struct.Struct(">IIBBHI")
"""Magic, payload length, type, version, status, message id."""
HEADER_BYTES = HEADER.size
TYPE_AT, ID_AT = 8, 12
"""Where type and message id begin in a header."""
PAYLOAD_BYTES_MAX = 4096
JOB_PAYLOAD_BYTES_MAX = 16384
"""Of DELIVER_WITH and GET_JOB_OK, which have more than the message: only who asks gets these."""
SKIPPED_BYTES_MAX = 1024 * 1024
"""A larger payload than `PAYLOAD_BYTES_MAX` is read and discarded. Above this the connection closes."""
NAME_BYTES_MAX = 64
TEXT_CHARS_MAX = 500
"""Bytes of an error text: it may quote the peer, and must fit a payload."""
DELIVERY_ID_BIT = 0x80000000
"""Set in every delivery id, so that none equals a client's request id."""


class Type(IntEnum):
    """What a frame is."""

    HANDSHAKE = 0x01
    HANDSHAKE_ACK = 0x02
    HANDSHAKE_NACK = 0x04
    CREATE_QUEUE = 0x11
    CREATE_QUEUE_OK = 0x12
    DELETE_QUEUE = 0x13
    DELETE_QUEUE_OK = 0x14
    LIST_QUEUES = 0x15
    LIST_QUEUES_OK = 0x16
    PRODUCE = 0x21
    PRODUCE_OK = 0x22
    PRODUCE_WITH = 0x23
    CONSUME = 0x31
    CONSUME_WITH = 0x33
    DELIVER = 0x34
    DELIVER_WITH = 0x36
    ACK = 0x41
    ACK_OK = 0x42
    NACK = 0x43
    NACK_OK = 0x44
    TOUCH = 0x45
    TOUCH_OK = 0x46
    CANCEL = 0x47
    CANCEL_OK = 0x48
    RESCHEDULE = 0x49
    RESCHEDULE_OK = 0x4A
    GET_JOB = 0x4B
    GET_JOB_OK = 0x4C
    DISCONNECT = 0x51
    DISCONNECT_OK = 0x52
    ERROR = 0xFE


REPLIES: dict[Type, Type] = {
    Type.HANDSHAKE: Type.HANDSHAKE_ACK,
    Type.CREATE_QUEUE: Type.CREATE_QUEUE_OK,
    Type.DELETE_QUEUE: Type.DELETE_QUEUE_OK,
    Type.LIST_QUEUES: Type.LIST_QUEUES_OK,
    Type.PRODUCE: Type.PRODUCE_OK,
    Type.PRODUCE_WITH: Type.PRODUCE_OK,
    Type.CONSUME: Type.DELIVER,
    Type.CONSUME_WITH: Type.DELIVER_WITH,
    Type.ACK: Type.ACK_OK,
    Type.NACK: Type.NACK_OK,
    Type.TOUCH: Type.TOUCH_OK,
    Type.CANCEL: Type.CANCEL_OK,
    Type.RESCHEDULE: Type.RESCHEDULE_OK,
    Type.GET_JOB: Type.GET_JOB_OK,
    Type.DISCONNECT: Type.DISCONNECT_OK,
}
"""Every request, and the type of its successful answer."""


class Status(IntEnum):
    """The outcome of a request."""

    OK = 0
    QUEUE_FULL = 1
    QUEUE_NOT_FOUND = 2
    QUEUE_EXISTS = 3
    TIMEOUT = 4
    PROTOCOL_ERROR = 5
    BAD_MAGIC = 6
    VERSION_MISMATCH = 7
    PAYLOAD_TOO_LARGE = 8
    INVALID_TYPE = 9
    INTERNAL = 10
    DENIED = 11


@attrs.define(eq=False)
class Refusal(BrokerError):
    """A request is answered with ERROR. `limit`: the setting that forbids it, where it is one."""

    status: Status
    text: str
    limit: str = attrs.field(default="", kw_only=True)

    def __str__(self) -> str:
        return f"{self.status.name}: {self.text}"

    def frame(self, message_id: int, type_: Type = Type.ERROR) -> bytes:
        """The answer, an ERROR unless `type_` is given."""
        return pack(type_, message_id, self.text[:TEXT_CHARS_MAX].encode(), self.status)

    def frames(self, ids: Sequence[bytes]) -> bytes:
        """The frames of this answer to several requests. `ids` are four bytes each, as in frames."""
        frame = self.frame(0)
        before, behind = frame[:ID_AT], frame[HEADER_BYTES:]
        return before + (behind + before).join(ids) + behind if ids else b""

    def wire_error(self, message_id: int = 0, type_: Type = Type.ERROR) -> RemoteProtocolError:
        """The error that ends a connection with this answer as its last one."""
        return RemoteProtocolError(self.text, self.frame(message_id, type_), self.status.name)


Frame = tuple[int, int, int, int, bytes]
"""Type, version, status, message id, payload. A tuple, since a frozen object takes three times as long."""


def pack(type_: int, message_id: int, payload: bytes = b"", status: int = 0, version: int = VERSION) -> bytes:
    """One frame. The caller makes sure that the payload has at most 4096 bytes."""
    return HEADER.pack(MAGIC, len(payload), type_, version, status, message_id) + payload


def unpack_header(data: bytes | bytearray | memoryview, at: int = 0) -> tuple[int, int, int, int, int] | None:
    """Length, type, version, status, message id; None until 16 bytes are there.

    Raises RemoteProtocolError.
    """
    if len(data) - at < HEADER_BYTES:
        return None
    magic, length, type_, version, status, message_id = HEADER.unpack_from(data, at)
    if magic != MAGIC:
        raise _bad_magic(f"{magic:08x}", message_id)
    if length > SKIPPED_BYTES_MAX:
        raise _too_large(length, message_id)
    return length, type_, version, status, message_id


def login_of(payload: bytes) -> tuple[str, bytes] | None:
    """User and password of a HANDSHAKE whose payload is a JSON object with both; any other is a name."""
    if not payload.startswith(b"{"):
        return None
    try:
        found = json.loads(payload)
    except (ValueError, RecursionError):
        return None
    user, password = found.get("user"), found.get("password")
    if not isinstance(user, str) or not isinstance(password, str):
        return None
    return user, password.encode("utf-8", "replace")


def client_of(payload: bytes) -> object:
    """What a client calls itself in a HANDSHAKE's payload: all of it, or the member `client`."""
    if not payload.startswith(b"{"):
        return payload
    try:
        return json.loads(payload).get("client")
    except (ValueError, RecursionError, AttributeError):
        return payload


def decode(data: bytes | bytearray, at: int = 0) -> tuple[list[Frame], int]:
    """All whole frames from `at` on, and the position behind them. For a client.

    Raises RemoteProtocolError at the first wrong byte of the magic, and for a payload above 4096 bytes.
    """
    frames: list[Frame] = []
    while (header := unpack_header(data, at)) is not None:
        length, type_, version, status, message_id = header
        if length > PAYLOAD_BYTES_MAX and (
            type_ not in (Type.DELIVER_WITH, Type.GET_JOB_OK) or length > JOB_PAYLOAD_BYTES_MAX
        ):
            raise _too_large(length, message_id)
        start = at + HEADER_BYTES
        at_end = start + length
        if at_end > len(data):
            break
        frames.append((type_, version, status, message_id, bytes(data[start:at_end])))
        at = at_end
    begun = bytes(data[at : at + 4])
    if not MAGIC.to_bytes(4, "big").startswith(begun):
        raise _bad_magic(begun.hex())
    return frames, at


def _bad_magic(begun: str, message_id: int = 0) -> RemoteProtocolError:
    return Refusal(Status.BAD_MAGIC, f"a frame begins with deadbeef, not {begun}").wire_error(message_id)


def _too_large(length: int, message_id: int) -> RemoteProtocolError:
    text = f"a payload of {length} bytes; at most {PAYLOAD_BYTES_MAX}"
    return Refusal(Status.PAYLOAD_TOO_LARGE, text).wire_error(message_id)


# -- payloads


def pack_object(said: Mapping[str, Any]) -> bytes:
    """A JSON object behind its length, as requests and answers about jobs have it. Raises Refusal."""
    text = json.dumps(said, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "surrogatepass")
    if len(text) > 0xFFFF:
        raise malformed(f"{len(text)} bytes of JSON; at most {0xFFFF}")
    return len(text).to_bytes(2, "big") + text


def pack_nack(delay_ms: int, text: str) -> bytes:
    """The payload of a NACK that may say when its message comes again, and why it came back."""
    if not (delay_ms or text):
        return b""
    return b"\0\0" + delay_ms.to_bytes(4, "big") + text.encode()


def split_object(payload: bytes, at: int = 0) -> tuple[bytes, bytes]:
    """The JSON that begins at `at`, not checked, and what follows it. Raises Refusal."""
    start = at + 2
    if start > len(payload):
        raise malformed("behind the name is a JSON object: its length in 2 bytes, then so many bytes")
    stop = start + int.from_bytes(payload[at:start], "big")
    if stop > len(payload):
        raise malformed(
            f"the JSON object is said to be {stop - start} bytes, and {len(payload) - start} follow"
        )
    return payload[start:stop], payload[stop:]


def pack_name(name: str) -> bytes:
    """A queue's name as it begins a payload. Raises Refusal for what is no name."""
    encoded = name.encode("utf-8", "surrogatepass")
    name_untrusted(encoded)
    return len(encoded).to_bytes(2, "big") + encoded


def split_name(payload: bytes) -> tuple[bytes, int]:
    """The name that begins `payload`, not checked, and where it ends. Raises Refusal."""
    if len(payload) < 2:
        raise malformed("the payload begins with a name: its length in 2 bytes, then so many bytes")
    end = 2 + int.from_bytes(payload[:2], "big")
    if end > len(payload):
        raise malformed(f"the name is said to be {end - 2} bytes, and {len(payload) - 2} follow")
    return payload[2:end], end


def name_untrusted(name: bytes) -> str:
    """A queue's name as text. Raises Refusal."""
    if not 1 <= len(name) <= NAME_BYTES_MAX:
        raise malformed(f"a name is 1 to {NAME_BYTES_MAX} bytes, not {len(name)}")
    try:
        text = name.decode("utf-8")
    except UnicodeDecodeError:
        raise malformed("a name is UTF-8") from None
    if not text.isprintable() and any(ord(char) < 32 or 127 <= ord(char) < 160 for char in text):
        raise malformed("a name holds no control characters")
    return text


def refusal_for(error: StoreError) -> Refusal:
    """The refusal for an error of the store."""
    if isinstance(error, LogDeleted):
        return Refusal(Status.QUEUE_NOT_FOUND, "the queue was deleted")
    return Refusal(Status.INTERNAL, " ".join(str(error).split()) or type(error).__name__)


NOT_HELD = "this connection holds no delivery of that id"
NO_JOB = "no job "
"""How the text of a refusal begins where what it is about is not there."""


def malformed(text: str) -> Refusal:
    return Refusal(Status.PROTOCOL_ERROR, text)


def pack_list(total: int, entries: Iterable[tuple[bytes, int]]) -> bytes:
    """The payload of LIST_QUEUES_OK: of `entries`, name and depth sorted by name, as many as fit.

    `total`: the number of all queues, stated as 65,535 at most.
    """
    parts = [min(total, 0xFFFF).to_bytes(2, "big")]
    room = PAYLOAD_BYTES_MAX - 2
    for name, depth in entries:
        room -= 6 + len(name)
        if room < 0:
            break
        parts.append(
            b"%b%b%b" % (len(name).to_bytes(2, "big"), name, min(depth, 0xFFFFFFFF).to_bytes(4, "big"))
        )
    return b"".join(parts)


def unpack_list(payload: bytes) -> tuple[int, Sequence[tuple[str, int]]]:
    """The number of all queues, and those of this page with their depths. Raises Refusal."""
    if len(payload) < 2:
        raise malformed("a list begins with the number of all queues, in 2 bytes")
    entries: list[tuple[str, int]] = []
    at = 2
    while at < len(payload):
        name, used = split_name(payload[at:])
        at += used
        if at + 4 > len(payload):
            raise malformed("a list's last depth is cut short")
        entries.append((name_untrusted(name), int.from_bytes(payload[at : at + 4], "big")))
        at += 4
    return int.from_bytes(payload[:2], "big"), entries
