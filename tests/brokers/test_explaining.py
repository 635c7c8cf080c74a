"""`brokers config explain`: what each setting is for, from the words beside it."""

from typing import Literal

import attrs
import pytest

from brokers import plugins
from brokers.settings.config import OWN_SECTIONS
from brokers.settings.explaining import chosen, explained
from shared.errors import UsageError
from shared.units import KIB, limit

ALL = {**OWN_SECTIONS, **{plugin.name: plugin.settings for plugin in plugins.load_all()[0]}}


@attrs.frozen
class Inner:
    depth: int | None = None
    """How many
    there may be."""


@attrs.frozen
class Settings:
    line_bytes_max: int = limit(4 * KIB, 1, 64 * KIB)
    """A line."""
    quiet: bool = False
    level: Literal["low", "high"] = "low"
    queues: dict[str, Inner] = attrs.field(factory=dict)
    """By name."""


def test_a_setting_has_its_default_what_it_takes_and_the_words_behind_it() -> None:
    said = {row.setting: (row.default, row.takes, row.meaning) for row in explained({"x": Settings})}
    said = {name: row for name, row in said.items() if name.startswith("x.")}
    assert said == {
        "x.line_bytes_max": ("4KiB", "1 to 64KiB", "A line."),
        "x.quiet": (False, "", ""),
        "x.level": ("low", "low, high", ""),
        "x.queues": (None, "tables by pattern", "By name."),
        'x.queues."*".depth': (None, "", "How many there may be."),
    }


def test_every_setting_says_what_it_is_for() -> None:
    rows = list(explained(ALL))
    assert len(rows) > 100
    assert [row.setting for row in rows if not row.meaning] == []


def test_some_are_chosen_by_name_or_section_and_what_is_none_is_told() -> None:
    rows = list(explained(ALL))
    assert [row.setting for row in chosen(rows, ["net.backlog", "tls"])] == [
        "net.backlog",
        "tls.certificate",
        "tls.key",
        "tls.client_ca",
    ]
    assert chosen(rows, []) == rows
    with pytest.raises(UsageError, match=r"there is no net\.backlgo; did you mean net\.backlog\?"):
        chosen(rows, ["net.backlgo"])
