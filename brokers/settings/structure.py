"""Makes settings objects of what a file, the environment and flags say. It is strict, and names mistakes.

Settings are frozen attrs classes in which every field has a default. This module knows their shape and no key
of any of them. A shape is fields of plain types and nested settings classes (a table). It is also mappings of
a name to a settings class (a table of tables, `[logmq.topics."orders.*"]`).

cattrs converts plain values. What it does not do is done here. It is strict (no `"1"` for a number, no 1 for
true) and knows units. It says every problem with its key and its source, not the first alone.
"""

import enum
import math
import tomllib
import types
import typing
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import attrs
import cattrs

from brokers.errors import Problem, did_you_mean, nearest
from shared.local_path import local_path
from shared.units import format_quantity, parse_quantity, unit_of

Key = tuple[str, ...]
"""Where a setting stands: `("logmq", "topics", "orders.*", "durability")`."""


@attrs.frozen
class GivenValue:
    """A value as somebody gave it. `words`: it came as text (a flag, a variable) and is still to be read.

    `folder`: of the file that says it, from which a relative path goes out; None: from the current one.
    """

    value: Any = attrs.field(repr=False)  # it may be a secret
    source: str
    words: bool = False
    folder: Path | None = None

    def read(self, field: "attrs.Attribute[Any]") -> Any:
        """What the field gets. Raises ValueError or TypeError with a readable text."""
        value = read_value(self.value, field, words=self.words)
        return self.folder / value if self.folder is not None and isinstance(value, Path) else value


def written(key: Key) -> str:
    """The key as TOML has it."""
    plain = str.maketrans("", "", "_-")
    return ".".join(part if part.translate(plain).isalnum() else f'"{part}"' for part in key)


def fields(settings: type[Any]) -> dict[str, "attrs.Attribute[Any]"]:
    """The settable fields by their keys, with their types resolved. A field whose key is a word of Python has
    it in its metadata."""
    attrs.resolve_types(settings)
    return {field.metadata.get("key", field.name): field for field in attrs.fields(settings) if field.init}


def flatten(tables: Mapping[str, Any], sections: Mapping[str, type[Any]], source: str) -> Iterator[Any]:
    """Every leaf of a parsed TOML file as `(key, Given)`; a `Problem` for what no section knows."""
    for name, table in tables.items():
        if name in sections and isinstance(table, Mapping):
            yield from flatten_table(table, sections[name], (name,), sections, source)
        elif name in sections:
            yield Problem(name, f"is a section: write [{name}] and its keys below it", source)
        elif isinstance(table, Mapping):
            meant = nearest(name, sections)
            hint = f"did you mean [{meant}]?" if meant else f"there are {', '.join(sorted(sections))}"
            yield Problem(name, f"unknown section; {hint}", source)
        else:
            yield Problem(name, f"unknown key outside any section{_elsewhere(name, sections)}", source)


def flatten_table(
    table: Mapping[str, Any], settings: type[Any], above: Key, sections: Mapping[str, type[Any]], source: str
) -> Iterator[Any]:
    """As `flatten`, for one table. `sections`: where a key that is unknown here may belong."""
    known = fields(settings)
    for name, value in table.items():
        key = (*above, name)
        if name not in known:
            meant = nearest(name, known)
            hint = f"; did you mean {written((*above, meant))}?" if meant else _elsewhere(name, sections)
            yield Problem(written(key), f"unknown key{hint}", source)
            continue
        kind = known[name].type
        nested, items = settings_class(kind), item_class(kind)
        if (nested or items) and not isinstance(value, Mapping):
            yield Problem(written(key), f"is a table: write [{written(key)}] and its keys below it", source)
        elif nested:
            yield from flatten_table(value, nested, key, sections, source)
        elif items:
            for item, inner in value.items():
                if isinstance(inner, Mapping):
                    yield from flatten_table(inner, items, (*key, item), sections, source)
                else:
                    yield Problem(written((*key, item)), "is a table of settings", source)
        else:
            yield key, GivenValue(value, source)


def _elsewhere(name: str, sections: Mapping[str, type[Any]]) -> str:
    """A hint for a key that stands in the wrong section."""
    places = [section for section, settings in sections.items() if name in fields(settings)]
    return f"; did you mean {written((places[0], name))}?" if places else ""


