"""From what a file, the environment and flags say to settings objects: strictly, and naming what is wrong.

Settings are frozen attrs classes in which every field has a default. This module knows their shape and no
key of any of them: fields of plain types, nested settings classes (a table), and mappings of a name to a
settings class (a table of tables, `[logmq.topics."orders.*"]`). What a plain field takes is in `values`.
"""

import typing
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import attrs

from brokers.errors import Problem, nearest
from brokers.values import read_value

Key = tuple[str, ...]
"""Where a setting stands: `("logmq", "topics", "orders.*", "durability")`."""


@attrs.frozen
class Given:
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
    """The settable fields, with their types resolved."""
    attrs.resolve_types(settings)
    return {name: field for name, field in attrs.fields_dict(settings).items() if field.init}


def flatten(tables: Mapping[str, Any], sections: Mapping[str, type[Any]], source: str) -> Iterator[Any]:
    """Every leaf of a parsed TOML file as `(key, Given)`; a `Problem` for what no section knows."""
    for name, table in tables.items():
        if name in sections and isinstance(table, Mapping):
            yield from _flatten(table, sections[name], (name,), sections, source)
        elif name in sections:
            yield Problem(name, f"is a section: write [{name}] and its keys below it", source)
        elif isinstance(table, Mapping):
            meant = nearest(name, list(sections))
            hint = f"did you mean [{meant}]?" if meant else f"there are {', '.join(sorted(sections))}"
            yield Problem(name, f"unknown section; {hint}", source)
        else:
            yield Problem(name, f"unknown key outside any section{_elsewhere(name, sections)}", source)


def _flatten(
    table: Mapping[str, Any],
    settings: type[Any],
    above: Key,
    sections: Mapping[str, type[Any]],
    source: str,
) -> Iterator[Any]:
    known = fields(settings)
    for name, value in table.items():
        key = (*above, name)
        if name not in known:
            meant = nearest(name, list(known))
            hint = f"; did you mean {written((*above, meant))}?" if meant else _elsewhere(name, sections)
            yield Problem(written(key), f"unknown key{hint}", source)
            continue
        kind = known[name].type
        nested, items = settings_class(kind), item_class(kind)
        if (nested or items) and not isinstance(value, Mapping):
            yield Problem(written(key), f"is a table: write [{written(key)}] and its keys below it", source)
        elif nested:
            yield from _flatten(value, nested, key, sections, source)
        elif items:
            for item, inner in value.items():
                if isinstance(inner, Mapping):
                    yield from _flatten(inner, items, (*key, item), sections, source)
                else:
                    yield Problem(written((*key, item)), "is a table of settings", source)
        else:
            yield key, Given(value, source)


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


def build(settings: type[Any], above: Key, given: Mapping[Key, Given], problems: list[Problem]) -> Any:
    """An instance of `settings` from what was given below `above`; what does not fit goes to `problems`."""
    arguments: dict[str, Any] = {}
    for name, field in fields(settings).items():
        key = (*above, name)
        nested, items = settings_class(field.type), item_class(field.type)
        if nested:
            arguments[name] = build(nested, key, given, problems)
        elif items:
            names = dict.fromkeys(other[len(key)] for other in given if other[: len(key)] == key)
            # What the class brings along by default stays, below what was given.
            table = dict(getattr(settings(), name))
            table.update({item: build(items, (*key, item), given, problems) for item in names})
            arguments[name] = table
        elif key in given:
            try:
                arguments[name] = given[key].read(field)
                settings(**{name: arguments[name]})  # its validator, by itself: so that the key is known
            except (ValueError, TypeError) as error:
                arguments.pop(name, None)
                problems.append(Problem(written(key), _readable(error, name), given[key].source))
    try:
        return settings(**arguments)
    except (ValueError, TypeError) as error:  # a check across fields
        problems.append(Problem(written(above), _readable(error, "")))
        return settings()


def leaves(instance: Any, above: Key) -> Iterator[tuple[Key, Any, "attrs.Attribute[Any]"]]:
    """Every setting of an instance: its key, value and field."""
    for name, field in fields(type(instance)).items():
        value, key = getattr(instance, name), (*above, name)
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


def item_class(kind: Any) -> type[Any] | None:
    """The settings class of what a mapping's names stand for."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if isinstance(origin, type) and issubclass(origin, Mapping) and len(arguments) == 2:
        return settings_class(arguments[1])
    return None
