"""Explains each setting by the text behind it in its class, beside the code that it sets."""

import ast
import inspect
import json
import textwrap
import typing
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import attrs

from brokers.bridges.settings import SECTION, BridgeSettings
from brokers.commands.render import cell
from brokers.errors import did_you_mean
from brokers.settings.structure import Key, fields, item_class, plain, settings_class, written
from shared.errors import UsageError
from shared.units import format_quantity, unit_of

_COLUMNS = 80
_TABLE, _PATTERN, _LIST = "a table", "tables by pattern", "tables, [[bridge]] each"
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
    """Yield every setting and table of settings, in order of section; those of bridges are the last."""
    for name, settings in sections.items():
        yield from _of(settings, (name,))
    yield Explained(SECTION, None, _LIST, BridgeSettings.__doc__ or "")
    yield from _of(BridgeSettings, (SECTION,))


def as_toml(rows: Iterable[Explained]) -> str:
    """A settings file in which these rows stand in comments."""
    about: dict[str, str] = {}
    tables: dict[str, list[Explained]] = {}
    for row in rows:
        if row.takes in (_TABLE, _PATTERN, _LIST):
            about[row.setting] = row.meaning
        else:
            tables.setdefault(row.setting.rpartition(".")[0], []).append(row)
    lines: list[str] = []
    for table, settings in tables.items():
        meaning = about.get(table) or about.get(table.removesuffix('."*"'), "")
        lines += [*_commented(meaning), _header(table), ""]
        for row in settings:
            value = '"..."' if row.default is None else json.dumps(row.default)
            takes = f"  ({row.takes})" if row.takes else ""
            lines += [
                *_commented(f"{row.meaning}{takes}"),
                f"# {row.setting.rpartition('.')[2]} = {value}",
                "",
            ]
    return "\n".join(lines).rstrip("\n")


def _header(table: str) -> str:
    """A table's header; in a comment if the table must not be empty."""
    if table == SECTION:
        return f"# [[{table}]]"
    return f"# [{table}]" if '"*"' in table or table.startswith(SECTION) else f"[{table}]"


def _commented(text: str) -> list[str]:
    return [f"# {line}" for line in textwrap.wrap(text, _COLUMNS - 2)]


def chosen(rows: Iterable[Explained], names: Sequence[str]) -> list[Explained]:
    """Return the rows that are named, or in a named section or table; without names all of them.

    Raises UsageError for an unknown name.
    """
    every = list(rows)
    by_name: dict[str, Explained] = {}
    for name in names or [""]:
        named = [row for row in every if not name or f"{row.setting}.".startswith(f"{name}.")]
        if not named:
            hint = did_you_mean(name, (row.setting for row in every))
            raise UsageError("SETTINGS", f"there is no {name}{hint}")
        by_name |= {row.setting: row for row in named}
    return list(by_name.values())


def _of(settings: type[Any], above: Key) -> Iterator[Explained]:
    meanings, defaults = _meanings(settings), settings()
    for name, field in fields(settings).items():
        key, meaning = (*above, name), meanings.get(field.name, "")
        if nested := settings_class(field.type):
            yield Explained(written(key), None, _TABLE, meaning)
            yield from _of(nested, key)
        elif item := item_class(field.type):
            yield Explained(written(key), None, _PATTERN, meaning)
            yield from _of(item, (*key, "*"))
        else:
            default = plain(getattr(defaults, field.name), field, human=True)
            yield Explained(written(key), default, _takes(field), meaning)


def _meanings(settings: type[Any]) -> dict[str, str]:
    """Return the text behind each field in the class's source; nothing if the source is not installed."""
    try:
        module = ast.parse(textwrap.dedent(inspect.getsource(settings)))
    except OSError:
        return {}
    (declared,) = (node for node in module.body if isinstance(node, ast.ClassDef))
    meanings: dict[str, str] = {}
    for field, behind in zip(declared.body, declared.body[1:], strict=False):
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
            text = behind.value if isinstance(behind, ast.Expr) else None
            if isinstance(text, ast.Constant) and isinstance(text.value, str):
                meanings[field.target.id] = " ".join(text.value.split())
    return meanings


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
