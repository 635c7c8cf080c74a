"""AMQP's data types that the broker takes apart itself: short strings, and field tables from a peer.

pamqp does not notice a string that claims more bytes than there are. It recurses as deep as tables are
nested, and copies the rest of a table for each field. So a table is walked over first, and every length in it
is checked. Then it is decoded field by field, in place: pamqp gets single values.
"""

import struct
from collections.abc import Iterator, Mapping
from operator import itemgetter
from typing import Any

from pamqp import decode, encode

from dmp.refusals import Code, Refusal

SHORT_BYTES_MAX = 255  # of names, too, and of routing keys
NO_VALUE = object()
"""In place of a field's value that Python has none for: it equals no other."""
EMPTY_TABLE = b"\0\0\0\0"
DEPTH_MAX = 16  # tables in tables. RabbitMQ sets none and grows its stack; dead-letter headers need three.
FIELDS_MAX = 4096  # in one table, with those of inner tables: decoding costs some microseconds a field

_U32 = struct.Struct(">I")
_FIXED = {
    **dict.fromkeys(b"tbB", 1),
    **dict.fromkeys(b"sUu", 2),
    **dict.fromkeys(b"Iif", 4),
    **dict.fromkeys(b"lLdT", 8),
    **dict.fromkeys(b"D", 5),
    **dict.fromkeys(b"V\x00", 0),
}
_TYPES = {
    **dict(zip(b"tbBsUu", ("bool", "byte", "unsignedbyte", "short", "short", "unsignedshort"), strict=True)),
    **dict(zip(b"IilLfd", ("signedint", "unsignedint", "long", "long", "float", "double"), strict=True)),
    **dict(zip(b"DSxTAV", ("decimal", "longstr", "binary", "timestamp", "array", "void"), strict=True)),
}
_STRINGS = frozenset(b"Sx")
_TABLE, _ARRAY = b"FA"
# RabbitMQ's clients write a short-int as `s`, which the published grammar has for short strings; there it is
# `U`, which pamqp does not know. `l` and `L` are both signed, as RabbitMQ and pamqp have them.
_DECODE = {**decode.TABLE_MAPPING, b"U": decode.short_int}


def short(data: bytes) -> bytes:
    """`data`, at most SHORT_BYTES_MAX bytes, as a short string: a byte that counts, and so many bytes."""
    return bytes((len(data),)) + data


def take_short(data: bytes | bytearray, at: int = 0) -> bytes | None:
    """The short string at `at`; None while it is not all there."""
    if at >= len(data) or at + 1 + data[at] > len(data):
        return None
    return bytes(data[at + 1 : at + 1 + data[at]])


def check_table(data: bytes, start: int, end: int, fields_max: int = FIELDS_MAX) -> None:
    """Raises Refusal (SYNTAX_ERROR) unless a well-formed table stands in exactly [start, end)."""
    if end - start < 4 or end > len(data) or start + 4 + _U32.unpack_from(data, start)[0] != end:
        raise _malformed("its length is not that of its place")
    waiting = [(start + 4, end, _TABLE, 1)]
    fields = 0
    while waiting:
        at, stop, kind, depth = waiting.pop()
        while at < stop:
            fields += 1
            if fields > fields_max:
                raise _malformed(f"more than {fields_max} fields")
            if kind == _TABLE:
                name_end = at + 1 + data[at]
                if name_end > stop:
                    raise _malformed("a name reaches past its end")
                try:
                    data[at + 1 : name_end].decode()
                except UnicodeDecodeError:
                    raise _malformed("a name is not UTF-8") from None
                at = name_end
            if at >= stop:
                raise _malformed("a field without a value")
            value = data[at]
            at += 1
            size = _FIXED.get(value)
            if size is None:
                if at + 4 > stop or not (value in _STRINGS or value in (_TABLE, _ARRAY)):
                    raise _malformed("a value of no known type")
                size = 4 + _U32.unpack_from(data, at)[0]
                if value in (_TABLE, _ARRAY):
                    if depth == DEPTH_MAX:
                        raise _malformed(f"more than {DEPTH_MAX} tables in each other")
                    if at + size <= stop:
                        waiting.append((at + 4, at + size, value, depth + 1))
            at += size
            if at > stop:
                raise _malformed("a value reaches past its end")


def field_table(fields: Mapping[str, Any]) -> bytes:
    """A table in bytes. A number has one type, whatever its value: clients of typed languages go by that.

    Raises TypeError, ValueError, struct.error for what the wire cannot have.
    """
    return _counted(b"".join(short(name.encode()) + _field(value) for name, value in fields.items()))


