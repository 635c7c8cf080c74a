"""Field tables from a peer, checked before they are decoded.

pamqp cuts a string that claims more bytes than there are, and recurses as deep as tables are nested. So they
are walked over first, every length of them; what passes is decoded, and means what it says.
"""

import struct
from typing import Any

from pamqp import decode

from dmp.refusals import Code, Refusal

DEPTH_MAX = 16
"""Tables in tables. RabbitMQ sets none and grows its stack; dead-letter headers need three."""
FIELDS_MAX = 4096
"""In one table, those of inner tables included: decoding costs some microseconds a field."""

_U32 = struct.Struct(">I")
_FIXED = {
    **dict.fromkeys(b"tbB", 1),
    **dict.fromkeys(b"su", 2),
    **dict.fromkeys(b"Iif", 4),
    **dict.fromkeys(b"lLdT", 8),
    **dict.fromkeys(b"D", 5),
    **dict.fromkeys(b"V\x00", 0),
}
_STRINGS = frozenset(b"Sx")
_TABLE, _ARRAY = b"FA"


def check_table(data: bytes, start: int, end: int) -> None:
    """Raises Refusal (SYNTAX_ERROR) unless a well-formed table stands in exactly [start, end)."""
    if end - start < 4 or end > len(data) or start + 4 + _U32.unpack_from(data, start)[0] != end:
        raise _malformed("its length is not that of its place")
    waiting = [(start + 4, end, _TABLE, 1)]
    fields = 0
    while waiting:
        at, stop, kind, depth = waiting.pop()
        while at < stop:
            fields += 1
            if fields > FIELDS_MAX:
                raise _malformed(f"more than {FIELDS_MAX} fields")
            if kind == _TABLE:
                name_end = at + 1 + data[at]
                if name_end > stop:
                    raise _malformed("a name reaches past its end")
                _check_text(data, at + 1, name_end)
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


def read_table(data: bytes) -> dict[str, Any]:
    """A table that has been checked, decoded. Raises Refusal for values that Python has none of."""
    try:
        return dict(decode.field_table(data)[1])
    except (ValueError, ArithmeticError, OSError) as error:
        raise Refusal(Code.SYNTAX_ERROR, "a table holds a time or a decimal out of range") from error


def _check_text(data: bytes, start: int, end: int) -> None:
    try:
        data[start:end].decode()
    except UnicodeDecodeError:
        raise _malformed("a name is not UTF-8") from None


def _malformed(why: str) -> Refusal:
    return Refusal(Code.SYNTAX_ERROR, f"a malformed table: {why}")
