"""Sizes and durations as people write them: `64MiB`, `50ms`.

A setting's unit is the last unit word of its name (STYLE: units last, as in `frame_bytes_max`), or
`metadata={"unit": ...}` on its attrs field where the name has none. Numbers without a suffix are in the
setting's own unit.
"""

import re
from typing import Any

import attrs

_SIZES = {
    "B": 1,
    "kB": 10**3,
    "KB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "TB": 10**12,
    "KiB": 2**10,
    "MiB": 2**20,
    "GiB": 2**30,
    "TiB": 2**40,
}
_NANOSECONDS = {
    "ns": 1,
    "us": 10**3,
    "µs": 10**3,
    "ms": 10**6,
    "s": 10**9,
    "min": 60 * 10**9,
    "h": 3600 * 10**9,
    "d": 24 * 3600 * 10**9,
}
_UNITS = {
    "bytes": _SIZES,
    "seconds": _NANOSECONDS,
    "ms": _NANOSECONDS,
    "ns": _NANOSECONDS,
}
_OWN_NANOSECONDS = {"seconds": 10**9, "ms": 10**6, "ns": 1}
_QUANTITY = re.compile(r"\s*([0-9]+)(?:\.([0-9]+))?\s*([A-Za-zµ]*)\s*")


def unit_of(field: "attrs.Attribute[Any]") -> str | None:
    """`bytes`, `seconds`, `ms`, `ns`, or None where the setting has no unit."""
    said = field.metadata.get("unit")
    if said is not None:
        return str(said)
    return next((word for word in reversed(field.name.split("_")) if word in _UNITS), None)


def parse_quantity(text: str, unit: str) -> int | float:
    """`text` in the setting's own unit: an int where it comes out whole, else a float (seconds alone).

    Raises ValueError, whose text says what is understood.
    """
    table: dict[str, int] = _UNITS[unit]
    understood = ", ".join(f"1{name}" for name in table if name not in ("KB", "µs"))
    match = _QUANTITY.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is not an amount; understood: {understood}")
    whole, fraction, suffix = match[1], match[2] or "", match[3]
    if suffix and suffix not in table:
        raise ValueError(f"{text!r} has an unknown unit; understood: {understood}")
    own = _OWN_NANOSECONDS.get(unit, 1)
    # In whole numbers throughout: 0.1 s must be 100 ms, not 100.00000000000001.
    numerator = int(whole + fraction) * (table[suffix] if suffix else own)
    denominator: int = 10 ** len(fraction) * own
    if numerator % denominator == 0:
        return numerator // denominator
    if unit != "seconds":
        raise ValueError(f"{text!r} is not a whole number of {unit}")
    return numerator / denominator


def format_quantity(value: float, unit: str) -> str:
    """`value` in the largest unit in which it is a whole number; the inverse of `parse_quantity`."""
    amount = round(value * _OWN_NANOSECONDS.get(unit, 1))
    if amount == 0:
        return "0"
    table = _SIZES if unit == "bytes" else _NANOSECONDS
    for name in reversed(table):
        # Powers of two alone: 64000 bytes read better as such than as 64kB beside 64KiB.
        if unit == "bytes" and not (name == "B" or name.endswith("iB")):
            continue
        if name != "µs" and amount % table[name] == 0:
            return f"{amount // table[name]}{name}" if name != "B" else str(amount)
    raise AssertionError("the smallest unit divides every whole number")
