"""AMQP's frames as bytes: methods through pamqp, checked first; frequent frames packed by hand.

pamqp cuts a string that claims more bytes than there are, and does not look at what is left over. So the
arguments of a method are walked over first, by pamqp's own list of their types, and must fill the frame.

A delivery is `before`, the delivery tag, `between`, the body, and an end octet. What stands around tag and
body is the same for all messages with one head to one consumer, and is made once. Tests compare every
hand-packed frame with pamqp's.
"""

import struct
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from pamqp import base, commands

from dmp.data_types import EMPTY_TABLE, FIELDS_MAX, check_table, read_table, short
from dmp.message import Head
from dmp.refusals import Code, Refusal

METHOD, HEADER, BODY, HEARTBEAT = 1, 2, 3, 8
KINDS = frozenset((METHOD, HEADER, BODY, HEARTBEAT))
FRAME_HEAD = struct.Struct(">BHI")
FRAME_END = b"\xce"
FRAME_OVERHEAD = 8
HEARTBEAT_FRAME = b"\x08\0\0\0\0\0\0\xce"

PUBLISH = b"\0\x3c\0\x28"
ACK = b"\0\x3c\0\x50"
_DELIVER = b"\0\x3c\0\x3c"
_GET_OK = b"\0\x3c\0\x47"
_DECLARE_OK = b"\0\x32\0\x0b"
_RETURN = b"\0\x3c\0\x32"
_ACK_INDEX = 60 << 16 | 80
_NACK_INDEX = 60 << 16 | 120

_U16 = struct.Struct(">H")
_U32 = struct.Struct(">I")
_HEADER_FRAME = struct.Struct(">BHIHHQ")
_CONTENT = struct.Struct(">HHQ")
_ACK_FRAME = struct.Struct(">BHIIQBB")
LINE_ENDS = b"\r\n"  # they are no part of a name
tag_bytes = struct.Struct(">Q").pack
_FIXED = {"octet": 1, "short": 2, "long": 4, "longlong": 8, "timestamp": 8}


def _direct(name: str, number: int, argument: str) -> Any:
    """A method of class 61500 as pamqp has its own: `argument` is its one argument, a short string."""

    def set_argument(self: base.Frame, value: str = "") -> None:
        setattr(self, argument, value)

    fields: dict[str, Any] = {"name": f"Direct.{name}", "frame_id": 61500, "index": 61500 << 16 | number}
    fields |= {"__slots__": [argument], "__init__": set_argument, f"_{argument}": "shortstr"}
    return type(name, (base.Frame,), fields)


class Direct:
    """Class 61500, DMP's own: an application asks for the leases of a sink or a feed."""

    Put = _direct("Put", 10, "sink")
    PutOk = _direct("PutOk", 11, "lease")
    Get = _direct("Get", 20, "feed")
    GetOk = _direct("GetOk", 21, "lease")


# pamqp's own table, which others in the process may use, stays as it is.
METHODS: Mapping[int, type[base.Frame]] = MappingProxyType(
    commands.INDEX_MAPPING
    | {method.index: method for method in (Direct.Put, Direct.PutOk, Direct.Get, Direct.GetOk)}
)


RESERVED: Mapping[type[base.Frame], bytes] = MappingProxyType(
    {
        commands.Connection.OpenOk: b"\0",
        commands.Channel.Open: b"\0",
        commands.Channel.OpenOk: b"\0\0\0\0",
        commands.Basic.GetEmpty: b"\0",
    }
)
"""Arguments that are reserved, and empty: pamqp writes the text 0 for some."""


class FieldTable(dict[str, Any]):
    """The table among a method's arguments, decoded. `raw`: as it came."""

    __slots__ = ("raw",)

    def __init__(self, raw: bytes) -> None:
        super().__init__(read_table(raw))
        self.raw = raw


