"""Sizes, durations and times in text: parsing (`64MiB`, `50ms`, `30m ago`) and formatting.

A numeric setting is declared with `limit`: its default, and the least and most value. Its unit is the last
unit word of its name (as in `frame_bytes_max`), or `metadata={"unit": ...}` of its attrs field if the name
has none. Numbers without a suffix are in the setting's unit.
"""

import re
from collections.abc import Mapping
from datetime import datetime
from typing import Any

import attrs
from attrs import validators

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30

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


RESTART: Mapping[str, Any] = {"restart": True}
"""Metadata of a setting that takes effect only at the next start, not at a reload."""


def limit(default: int, least: int, most: int, *, restart: bool = False) -> Any:
    """A field of a settings class. Values outside [least, most] raise ValueError."""
    bounds = [validators.ge(least), validators.le(most)]
    return attrs.field(default=default, validator=bounds, metadata=RESTART if restart else {})


def unit_of(field: "attrs.Attribute[Any]") -> str | None:
    """A setting's unit: `bytes`, `seconds`, `ms`, `ns`, or None."""
    said = field.metadata.get("unit")
    return named_unit(field.name) if said is None else str(said)


def named_unit(name: str) -> str | None:
    """The unit in a name."""
    return next((word for word in reversed(name.split("_")) if word in _UNITS), None)


def parse_quantity(text: str, unit: str) -> int | float:
    """`text` in the setting's unit: an int if whole, else a float (only for seconds).

    Raises ValueError, whose text lists the accepted forms.
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
    # Integer arithmetic throughout: 0.1 s must be 100 ms, not 100.00000000000001.
    numerator = int(whole + fraction) * (table[suffix] if suffix else own)
    denominator: int = 10 ** len(fraction) * own
    if numerator % denominator == 0:
        return numerator // denominator
    if unit != "seconds":
        raise ValueError(f"{text!r} is not a whole number of {unit}")
    try:
        return numerator / denominator
    except OverflowError:
        raise ValueError(f"{text!r} is too large") from None


def parse_span_ms(text: str) -> int:
    """A length of time in milliseconds: as in settings, and `10m` are minutes. Raises ValueError."""
    if len(text) > _SPAN_CHARS_MAX:
        raise ValueError("is a length of time, as 10m")
    return int(parse_quantity(f"{text}in" if _MINUTES.fullmatch(text) else text, "ms"))


_MINUTES = re.compile(r"[0-9.]+\s*m")
_SPAN_CHARS_MAX = 32


def format_quantity(value: float, unit: str) -> str:
    """`value` in the largest unit that divides it; the inverse of `parse_quantity`."""
    amount = round(value * _OWN_NANOSECONDS.get(unit, 1))
    if amount == 0:
        return "0"
    table = _SIZES if unit == "bytes" else _NANOSECONDS
    for name in reversed(table):
        # Only powers of two: 64000 bytes are clearer than 64kB beside 64KiB.
        if unit == "bytes" and not (name == "B" or name.endswith("iB")):
            continue
        if name != "µs" and amount % table[name] == 0:
            return f"{amount // table[name]}{name}" if name != "B" else str(amount)
    raise AssertionError("the smallest unit divides every whole number")


def moment_ms(text: str, now_ms: int) -> int:
    """A time in Unix milliseconds, from Unix milliseconds, ISO 8601 (local without a zone), or a duration
    before now (`1h`, `30m ago`). Raises ValueError, whose text lists the accepted forms.
    """
    text = text.strip()
    if text == "now":
        return now_ms
    if text.isascii() and text.isdigit() and len(text) < _DIGITS_MAX:
        return int(text)
    if ago := _AGO.fullmatch(text):
        amount = f"{ago[1]}{'min' if ago[2] == 'm' else ago[2]}"
        return max(now_ms - round(1000 * parse_quantity(amount, "seconds")), 0)
    try:
        return max(int(datetime.fromisoformat(text).timestamp() * 1000), 0)
    except (ValueError, OverflowError):
        raise ValueError(
            f"{text!r} is no time; understood: 30m ago, 1h, 2d, 2026-01-31T12:00, Unix milliseconds"
        ) from None


_AGO = re.compile(r"([0-9.]{1,20})\s*(ms|s|m|min|h|d)(?:\s+ago)?")
_DIGITS_MAX = 19


def readable(value: float, unit: str) -> str:
    """An amount with a unit, in about three digits: `1.4 MiB`, `3.2 s`, `2 d 4 h`.

    Milliseconds and nanoseconds that are too many for a duration are shown as a local time in RFC 3339. A
    value too large for all of these, or not a number, is unchanged.
    """
    try:
        if unit == "bytes":
            return _readable_bytes(value)
        nanoseconds = value * _OWN_NANOSECONDS[unit]
        if unit != "seconds" and nanoseconds >= _TIMES_FROM_NS:
            return datetime.fromtimestamp(nanoseconds / 1e9).astimezone().isoformat(timespec="seconds")
        return _readable_duration(nanoseconds)
    except (OverflowError, ValueError, OSError):
        return str(value)


_TIMES_FROM_NS = 10**18
"""The year 2001: all our times are later, and all durations shorter."""


def _readable_bytes(value: float) -> str:
    if abs(value) < 1024:
        return f"{_digits(value)} B"
    for name in ("KiB", "MiB", "GiB"):
        if abs(value) < 1023.5 * _SIZES[name]:
            return f"{_digits(value / _SIZES[name])} {name}"
    return f"{value / _SIZES['TiB']:,.4g} TiB"


def _readable_duration(nanoseconds: float) -> str:
    if nanoseconds == 0:
        return "0 s"
    amount = abs(nanoseconds)
    sign = "-" if nanoseconds < 0 else ""
    for name in ("ns", "us", "ms", "s"):
        if amount < (999.5 if name != "s" else 59.5) * _NANOSECONDS[name]:
            return f"{sign}{_digits(amount / _NANOSECONDS[name])} {name}"
    for name, above in (("min", "h"), ("h", "d")):
        if amount < _NANOSECONDS[above]:
            return sign + _two(amount, name, "s" if name == "min" else "min")
    return sign + _two(amount, "d", "h")


def _two(nanoseconds: float, larger: str, smaller: str) -> str:
    whole, rest = divmod(
        round(nanoseconds / _NANOSECONDS[smaller]), _NANOSECONDS[larger] // _NANOSECONDS[smaller]
    )
    return f"{whole:,} {larger}" + (f" {rest} {smaller}" if rest else "")


def _digits(value: float) -> str:
    """Three digits, or all digits before the point."""
    return f"{value:.0f}" if abs(value) >= 99.95 or value == int(value) else f"{value:.3g}"
