"""A plain setting's value: read from what a file, a variable or a flag says, and written out again."""

import enum
import math
import tomllib
import types
import typing
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import attrs
import cattrs

from brokers.errors import nearest
from shared.local_path import local_path
from shared.units import format_quantity, parse_quantity, unit_of


def read_value(value: Any, field: "attrs.Attribute[Any]", *, words: bool) -> Any:
    """What a plain field gets for a value of TOML or, `words`, for the text of a flag or a variable.

    Raises ValueError or TypeError with a readable text.
    """
    unit = unit_of(field)
    kinds = _alternatives(field.type)
    if words and value == "" and kinds != (field.type,):
        return None
    if unit and isinstance(value, str) and (int in kinds or float in kinds):
        value = parse_quantity(value, unit)
    elif any(map(_is_list, kinds)):
        value = _listed(value)
    elif any(map(_is_mapping, kinds)):
        value = _mapped(value, next(filter(_is_mapping, kinds)))
    elif words:
        value = _read(value, kinds)
    return _CONVERTER.structure(value, field.type or str)


def plain(value: Any, field: "attrs.Attribute[Any]", *, human: bool) -> Any:
    """A setting's value as JSON can carry it; `human`: with the unit that reads best."""
    unit = unit_of(field)
    if human and unit and isinstance(value, int | float) and not isinstance(value, bool):
        return format_quantity(value, unit)
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, Mapping):
        return {str(name): plain(inner, field, human=human) for name, inner in value.items()}
    if isinstance(value, Sequence | frozenset | set):
        return [plain(inner, field, human=human) for inner in value]
    return str(value)


def _alternatives(kind: Any) -> tuple[Any, ...]:
    if typing.get_origin(kind) in (typing.Union, types.UnionType):
        return tuple(other for other in typing.get_args(kind) if other is not type(None))
    return (kind,)


def _read(text: str, kinds: tuple[Any, ...]) -> Any:
    """What TOML would have said, for the text of a flag or a variable."""
    for kind in kinds:
        if kind is bool:
            if text.lower() in ("1", "true", "yes", "on"):
                return True
            if text.lower() in ("0", "false", "no", "off"):
                return False
            raise ValueError(f"{text!r} is neither true nor false")
        if kind in (int, float):
            try:
                return kind(text)
            except ValueError:
                raise ValueError(f"{text!r} is not a number") from None
    return text


def _is_list(kind: Any) -> bool:
    origin: Any = typing.get_origin(kind)
    return origin in (list, tuple, set, frozenset, Sequence)


def _listed(value: Any) -> Any:
    """A list, which may also be one text: with commas (`a, b`), or as TOML has lists (`["a", "b"]`)."""
    if isinstance(value, str) and value.lstrip().startswith("["):
        value = tomllib.loads(f"list = {value}")["list"]
    if isinstance(value, str):
        return [part.strip() for part in value.split(",") if part.strip()]
    if not isinstance(value, list):
        raise TypeError(f"expected a list, got {value!r}")
    return value


def _is_mapping(kind: Any) -> bool:
    origin: Any = typing.get_origin(kind)
    return isinstance(origin, type) and issubclass(origin, Mapping)


def _mapped(value: Any, kind: Any) -> Any:
    """A table of plain values, which may also be written as one text with commas: `"a=1, b=2"`."""
    if isinstance(value, str):
        table: dict[str, Any] = {}
        for part in _listed(value):
            name, equals, text = (side.strip() for side in part.partition("="))
            if not name or not equals or name in table:
                raise ValueError(f"expected NAME=VALUE with commas between, each name once, got {part!r}")
            table[name] = _read(text, _alternatives(typing.get_args(kind)[1]))
        return table
    if not isinstance(value, Mapping):
        raise TypeError(f"expected a table, got {value!r}")
    return value


_NAMES = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}


def _strictly(kind: type[Any], *accepted: type[Any]) -> Any:
    def structure(value: Any, _: Any) -> Any:
        if type(value) not in accepted:
            raise TypeError(f"expected {_NAMES[kind]}, got {value!r}")
        return kind(value)

    return structure


def _number(value: Any, _: Any) -> float:
    """TOML has `inf` and `nan`, too, and whole numbers of any length."""
    try:
        number: float = _strictly(float, int, float)(value, float)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise ValueError(f"expected a number, got {value!r}")
    return number


def _choice(value: Any, kind: Any) -> Any:
    choices = {choice: choice for choice in typing.get_args(kind)}
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        choices = {choice.value: choice for choice in kind}
    for said, choice in choices.items():
        if said == value and type(said) is type(value):
            return choice
    meant = nearest(value, [str(said) for said in choices]) if isinstance(value, str) else None
    hint = f"; did you mean {meant}?" if meant else ""
    raise ValueError(f"{value!r} is none of {', '.join(map(str, choices))}{hint}")


def _parsed(kind: Any) -> Any:
    """A class that reads itself from text. With `secret` nothing of the text is ever shown: its own errors
    repeat none of it, and its `str` and `repr` neither."""

    def structure(value: Any, _: Any) -> Any:
        if isinstance(value, kind):
            return value
        if not isinstance(value, str):
            got = type(value).__name__ if getattr(kind, "secret", False) else repr(value)
            raise TypeError(f"expected text, got {got}")
        return kind.parse(value)

    return structure


def _path(value: Any, _: Any) -> Path:
    if not isinstance(value, str | Path) or not str(value) or "\0" in str(value):
        raise TypeError(f"expected a path, got {value!r}")
    return local_path(value).expanduser()


def _is_choice(kind: Any) -> bool:
    origin: Any = typing.get_origin(kind)
    return origin is Literal or (isinstance(kind, type) and issubclass(kind, enum.Enum))


def _converter() -> cattrs.Converter:
    converter = cattrs.Converter(detailed_validation=False)
    converter.register_structure_hook(int, _strictly(int, int))
    converter.register_structure_hook(float, _number)
    converter.register_structure_hook(bool, _strictly(bool, bool))
    converter.register_structure_hook(str, _strictly(str, str))
    converter.register_structure_hook(Path, _path)
    converter.register_structure_hook_func(_is_choice, _choice)
    converter.register_structure_hook_factory(
        lambda kind: isinstance(kind, type) and hasattr(kind, "parse"), _parsed
    )
    return converter


_CONVERTER = _converter()