def environment_keys(sections: Mapping[str, type[Any]]) -> Iterator[Key]:
    """Every setting that a variable can name: all but those in tables of tables."""

    def below(settings: type[Any], above: Key) -> Iterator[Key]:
        for name, field in fields(settings).items():
            nested = settings_class(field.type)
            if nested:
                yield from below(nested, (*above, name))
            elif not item_class(field.type):
                yield (*above, name)

    for name, settings in sections.items():
        yield from below(settings, (name,))


def build(settings: type[Any], above: Key, given: Mapping[Key, GivenValue], problems: list[Problem]) -> Any:
    """An instance of `settings` from what was given below `above`; what does not fit goes to `problems`."""
    arguments: dict[str, Any] = {}
    for name, field in fields(settings).items():
        key = (*above, name)
        nested, items = settings_class(field.type), item_class(field.type)
        if nested:
            arguments[field.name] = build(nested, key, given, problems)
        elif items:
            names = dict.fromkeys(other[len(key)] for other in given if other[: len(key)] == key)
            # What the class brings along by default stays, below what was given.
            table = dict(getattr(settings(), field.name))
            table.update({item: build(items, (*key, item), given, problems) for item in names})
            arguments[field.name] = table
        elif key in given:
            try:
                arguments[field.name] = given[key].read(field)
                settings(**{field.name: arguments[field.name]})  # its validator, so that the key is known
            except (ValueError, TypeError, RecursionError) as error:
                arguments.pop(field.name, None)
                problems.append(Problem(written(key), _readable(error, field.name), given[key].source))
    try:
        return settings(**arguments)
    except (ValueError, TypeError) as error:  # a check across fields
        problems.append(Problem(written(above), _readable(error, "")))
        return settings()


def leaves(instance: Any, above: Key) -> Iterator[tuple[Key, Any, "attrs.Attribute[Any]"]]:
    """Every setting of an instance: its key, value and field."""
    for name, field in fields(type(instance)).items():
        value, key = getattr(instance, field.name), (*above, name)
        if settings_class(field.type):
            yield from leaves(value, key)
        elif item_class(field.type):
            for item, inner in value.items():
                yield from leaves(inner, (*key, item))
        else:
            yield key, value, field


def _readable(error: Exception, name: str) -> str:
    text = str(error.args[0]) if error.args else type(error).__name__
    return text.removeprefix(f"'{name}' ").removeprefix(f"{name}: ")


def settings_class(kind: Any) -> type[Any] | None:
    """The settings class behind a field's type; a class that reads itself from text is a plain value."""
    if isinstance(kind, type) and attrs.has(kind) and not hasattr(kind, "parse"):
        return kind
    return None


def take_up(
    old: Any, new: Any, above: Key, changed: list[str], restart: list[str], *, all_restart: bool = False
) -> Any:
    """Return `new`, where what takes a restart is as in `old`; add the keys that differ to the lists.

    `all_restart`: all values of this table itself do.
    """
    kept: dict[str, Any] = {}
    for name, field in fields(type(old)).items():
        before, after = getattr(old, field.name), getattr(new, field.name)
        ordered = isinstance(before, Mapping)  # the first pattern that matches counts
        if before == after and not (ordered and list(before) != list(after)):
            continue
        key = (*above, name)
        if settings_class(field.type):
            kept[field.name] = take_up(before, after, key, changed, restart)
        elif all_restart or field.metadata.get("restart"):
            restart.append(written(key))
            kept[field.name] = before
        else:
            changed.append(written(key))
    return attrs.evolve(new, **kept)


def item_class(kind: Any) -> type[Any] | None:
    """The settings class of what a mapping's names stand for."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if isinstance(origin, type) and issubclass(origin, Mapping) and len(arguments) == 2:
        return settings_class(arguments[1])
    return None


# -- plain values


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
    if hasattr(type(value), "parse"):
        return str(value)
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
    for word, choice in choices.items():
        if word == value and type(word) is type(value):
            return choice
    hint = did_you_mean(value, map(str, choices)) if isinstance(value, str) else ""
    raise ValueError(f"{value!r} is none of {', '.join(map(str, choices))}{hint}")


def _parsed(kind: Any) -> Any:
    """A class that reads itself from text, or from what its `reads` says. With `secret` nothing of it is ever
    shown: its own errors repeat none of it, and its `str` and `repr` neither."""

    def structure(value: Any, _: Any) -> Any:
        if isinstance(value, kind):
            return value
        if not isinstance(value, getattr(kind, "reads", str)):
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
