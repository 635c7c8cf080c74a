"""How the names of one protocol are split into levels, and what its wildcards are called."""

import enum
from typing import Final

import attrs


class EveryName(enum.Enum):
    """The type of `EVERY_NAME`."""

    EVERY_NAME = "every name"


EVERY_NAME: Final = EveryName.EVERY_NAME
"""The pattern that matches every name, those to come included. It is no bytes, so no name can spell it."""

Pattern = bytes | EveryName

WILD_LEAST = 4
"""A pattern of so many wildcards is *wild*: few of them have levels in common, and nearly all can be made to
follow one name. Others share more: 60,000 made for a name were 30 ms of a walk, as many wild ones 400."""


def _not_empty(instance: object, field: "attrs.Attribute[bytes]", value: bytes) -> None:
    if not value:
        raise ValueError(f"{field.name} is empty")


@attrs.frozen
class Wildcards:
    """Names are levels with `separator` between them; in a pattern two levels have a meaning of their own.

    `any_levels` stands for zero or more levels, `one_level` for exactly one. They mean that only as a whole
    level of a pattern: within a level, and in names, they are ordinary bytes. Empty levels count. The empty
    name is one empty level, or without `empty_level` none at all. Raises ValueError where the three could be
    taken for one another.
    """

    separator: bytes = attrs.field(validator=_not_empty)
    any_levels: bytes = attrs.field(validator=_not_empty)
    one_level: bytes = attrs.field(validator=_not_empty)
    empty_level: bool = True

    def __attrs_post_init__(self) -> None:
        if self.any_levels == self.one_level:
            raise ValueError("both wildcards are written alike")
        if self.separator in self.any_levels or self.separator in self.one_level:
            raise ValueError("a wildcard that holds the separator is never one level")

    def levels(self, name: bytes) -> list[bytes]:
        """The levels of a name."""
        return name.split(self.separator) if name or self.empty_level else []

    def wild_levels(self, pattern: bytes) -> int:
        """The levels of a wild pattern; of any other, 0."""
        if pattern.count(self.any_levels) + pattern.count(self.one_level) < WILD_LEAST:
            return 0
        levels = pattern.split(self.separator)
        wild = levels.count(self.any_levels) + levels.count(self.one_level)
        return len(levels) if wild >= WILD_LEAST else 0

    def split(self, pattern: bytes) -> tuple[list[bytes], bytes | None]:
        """The levels up to the last wildcard, and the literal rest behind it as it is written.

        The rest is None where the pattern ends in a wildcard (b"" is a rest: one empty level). A pattern
        without wildcards is all rest.
        """
        if self.any_levels not in pattern and self.one_level not in pattern:
            return [], pattern
        levels = pattern.split(self.separator)
        kept = len(levels)
        while kept and levels[kept - 1] != self.any_levels and levels[kept - 1] != self.one_level:
            kept -= 1
        if kept == len(levels):
            return levels, None
        return levels[:kept], self.separator.join(levels[kept:])
