"""Bytes as the vectors write them: what is fixed, what the other side chooses, and lengths.

| | |
|---|---|
| `de ad`, `dead` | these bytes |
| `'text'` | these characters |
| `00*41` | the byte so many times |
| `#4 ... ( ... )` | a length of four bytes, of what stands in the next parentheses |
| `$name`, `$name*4` | bytes that one side chooses once: to the end of the parentheses, or so many |
| `$name*4=0001` | the same, and what we choose |
| `$_`, `$_*4`, `$_='text'` | any bytes, each time others |

A name without a size ends before the byte that follows it, if one is written there.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Literal

import attrs

_TOKEN = re.compile(
    r"\s*(?:(?P<byte>[0-9a-f]{2})\*(?P<times>\d+)|(?P<fixed>'[^']*'|(?:[0-9a-f]{2})+)|#(?P<length>[1248])"
    r"|(?P<opens>\()|(?P<closes>\))"
    r"|\$(?P<chosen>[a-z_]+)(?:\*(?P<size>\d+))?(?:=(?P<value>'[^']*'|(?:[0-9a-f]{2})+))?)\s*"
)
ANY = "_"
Kind = Literal["fixed", "length", "opens", "closes", "chosen"]


@attrs.frozen
class Token:
    """`data`: what is fixed, or what we choose. `size`: in bytes; None: as many as there are."""

    kind: Kind
    data: bytes | None = None
    size: int | None = None
    name: str = ""


@attrs.define(eq=False)
class Differs(Exception):
    """Other bytes than expected. `at`: the place of the first one."""

    at: int
    text: str


class More(Exception):
    """So far all is as expected, and more bytes have to come."""


def parse(text: str) -> Sequence[Token]:
    """Raises ValueError for what is no notation."""
    parts = list(_tokens(text))
    depth = 0
    for part in parts:
        depth += (part.kind == "opens") - (part.kind == "closes")
        if depth < 0:
            break
    if depth:
        raise ValueError(f"{text!r}: parentheses do not match")
    return parts


def _tokens(text: str) -> Iterator[Token]:
    at = 0
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None:
            raise ValueError(f"{text[at:]!r}: no bytes")
        at = match.end()
        if match["byte"]:
            yield Token("fixed", bytes.fromhex(match["byte"]) * int(match["times"]))
        elif match["fixed"]:
            yield Token("fixed", _bytes(match["fixed"]))
        elif match["length"]:
            yield Token("length", size=int(match["length"]))
        elif match["chosen"]:
            size, value = match["size"], match["value"]
            data = None if value is None else _bytes(value)
            yield Token("chosen", data, None if size is None else int(size), match["chosen"])
        else:
            yield Token("opens" if match["opens"] else "closes")


def _bytes(text: str) -> bytes:
    return text[1:-1].encode() if text[0] == "'" else bytes.fromhex(text)


def write(parts: Sequence[Token], names: dict[str, bytes], fresh: Callable[[str], bytes]) -> bytes:
    """The bytes to send. What we choose is added to `names`; `fresh` makes a name that nobody has yet."""
    out = bytearray()
    lengths: list[tuple[int, int]] = []  # place and size of those that are not known yet
    groups: list[tuple[int, int, int]] = []  # the same, and where what they count begins
    for part in parts:
        size = part.size or 0
        if part.kind == "length":
            lengths.append((len(out), size))
            out += bytes(size)
        elif part.kind == "opens":
            groups.append((*lengths.pop(), len(out)))
        elif part.kind == "closes":
            place, size, start = groups.pop()
            out[place : place + size] = (len(out) - start).to_bytes(size, "big")
        elif part.kind == "fixed" or part.name == ANY:
            out += bytes(size) if part.data is None else part.data
        else:
            if part.name not in names:
                value = fresh(part.name) if part.data is None else part.data
                names[part.name] = value.ljust(size, b"\0")
            out += names[part.name]
    return bytes(out)


def read(parts: Sequence[Token], data: bytes, names: Mapping[str, bytes]) -> tuple[int, dict[str, bytes]]:
    """Where the expected bytes at the front of `data` end, and the names, those the peer chose too.

    Raises Differs, and More while they are not all there.
    """
    names = dict(names)
    lengths: list[int] = []
    ends: list[int] = []  # of the groups that are open
    at = 0

    def take(size: int) -> bytes:
        nonlocal at
        if ends and at + size > ends[-1]:
            raise Differs(ends[-1], f"{at + size - ends[-1]} bytes less than expected, by their length")
        if at + size > len(data):
            raise More
        at += size
        return data[at - size : at]

    for place, part in enumerate(parts):
        if part.kind == "length":
            lengths.append(int.from_bytes(take(part.size or 0), "big"))
        elif part.kind == "opens":
            size = lengths.pop()
            take(size)
            at -= size
            ends.append(at + size)
        elif part.kind == "closes":
            if at < ends[-1]:
                raise Differs(at, f"{ends[-1] - at} bytes more than expected, by their length")
            ends.pop()
        elif (expected := part.data if part.kind == "fixed" else names.get(part.name)) is not None:
            came = data[at : min([at + len(expected), *ends[-1:]])]
            for number, (byte, other) in enumerate(zip(expected, came, strict=False), start=at):
                if byte != other:
                    raise Differs(number, f"{byte:02x} expected, {other:02x} came")
            take(len(expected))
        else:
            size = _size(data, at, ends, parts[place + 1 :]) if part.size is None else part.size
            chosen = take(size)
            if part.name != ANY:
                names[part.name] = chosen
    return at, names


def _size(data: bytes, at: int, ends: Sequence[int], behind: Sequence[Token]) -> int:
    """How many bytes there are before what stands behind."""
    if behind and behind[0].kind == "fixed":
        found = data.find((behind[0].data or b"")[:1], at, *ends[-1:])
        if found >= 0:
            return found - at
    elif ends:
        return ends[-1] - at
    if not ends:
        raise More
    raise Differs(at, "what has to come behind it is not there")
