"""Globs over names: what `*` and `?` match, and that nothing else means anything."""

import re

import pytest

from shared.addresses import NameTemplate
from shared.bridging import may_be, may_name
from shared.globs import expression, matcher


@pytest.mark.parametrize(
    ("glob", "name", "matches"),
    [
        ("a*c", "abbc", True),
        ("a*c", "a.b/c", True),
        ("a*c", "abcd", False),
        ("a?c", "a\nc", True),
        ("a?c", "ac", False),
        ("[ab]", "a", False),
        ("[ab]", "[ab]", True),
        ("[!a]*", "[!a]b", True),
        ("a[*", "a[", True),
        ("a]", "a]", True),
        ("A", "a", False),
        ("a.c", "abc", False),
        ("", "", True),
        ("", "a", False),
    ],
)
def test_a_star_is_any_run_a_question_mark_one_and_all_else_is_itself(
    glob: str, name: str, matches: bool
) -> None:
    assert bool(matcher([glob])(name)) is matches
    assert bool(matcher(["other", glob])(name)) is matches
    assert bool(expression(glob, re.IGNORECASE).match(name.upper())) is (
        matches or (glob, name) == ("A", "a")
    )


def test_no_glob_matches_nothing() -> None:
    assert not matcher([])("")


@pytest.mark.parametrize(
    ("template", "glob", "may"),
    [
        ("a", "[ab]", False),
        ("[ab]", "[ab]", True),
        ("{name}", "[ab]", True),
        ("x{name}", "[ab]", False),
        ("a-{name}", "a-?*", True),
    ],
)
def test_a_template_may_make_what_its_glob_can_match(template: str, glob: str, may: bool) -> None:
    assert may_name(NameTemplate.parse(template), glob) is may
    assert may_be(NameTemplate.parse(template), glob) is may