def decode_untrusted(payload: bytes, fields_max: int = FIELDS_MAX) -> base.Frame:
    """A method; a table among its arguments is a `FieldTable`, of at most `fields_max` fields.

    Raises Refusal: NOT_IMPLEMENTED for a method nobody knows, SYNTAX_ERROR.
    """
    if len(payload) < 4:
        raise Refusal(Code.SYNTAX_ERROR, "a method frame without a method")
    (index,) = _U32.unpack_from(payload)
    found = METHODS.get(index)
    if found is None:
        raise Refusal(Code.NOT_IMPLEMENTED, f"there is no method {index >> 16}.{index & 0xFFFF}")
    name, start, end = _check(found, payload, fields_max)
    method = found.__new__(found)  # every field comes from the wire; some constructors warn of old age
    try:
        method.unmarshal(payload[4:start] + EMPTY_TABLE + payload[end:] if name else payload[4:])
    except (ValueError, ArithmeticError, OSError) as error:
        raise Refusal(Code.SYNTAX_ERROR, f"{found.name}: not text, or a value out of range") from error
    if name:
        setattr(method, name, FieldTable(payload[start:end]))
    return method


def content_method_untrusted(payload: bytes) -> base.Frame | None:
    """A Basic.Deliver or Basic.Return whose names may be any bytes; None for every other method.

    What is not UTF-8 in a name becomes U+FFFD. Raises Refusal (SYNTAX_ERROR).
    """
    found = METHODS.get(int.from_bytes(payload[:4], "big"))
    if found not in (commands.Basic.Deliver, commands.Basic.Return):
        return None
    _check(found, payload, 0)
    method = found.__new__(found)
    at = 4
    for name in found.attributes():
        kind = found.amqp_type(name)
        size = payload[at] if kind == "shortstr" else _FIXED.get(kind, 1)
        at += kind == "shortstr"
        field = payload[at : at + size]
        at += size
        value = field.decode(errors="replace") if kind == "shortstr" else int.from_bytes(field, "big")
        setattr(method, name, bool(value) if kind == "bit" else value)
    return method


def encode(method: base.Frame, channel: int) -> bytes:
    """The whole frame."""
    arguments = RESERVED.get(type(method))
    return framed(channel, _U32.pack(method.index) + (method.marshal() if arguments is None else arguments))


def framed(channel: int, payload: bytes) -> bytes:
    """A method's payload as a frame."""
    return FRAME_HEAD.pack(METHOD, channel, len(payload)) + payload + FRAME_END


def _check(method: type[base.Frame], payload: bytes, fields_max: int) -> tuple[str, int, int]:
    """Raises Refusal unless the arguments fill the payload just so.

    Returns the name of the table among them, and where it stands: no method has two, and most none ("").
    """
    at, end, bits = 4, len(payload), 0
    table = "", 0, 0
    for name in method.attributes():
        kind = method.amqp_type(name)
        if kind == "bit":
            at += bits == 0
            bits = (bits + 1) % 8
            continue
        bits = 0
        if kind == "shortstr":
            at += 1 + (payload[at] if at < end else end)
        elif kind in ("longstr", "table"):
            start = at
            at += 4 + (_U32.unpack_from(payload, at)[0] if at + 4 <= end else end)
            if kind == "table" and at <= end:
                check_table(payload, start, at, fields_max)
                table = name, start, at
        else:
            at += _FIXED[kind]
        if at > end:
            break
    if at != end:
        what = "reach past the end of" if at > end else "do not fill"
        raise Refusal(Code.SYNTAX_ERROR, f"{method.name}: its arguments {what} its frame")
    return table


def publish_frame(channel: int, exchange: bytes, key: bytes, bits: int) -> bytes:
    """Basic.Publish, whole; `bits`: mandatory, and immediate above it."""
    return framed(channel, b"".join((PUBLISH, b"\0\0", short(exchange), short(key), bytes((bits,)))))


def publish_untrusted(payload: bytes) -> tuple[bytes, bytes, bool, bool]:
    """Basic.Publish: exchange, routing key, mandatory, immediate. Raises Refusal (SYNTAX_ERROR)."""
    end = len(payload)
    exchange_end = 7 + payload[6] if end > 6 else end
    key_end = exchange_end + 1 + payload[exchange_end] if exchange_end < end else end
    if key_end + 1 != end:
        raise Refusal(Code.SYNTAX_ERROR, "Basic.Publish: its arguments do not fill its frame")
    bits = payload[key_end]
    exchange = payload[7:exchange_end].translate(None, LINE_ENDS)
    return exchange, payload[exchange_end + 1 : key_end], bool(bits & 1), bool(bits & 2)