def _field(value: Any) -> bytes:
    """A value in bytes, its type first."""
    if isinstance(value, Mapping):
        return b"F" + field_table(value)
    if isinstance(value, list):
        return b"A" + _counted(b"".join(map(_field, value)))
    if isinstance(value, int) and not isinstance(value, bool):
        return b"l" + value.to_bytes(8, "big", signed=True)
    if isinstance(value, float):
        return b"d" + struct.pack(">d", value)
    return encode.encode_table_value(value)


def _counted(data: bytes) -> bytes:
    return _U32.pack(len(data)) + data


def without_field(data: bytes, name: bytes) -> bytes:
    """A table that has been checked, without the fields by that name; the others as they stand."""
    kept = [
        data[at:end] for at, value_at, end in _fields(data, 4, len(data)) if data[at + 1 : value_at] != name
    ]
    return _counted(b"".join(kept))


def sorted_table(data: bytes) -> bytes:
    """A table that has been checked, its fields in the order of their names; those of inner tables stay."""
    fields = [(data[at + 1 : value_at], data[at:end]) for at, value_at, end in _fields(data, 4, len(data))]
    fields.sort(key=itemgetter(0))  # of several by one name the last counts, and stays the last
    return data[:4] + b"".join(field for _, field in fields)


def joined_tables(*tables: bytes) -> bytes:
    """One table with the fields of several that have been checked."""
    return _counted(b"".join(table[4:] for table in tables))


def read_table(data: bytes) -> dict[str, Any]:
    """A table that has been checked, decoded. Raises Refusal for values that Python has none of."""
    try:
        return _read_fields(data, 4, len(data))
    except (ValueError, ArithmeticError, OSError) as error:
        raise _out_of_range() from error


def read_leniently(data: bytes) -> dict[str, Any]:
    """`read_table`, with `NO_VALUE` where Python has none."""
    found: dict[str, Any] = {}
    for at, value_at, end in _fields(data, 4, len(data)):
        name = data[at + 1 : value_at].decode()
        try:
            found[name] = _read_value(data, value_at, end)
        except (ValueError, ArithmeticError, OSError):
            found[name] = NO_VALUE
    return found


def describe_field(data: bytes, name: str) -> str:
    """A field's value and type in RabbitMQ's words. Raises Refusal."""
    kinds = [
        data[value_at]
        for at, value_at, _ in _fields(data, 4, len(data))
        if data[at + 1 : value_at] == name.encode()
    ]
    if not kinds:
        return "none"
    value = read_field(data, name.encode())
    said = str(value).lower() if isinstance(value, bool) else str(value)
    return f"the value '{said}' of type '{_TYPES.get(kinds[-1], 'table')}'"


def read_field(data: bytes, name: bytes) -> Any:
    """The value that `read_table` has by that name, None without one; others may be unreadable.

    Raises Refusal.
    """
    found = None
    for at, value_at, end in _fields(data, 4, len(data)):
        if data[at + 1 : value_at] == name:
            found = value_at, end  # of several by one name the last counts
    try:
        return None if found is None else _read_value(data, *found)
    except (ValueError, ArithmeticError, OSError) as error:
        raise _out_of_range() from error


def _fields(data: bytes, at: int, stop: int) -> Iterator[tuple[int, int, int]]:
    """For each field in [at, stop): where its name begins, its value, and what is behind it."""
    while at < stop:
        value_at = at + 1 + data[at]
        end = _end_of_value(data, value_at)
        yield at, value_at, end
        at = end


def _read_fields(data: bytes, at: int, stop: int) -> dict[str, Any]:
    return {
        data[at + 1 : value_at].decode(): _read_value(data, value_at, end)
        for at, value_at, end in _fields(data, at, stop)
    }


def _read_value(data: bytes, at: int, stop: int) -> Any:
    """The value in [at, stop), its type first."""
    kind, start = data[at], at + 1
    if kind == _TABLE:
        return _read_fields(data, start + 4, stop)
    if kind == _ARRAY:
        found, at = [], start + 4
        while at < stop:
            end = _end_of_value(data, at)
            found.append(_read_value(data, at, end))
            at = end
        return found
    return _DECODE[data[at:start]](data[start:stop])[1]


def _end_of_value(data: bytes, at: int) -> int:
    """Where the value ends whose type stands at `at`."""
    size = _FIXED.get(data[at])
    return at + 1 + (4 + int(_U32.unpack_from(data, at + 1)[0]) if size is None else size)


def _out_of_range() -> Refusal:
    return Refusal(Code.SYNTAX_ERROR, "a table holds a time or a decimal out of range")


def _malformed(why: str) -> Refusal:
    return Refusal(Code.SYNTAX_ERROR, f"a malformed table: {why}")
