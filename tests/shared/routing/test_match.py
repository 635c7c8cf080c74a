"""What matches: the index against the specification's table."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.routing.index import RoutingIndex
from shared.routing.syntax import EVERY_NAME, Wildcards
from tests.shared.routing.table import DOTS, SLASHES, table_matches

syntaxes = st.sampled_from([SLASHES, DOTS, Wildcards(separator=b"::", any_levels=b"**", one_level=b"?")])


def levels_of(wildcards: Wildcards) -> list[bytes]:
    """Few enough to collide often: empty, plain, wildcards, and what only looks like one."""
    return [b"", b"a", b"b", wildcards.any_levels, wildcards.one_level, wildcards.any_levels + b"a"]


@st.composite
def patterns_and_name(draw: st.DrawFn) -> tuple[Wildcards, list[bytes], bytes]:
    wildcards = draw(syntaxes)
    level = st.sampled_from(levels_of(wildcards)) | st.binary(max_size=3)
    text = st.lists(level, min_size=1, max_size=8).map(wildcards.separator.join)
    return wildcards, draw(st.lists(text, max_size=12, unique=True)), draw(text)


@given(patterns_and_name())
def test_a_name_goes_to_those_whose_pattern_the_table_says_matches(
    case: tuple[Wildcards, list[bytes], bytes],
) -> None:
    wildcards, patterns, name = case
    index: RoutingIndex[bytes] = RoutingIndex(wildcards)
    for pattern in patterns:
        index.subscribe(pattern, pattern)
    expected = {pattern for pattern in patterns if table_matches(wildcards, pattern, name)}
    assert sorted(index.match(name)) == sorted(expected)


@pytest.mark.parametrize("wildcards", [SLASHES, DOTS], ids=["slashes", "dots"])
def test_a_hundred_thousand_pairs_agree_with_the_table(wildcards: Wildcards) -> None:
    rng = random.Random(4)
    alphabet = levels_of(wildcards)
    weights = [1, 3, 2, 2, 2, 1]

    def text(levels_max: int) -> bytes:
        return wildcards.separator.join(rng.choices(alphabet, weights, k=rng.randint(1, levels_max)))

    pairs = matches = 0
    while pairs < 50_000:
        patterns = {text(6) for _ in range(40)}
        index: RoutingIndex[bytes] = RoutingIndex(wildcards)
        for pattern in patterns:
            index.subscribe(pattern, pattern)
        for name in {text(6) for _ in range(40)}:
            expected = {pattern for pattern in patterns if table_matches(wildcards, pattern, name)}
            found = index.match(name)
            assert set(found) == expected, name
            assert len(found) == len(expected)
            pairs += len(patterns)
            matches += len(found)
    assert pairs * 0.05 < matches < pairs * 0.5  # neither answer is rare, or this would prove little


@pytest.mark.parametrize(
    ("pattern", "matching", "other"),
    [
        (b"precis/ec101/temperature", [b"precis/ec101/temperature"], [b"precis/ec101", b"", b"precis"]),
        (
            b"precis/+/temperature",
            [b"precis/ec101/temperature", b"precis//temperature"],
            [b"precis/temperature"],
        ),
        (b"precis/*", [b"precis", b"precis/", b"precis/ec101/temperature"], [b"precis2", b"", b"/precis"]),
        (b"*/temperature", [b"temperature", b"/temperature", b"a/b/temperature"], [b"temperature/"]),
        (b"*", [b"", b"/", b"//", b"a/b"], []),
        (b"+", [b"", b"a"], [b"/", b"a/b"]),
        (b"", [b""], [b"/", b"a"]),
        (b"/", [b"/"], [b"", b"//"]),
        (b"+/*", [b"", b"a", b"a/b", b"/"], []),
        (b"*/+", [b"", b"a", b"a/b", b"/"], []),
        (b"+/*/+", [b"/", b"a/b", b"a/b/c"], [b"", b"a"]),
        (b"*/*", [b"", b"a", b"a/b"], []),
        (b"a*/+b", [b"a*/+b"], [b"ab/b", b"a/b", b"a*/xb"]),
        (b"a/b", [b"a/b"], [b"a/+", b"a/*", b"+/b"]),  # wildcards in a name are only bytes
        (b"a/+", [b"a/+", b"a/*", b"a/b"], [b"*/+", b"a"]),
    ],
)
def test_the_edges_that_are_easy_to_get_wrong(
    pattern: bytes, matching: list[bytes], other: list[bytes]
) -> None:
    index: RoutingIndex[str] = RoutingIndex(SLASHES)
    index.subscribe("x", pattern)
    for name in matching:
        assert index.match(name) == ("x",)
        assert table_matches(SLASHES, pattern, name)
    for name in other:
        assert index.match(name) == ()
        assert not table_matches(SLASHES, pattern, name)


def test_a_subscriber_is_found_once_however_many_of_its_patterns_match() -> None:
    index: RoutingIndex[str] = RoutingIndex(SLASHES)
    for pattern in (
        b"a/b/c",
        b"a/+/c",
        b"*",
        b"*/*",
        b"a/*/c",
        b"+/+/+",
        b"*/c",
        b"a/b/*",
        b"a/b/+",
        EVERY_NAME,
    ):
        assert index.subscribe("x", pattern)
        index.subscribe("y", pattern)
    assert sorted(index.match(b"a/b/c")) == ["x", "y"]


def test_every_name_means_every_name() -> None:
    for wildcards in (SLASHES, None):
        index: RoutingIndex[str] = RoutingIndex(wildcards)
        assert index.match(b"a/b") == ()
        index.subscribe("x", EVERY_NAME)
        assert index.match(b"a/b") == index.match(b"") == index.match(b"\x00/*") == ("x",)


@given(st.lists(st.tuples(st.integers(0, 3), st.binary(max_size=3))), st.binary(max_size=3))
def test_without_wildcards_a_name_is_any_bytes_and_matches_itself(
    subscriptions: list[tuple[int, bytes]], name: bytes
) -> None:
    index: RoutingIndex[int] = RoutingIndex(None)
    for subscriber, pattern in subscriptions:
        index.subscribe(subscriber, pattern)
    assert sorted(index.match(name)) == sorted({who for who, pattern in subscriptions if pattern == name})


@pytest.mark.parametrize(
    ("separator", "any_levels", "one_level"),
    [
        (b"", b"*", b"+"),
        (b"/", b"", b"+"),
        (b"/", b"*", b""),
        (b"/", b"*", b"*"),
        (b"/", b"/", b"+"),
        (b"/", b"*", b"+/"),
    ],
)
def test_wildcards_that_could_be_taken_for_one_another_are_refused(
    separator: bytes, any_levels: bytes, one_level: bytes
) -> None:
    with pytest.raises(ValueError, match=r"empty|alike|separator"):
        Wildcards(separator=separator, any_levels=any_levels, one_level=one_level)
