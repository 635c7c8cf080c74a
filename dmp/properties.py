"""A message's properties as they stand on the wire: flags, then the properties that the flags announce.

They go from publisher to consumer as they came, byte for byte, but for `BCC`. What the broker itself must
know is read off by walking over them, which also proves them well formed; tables are decoded only where a
headers exchange or a dead letter asks for it.
"""

import functools
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

import attrs
from pamqp import commands, decode

from dmp.data_types import NO_VALUE, SHORT_BYTES_MAX, check_table, read_leniently, read_table, without_field
from dmp.refusals import Code, Refusal

_U16 = struct.Struct(">H")
_U32 = struct.Struct(">I")

_SHORT, _TABLE, _OCTET, _TIME = range(4)
FIELDS = (
    (0x8000, _SHORT, "content_type"),
    (0x4000, _SHORT, "content_encoding"),
    (0x2000, _TABLE, "headers"),
    (0x1000, _OCTET, "delivery_mode"),
    (0x0800, _OCTET, "priority"),
    (0x0400, _SHORT, "correlation_id"),
    (0x0200, _SHORT, "reply_to"),
    (0x0100, _SHORT, "expiration"),
    (0x0080, _SHORT, "message_id"),
    (0x0040, _TIME, "timestamp"),
    (0x0020, _SHORT, "message_type"),
    (0x0010, _SHORT, "user_id"),
    (0x0008, _SHORT, "app_id"),
    (0x0004, _SHORT, "cluster_id"),
)
_UNUSED_FLAGS = 0x0003
NO_PROPERTIES = b"\x00\x00"
PERSISTENT = b"\x10\x00\x02"
"""Property flags and the delivery mode alone: where its queue is durable the message is kept."""
UNREADABLE = (Refusal, ValueError, TypeError, ArithmeticError, OSError, struct.error)
"""What `unpack` raises for well-formed properties with a value that Python has none of."""
_READ: Mapping[int, Callable[[bytes], Any]] = {
    _SHORT: lambda data: decode.short_str(data)[1],
    _TABLE: read_table,
    _OCTET: lambda data: decode.octet(data)[1],
    _TIME: lambda data: decode.timestamp(data)[1],
}
_PERSISTENT = 2
TTL_MS_MAX = (1 << 63) - 1
CC, BCC = "CC", "BCC"
KEYS_MAX = 256
"""Keys of one message, besides its own; RabbitMQ sets no bound. What they cost together has a bound of its
own, where an exchange looks for its bindings."""


@attrs.frozen
class Noted:
    """What the broker has to know of a message's properties. `headers`, `reply_to`: their places."""

    persistent: bool = False
    ttl_ms: int | None = None
    headers: tuple[int, int] | None = None
    reply_to: tuple[int, int] | None = None
    user_id: bytes | None = None
    priority: int = 0


_NOTHING = Noted()


def note_untrusted(properties: bytes) -> Noted:
    """Walk over `properties`, flags first. Raises Refusal: SYNTAX_ERROR, or PRECONDITION_FAILED."""
    if properties == NO_PROPERTIES:
        return _NOTHING
    if len(properties) < 2:
        raise Refusal(Code.SYNTAX_ERROR, "a content header without its property flags")
    (flags,) = _U16.unpack_from(properties)
    if flags & _UNUSED_FLAGS:
        raise Refusal(Code.SYNTAX_ERROR, "property flags that class basic does not have")
    at, end = 2, len(properties)
    spans: dict[str, tuple[int, int]] = {}
    for name, _, start, at in _announced(properties, 0, end):
        if at > end:
            raise Refusal(Code.SYNTAX_ERROR, f"property {name} reaches past the end of its frame")
        spans[name] = start, at
    if at != end:
        raise Refusal(Code.SYNTAX_ERROR, f"{end - at} surplus bytes behind the properties")
    headers = spans.get("headers")
    if headers is not None:
        check_table(properties, headers[0], headers[1])
    mode = spans.get("delivery_mode")
    user = spans.get("user_id")
    priority = spans.get("priority")
    return Noted(
        persistent=mode is not None and properties[mode[0]] == _PERSISTENT,
        ttl_ms=_ttl(properties, spans.get("expiration")),
        headers=headers,
        reply_to=spans.get("reply_to"),
        user_id=None if user is None else properties[user[0] + 1 : user[1]],
        priority=0 if priority is None else properties[priority[0]],
    )


def end_of_properties(data: bytes, at: int, end: int) -> int:
    """Where the properties whose flags stand at `at` end by their lengths; beyond `end` where they lie."""
    place = at + 2
    for announced in _announced(data, at, end):
        place = announced[3]
    return place


