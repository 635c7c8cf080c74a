"""What an option is: its name, how its text is read, and where it is a mistake; and texts that many have.

A class of options declares each with `option`, at the field that holds it. A wrong one is a ConfigError that
names it. Keys are compared without regard to case, as Spark has it.
"""

import difflib
import json
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

import attrs

from shared.errors import ConfigError
from shared.local_path import local_path

_T = TypeVar("_T")
_D = TypeVar("_D")

NUMBER_MAX = (1 << 63) - 1
_TIMEOUT_MS_MAX = (1 << 31) - 1
"""What poll(2) takes: 24 days."""
_UNITS = {"": 1, "b": 1}
for _power, _letter in enumerate("kmgt", 1):
    _UNITS |= {_letter: 1 << 10 * _power, f"{_letter}b": 1 << 10 * _power, f"{_letter}ib": 1 << 10 * _power}
_SECONDS = {"": 0.001, "ms": 0.001, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}


@attrs.frozen
class Option:
    """`parse` raises ValueError. `not_of`: where it is a mistake (`servers`, `stream`, ...), and why."""

    name: str
    parse: Callable[[str], Any]
    not_of: Mapping[str, str] = {}


def option(name: str, parse: Callable[[str], Any], default: Any = None, **not_of: str) -> Any:
    """A field that the option `name` gives, or `default`."""
    return attrs.field(default=default, metadata={"option": Option(name, parse, not_of)})


def declared(kind: type[attrs.AttrsInstance]) -> dict[str, Option]:
    """The options of a class, by field."""
    return {
        field.name: field.metadata["option"] for field in attrs.fields(kind) if "option" in field.metadata
    }


class GivenOptions:
    """The options as given, each under its own spelling. `options`: those that `what` has."""

    def __init__(self, given: Mapping[str, str], options: Iterable[Option], what: str) -> None:
        self._values: dict[str, str] = {}
        self._known = {each.name.lower(): each for each in options}
        for key, value in given.items():
            found = self._known.get(key.lower())
            if found is None:
                names = ", ".join(each.name for each in self._known.values())
                near = difflib.get_close_matches(key.lower(), self._known, n=1)
                hint = f"; did you mean {self._known[near[0]].name}?" if near else f"; there are {names}"
                raise ConfigError(key, f"{what} has no such option{hint}")
            self._values[found.name] = value

    def has(self, name: str) -> bool:
        return name in self._values

    def refuse(self, place: str) -> None:
        """Raises ConfigError where one is given that is a mistake there."""
        for each in self._known.values():
            if self.has(each.name) and place in each.not_of:
                raise ConfigError(each.name, each.not_of[place])

    def take(self, name: str, parse: Callable[[str], _T], default: _D) -> _T | _D:
        if name not in self._values:
            return default
        try:
            return parse(self._values[name])
        except ValueError as error:
            raise ConfigError(name, str(error)) from None

    def fields(self, kind: type[attrs.AttrsInstance]) -> dict[str, Any]:
        """What is given of a class's options, by field."""
        found = declared(kind).items()
        return {field: self.take(each.name, each.parse, None) for field, each in found if self.has(each.name)}


# -- texts that many options have; each raises ValueError


def json_of(text: str) -> Any:
    try:
        return json.loads(text, object_pairs_hook=_each_name_once)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"not JSON: {error}") from None


def _each_name_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a name stands there twice")
    return found


def path(text: str) -> str:
    return str(local_path(text))


def count(text: str) -> int:
    if not text.strip().isdecimal() or not 0 < int(text) <= NUMBER_MAX:
        raise ValueError(f"not a whole number above 0: {text!r}")
    return int(text)


def size(text: str) -> int:
    """Bytes: `1048576`, `1m`, `1MiB`; all units are powers of 1024, as Spark has it."""
    found = re.fullmatch(r"\s*(\d+)\s*([a-zA-Z]*)\s*", text)
    unit = _UNITS.get(found[2].lower()) if found else None
    if found is None or unit is None or not 0 < int(found[1]) * unit <= NUMBER_MAX:
        raise ValueError(f"not a size: {text!r}")
    return int(found[1]) * unit


def duration(text: str) -> float:
    """Seconds: `90s`, `15m`, `500ms`; a number alone is milliseconds, as Spark has it."""
    found = re.fullmatch(r"\s*(\d+)\s*(ms|s|m|min|h|d|)\s*", text.lower())
    if found is None or int(found[1]) > NUMBER_MAX:
        raise ValueError(f"not a length of time (90s, 15m): {text!r}")
    return int(found[1]) * _SECONDS[found[2]]


def timeout(text: str) -> float:
    """Seconds, of milliseconds."""
    number = count(text)
    if number > _TIMEOUT_MS_MAX:
        raise ValueError(f"above {_TIMEOUT_MS_MAX}: {text!r}")
    return number / 1000


def flag(text: str) -> bool:
    if text.strip().lower() not in ("true", "false"):
        raise ValueError(f"not true or false: {text!r}")
    return text.strip().lower() == "true"
