"""Explains each setting by the text behind it in its class, beside the code that it sets."""

import ast
import inspect
import textwrap
import typing
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import attrs

from brokers.errors import did_you_mean
from brokers.render import cell
from brokers.structure import Key, fields, item_class, plain, settings_class, written
from shared.errors import UsageError
from shared.units import format_quantity, unit_of

_COLUMNS = 80
_BOUNDS = {">=": "{} at least", ">": "above {}", "<=": "{} at most", "<": "below {}"}


@attrs.frozen
class Explained:
    """One setting, or a table of settings. `takes`: its values, if that says more than its type."""

    setting: str
    default: Any
    takes: str
    meaning: str

    def __str__(self) -> str:
        default = "" if self.default in (None, "", []) else f" = {cell(self.default)}"
        takes = f"  ({self.takes})" if self.takes else ""
        meaning = textwrap.indent(textwrap.fill(self.meaning, _COLUMNS - 4), "    ")
        return f"{self.setting}{default}{takes}\n{meaning}".rstrip()


def explained(sections: Mapping[str, type[Any]]) -> Iterator[Explained]:
    """Yield every setting and table of settings, in order of section."""
    for name, settings in sections.items():
        yield from _of(settings, (name,))


def chosen(rows: Iterable[Explained], names: Sequence[str]) -> list[Explained]:
    """Return the rows that are named, or in a named section or table; without names all of them.

    Raises UsageError for an unknown name.
    """
    there = list(rows)
    found: dict[str, Explained] = {}
    for name in names or [""]:
        named = [row for row in there if not name or f"{row.setting}.".startswith(f"{name}.")]
        if not named:
            hint = did_you_mean(name, (row.setting for row in there))
            raise UsageError("SETTINGS", f"there is no {name}{hint}")
        found |= {row.setting: row for row in named}
    return list(found.values())


def _of(settings: type[Any], above: Key) -> Iterator[Explained]:
    meanings, defaults = _meanings(settings), settings()
    for name, field in fields(settings).items():
        key, meaning = (*above, name), meanings.get(name, "")
        if nested := settings_class(field.type):
            yield Explained(written(key), None, "a table", meaning)
            yield from _of(nested, key)
        elif item := item_class(field.type):
            yield Explained(written(key), None, "tables by pattern", meaning)
            yield from _of(item, (*key, "*"))
        else:
            default = plain(getattr(defaults, name), field, human=True)
            yield Explained(written(key), default, _takes(field), meaning)


def _meanings(settings: type[Any]) -> dict[str, str]:
    """Return the text behind each field in the class's source; nothing if the source is not installed."""
    try:
        module = ast.parse(textwrap.dedent(inspect.getsource(settings)))
    except OSError:
        return {}
    (declared,) = (node for node in module.body if isinstance(node, ast.ClassDef))
    said: dict[str, str] = {}
    for field, behind in zip(declared.body, declared.body[1:], strict=False):
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
            text = behind.value if isinstance(behind, ast.Expr) else None
            if isinstance(text, ast.Constant) and isinstance(text.value, str):
                said[field.target.id] = " ".join(text.value.split())
    return said


def _takes(field: "attrs.Attribute[Any]") -> str:
    kinds = [kind for kind in typing.get_args(field.type) if kind is not type(None)]
    if typing.get_origin(field.type) is Literal:
        return ", ".join(map(str, kinds))
    if field.type in (bool, Path):
        return ""
    unit = unit_of(field)
    bounds = {
        each.compare_op: format_quantity(each.bound, unit) if unit else f"{each.bound}"
        for each in _validators(field.validator)
        if hasattr(each, "compare_op")
    }
    if set(bounds) == {">=", "<="}:
        return f"{bounds['>=']} to {bounds['<=']}"
    return ", ".join(_BOUNDS[sign].format(bound) for sign, bound in bounds.items())


def _validators(validator: Any) -> Iterator[Any]:
    """Yield the validators that one is made of."""
    if validator is None:
        return
    within = getattr(validator, "_validators", None) or getattr(validator, "validator", None)
    if within is None:
        yield validator
    else:
        for each in within if isinstance(within, tuple | list) else [within]:
            yield from _validators(each)