def header_untrusted(payload: bytes) -> tuple[int, bytes]:
    """A content header: the body's size, and the properties, flags first. Raises Refusal."""
    if len(payload) < _CONTENT.size + 2:
        raise Refusal(Code.SYNTAX_ERROR, "a content header that is too short")
    class_id, weight, body_bytes = _CONTENT.unpack_from(payload)
    if class_id != 60 or weight:
        raise Refusal(Code.UNEXPECTED_FRAME, "a content header of another class than basic, or with a weight")
    return body_bytes, payload[_CONTENT.size :]


def deliver_before(channel: int, consumer_tag: bytes, head: Head) -> bytes:
    """Basic.Deliver up to the delivery tag."""
    size = 4 + 1 + len(consumer_tag) + 8 + 1 + 1 + len(head.exchange) + 1 + len(head.key)
    return FRAME_HEAD.pack(METHOD, channel, size) + _DELIVER + short(consumer_tag)


def deliver_between(channel: int, head: Head, redelivered: bool, payload_max: int) -> bytes:
    """From behind the delivery tag to the body's first byte; of a large body, to the end of its header."""
    method = b"".join((bytes((redelivered,)), short(head.exchange), short(head.key), FRAME_END))
    if head.large:
        return method + content_header(channel, head.body_bytes, head.properties)
    return method + content_head(channel, head.body_bytes, head.properties, payload_max)


def get_ok(channel: int, tag: int, redelivered: bool, head: Head, left: int) -> bytes:
    """Basic.Get-Ok, whole; `left`: messages still ready."""
    payload = b"".join(
        (
            _GET_OK,
            tag_bytes(tag),
            bytes((redelivered,)),
            short(head.exchange),
            short(head.key),
            _U32.pack(min(left, 0xFFFFFFFF)),
        )
    )
    return framed(channel, payload)


def declare_ok(channel: int, queue: bytes, ready: int, takers: int) -> bytes:
    """Queue.Declare-Ok, whole. By hand since pamqp knows fewer names than there are: it refuses `jobs*`."""
    ready = min(ready, 0xFFFFFFFF)
    return framed(channel, b"".join((_DECLARE_OK, short(queue), _U32.pack(ready), _U32.pack(takers))))


def return_frame(channel: int, code: Code, head: Head) -> bytes:
    """Basic.Return, whole."""
    text = code.name.encode()
    names = short(text), short(head.exchange), short(head.key)
    return framed(channel, b"".join((_RETURN, _U16.pack(code), *names)))


def content_header(channel: int, body_bytes: int, properties: bytes) -> bytes:
    """The header frame, whole."""
    head = _HEADER_FRAME.pack(HEADER, channel, _CONTENT.size + len(properties), 60, 0, body_bytes)
    return head + properties + FRAME_END


def content_head(channel: int, body_bytes: int, properties: bytes, payload_max: int) -> bytes:
    """The header frame, and the beginning of the first body frame: everything before the body's first byte.

    Of an empty body there is no frame. Then it is the header frame without its end octet, so that a body and
    an end octet behind it are right for all.
    """
    frame = content_header(channel, body_bytes, properties)
    if not body_bytes:
        return frame[:-1]
    return frame + FRAME_HEAD.pack(BODY, channel, min(body_bytes, payload_max))


def split(channel: int, body: bytes, payload_max: int) -> bytes:
    """A body as it stands between `content_head` and the last end octet: cut where frames end."""
    if len(body) <= payload_max:
        return body
    parts = [body[:payload_max]]
    for start in range(payload_max, len(body), payload_max):
        part = body[start : start + payload_max]
        parts += (FRAME_END + FRAME_HEAD.pack(BODY, channel, len(part)), part)
    return b"".join(parts)


def ack_frame(channel: int, tag: int, multiple: bool) -> bytes:
    """Basic.Ack, whole."""
    return _ACK_FRAME.pack(METHOD, channel, 13, _ACK_INDEX, tag, multiple, FRAME_END[0])


def nack_frame(channel: int, tag: int, multiple: bool) -> bytes:
    """Basic.Nack, whole."""
    return _ACK_FRAME.pack(METHOD, channel, 13, _NACK_INDEX, tag, multiple, FRAME_END[0])
