"""Methods on the wire: pamqp's, and class Direct beside them.

pamqp decodes what it is given as far as that goes: a string that claims more bytes than there are is cut, and
what is left over is not looked at. So the arguments of a method are walked over first, by the types that
pamqp has for them, and must fill the frame exactly.
"""

import struct
from collections.abc import Mapping
from types import MappingProxyType
from typing import ClassVar

from pamqp import base, commands

from dmp.field_tables import FIELDS_MAX, check_table, read_table
from dmp.refusals import Code, Refusal

EMPTY_TABLE = b"\0\0\0\0"
FRAME_END = b"\xce"
METHOD = 1
FRAME_HEAD = struct.Struct(">BHI")

_U32 = struct.Struct(">I")
_FIXED = {"octet": 1, "short": 2, "long": 4, "longlong": 8, "timestamp": 8}


class Direct:
    """Class 61500: asks for leases."""

    class Put(base.Frame):
        """Ask for a connection to a sink."""

        __slots__: ClassVar[list[str]] = ["sink"]
        frame_id: ClassVar[int] = 61500
        index: ClassVar[int] = 61500 << 16 | 10
        name: ClassVar[str] = "Direct.Put"
        synchronous: ClassVar[bool] = True
        valid_responses: ClassVar[list[str]] = ["Direct.PutOk"]
        _sink: ClassVar[str] = "shortstr"

        def __init__(self, sink: str = "") -> None:
            self.sink = sink

    class PutOk(base.Frame):
        """The lease of a sink."""

        __slots__: ClassVar[list[str]] = ["lease"]
        frame_id: ClassVar[int] = 61500
        index: ClassVar[int] = 61500 << 16 | 11
        name: ClassVar[str] = "Direct.PutOk"
        _lease: ClassVar[str] = "shortstr"

        def __init__(self, lease: str = "") -> None:
            self.lease = lease

    class Get(base.Frame):
        """Ask for a connection to a feed."""

        __slots__: ClassVar[list[str]] = ["feed"]
        frame_id: ClassVar[int] = 61500
        index: ClassVar[int] = 61500 << 16 | 20
        name: ClassVar[str] = "Direct.Get"
        synchronous: ClassVar[bool] = True
        valid_responses: ClassVar[list[str]] = ["Direct.GetOk"]
        _feed: ClassVar[str] = "shortstr"

        def __init__(self, feed: str = "") -> None:
            self.feed = feed

    class GetOk(base.Frame):
        """The lease of a feed."""

        __slots__: ClassVar[list[str]] = ["lease"]
        frame_id: ClassVar[int] = 61500
        index: ClassVar[int] = 61500 << 16 | 21
        name: ClassVar[str] = "Direct.GetOk"
        _lease: ClassVar[str] = "shortstr"

        def __init__(self, lease: str = "") -> None:
            self.lease = lease


METHODS: Mapping[int, type[base.Frame]] = MappingProxyType(
    {
        **commands.INDEX_MAPPING,
        **{method.index: method for method in (Direct.Put, Direct.PutOk, Direct.Get, Direct.GetOk)},
    }
)
"""Our own table: pamqp's, which others in the process may use, is left as it is."""


def decode_untrusted(payload: bytes, fields_max: int = FIELDS_MAX) -> tuple[base.Frame, bytes]:
    """A method, and the table among its arguments as it came (empty where it has none).

    `fields_max`: in that table.

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
    if not name:
        return method, EMPTY_TABLE
    table = payload[start:end]
    setattr(method, name, read_table(table))
    return method, table


def encode(method: base.Frame, channel: int) -> bytes:
    """The whole frame."""
    payload = _U32.pack(method.index) + method.marshal()
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