def _announced(data: bytes, at: int, end: int) -> Iterator[tuple[str, int, int, int]]:
    """Name and kind of each property that the flags at `at` announce, and where it begins and ends. One whose
    length lies ends beyond `end`, and so do those behind it.
    """
    (flags,) = _U16.unpack_from(data, at)
    at += 2
    for name, kind in _fields_of(flags):
        start = at
        if kind == _SHORT:
            at += 1 + (data[at] if at < end else end)
        elif kind == _TABLE:
            at += 4 + (_U32.unpack_from(data, at)[0] if at + 4 <= end else end)
        else:
            at += 1 if kind == _OCTET else 8
        yield name, kind, start, at


@functools.lru_cache(256)
def _fields_of(flags: int) -> Sequence[tuple[str, int]]:
    """Name and kind of each. Kept, since a producer has few sets of properties: 0.3 us saved of 2."""
    return [(name, kind) for bit, kind, name in FIELDS if flags & bit]


def with_headers(properties: bytes, table: bytes, *, without: str = "") -> bytes:
    """Well-formed properties with `table` for headers, without one of them; the others as they stand."""
    there = {name: data for name, _, data in _each(properties) if name != without}
    there["headers"] = table
    kept = [(bit, there[name]) for bit, _, name in FIELDS if name in there]
    return _U16.pack(sum(bit for bit, _ in kept)) + b"".join(data for _, data in kept)


def expiration_in(properties: bytes) -> str:
    """The text of well-formed properties' expiration; empty without one."""
    return next((data[1:].decode() for name, _, data in _each(properties) if name == "expiration"), "")


def headers_of(properties: bytes, noted: Noted, *, leniently: bool) -> dict[str, Any]:
    """The headers table, decoded; empty where there is none. Raises Refusal, but not `leniently`."""
    if noted.headers is None:
        return {}
    return (read_leniently if leniently else read_table)(properties[slice(*noted.headers)])


def unpack(properties: bytes) -> commands.Basic.Properties:
    """Well-formed properties, decoded. Raises UNREADABLE."""
    unpacked = commands.Basic.Properties()
    for name, kind, data in _each(properties):
        setattr(unpacked, name, _READ[kind](data))
    return unpacked


def unpack_readable(properties: bytes) -> commands.Basic.Properties:
    """What a server sent, decoded, without the properties and headers that Python has no value for.

    Raises Refusal (SYNTAX_ERROR) where they do not fill their place.
    """
    if end_of_properties(properties, 0, len(properties)) != len(properties):
        raise Refusal(Code.SYNTAX_ERROR, "properties do not fill their content header")
    unpacked = commands.Basic.Properties()
    for name, kind, data in _each(properties):
        with suppress(*UNREADABLE):
            if kind == _TABLE:
                check_table(data, 0, len(data))
                fields = read_leniently(data).items()
                unpacked.headers = {name: value for name, value in fields if value is not NO_VALUE}
            else:
                setattr(unpacked, name, _READ[kind](data))
    return unpacked


def _each(properties: bytes) -> Iterator[tuple[str, int, bytes]]:
    """Name, kind and bytes of each property that is there; they are well formed."""
    for name, kind, start, end in _announced(properties, 0, len(properties)):
        yield name, kind, properties[start:end]


def without_bcc(properties: bytes, noted: Noted) -> tuple[bytes, tuple[bytes, ...]]:
    """The properties as they are delivered, and the further routing keys. Raises Refusal."""
    if noted.headers is None:
        return properties, ()
    start, end = noted.headers
    table = properties[start:end]
    if b"\x02CC" not in table and b"\x03BCC" not in table:  # nearly all: nothing is decoded
        return properties, ()
    headers = read_table(table)
    keys = (*keys_in(headers, CC), *keys_in(headers, BCC))
    if len(keys) > KEYS_MAX:
        text = f"{len(keys)} routing keys in CC and BCC, at most {KEYS_MAX}"
        raise Refusal(Code.PRECONDITION_FAILED, text)
    if BCC in headers:
        properties = b"".join((properties[:start], without_field(table, BCC.encode()), properties[end:]))
    return properties, tuple(dict.fromkeys(keys))


def keys_in(headers: Mapping[str, Any], name: str) -> Iterable[bytes]:
    """Raises Refusal where it is no array; what in it is no string is not looked at, as RabbitMQ has it."""
    values = headers.get(name, [])
    if not isinstance(values, list):
        text = f"invalid message: unacceptable type in header {name}, it is an array of long strings"
        raise Refusal(Code.PRECONDITION_FAILED, text)
    keys = [value.encode() if isinstance(value, str) else value for value in values]
    keys = [key for key in keys if type(key) is bytes]
    if any(len(key) > SHORT_BYTES_MAX for key in keys):
        raise Refusal(Code.PRECONDITION_FAILED, f"a routing key in {name} is above {SHORT_BYTES_MAX} bytes")
    return keys


def _ttl(properties: bytes, span: tuple[int, int] | None) -> int | None:
    if span is None:
        return None
    text = properties[span[0] + 1 : span[1]]
    if not text.isdigit() or int(text) > TTL_MS_MAX:
        raise Refusal(Code.PRECONDITION_FAILED, "invalid expiration: it is milliseconds, in decimal digits")
    return int(text)
