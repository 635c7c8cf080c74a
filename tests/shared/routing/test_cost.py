"""What the index costs, in steps and bytes that are counted, never in time."""

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import shared.routing.index
from shared.routing.index import RoutingIndex
from tests.shared.routing.table import SLASHES, table_matches

FOLDER = shared.routing.index.__file__.rpartition("index.py")[0]


def lines_run(action: Callable[[], Any]) -> int:
    """How many lines of the routing package `action` executes: a count it does not make itself."""
    lines = 0

    def trace(frame: FrameType, event: str, arg: object) -> Any:
        nonlocal lines
        if not frame.f_code.co_filename.startswith(FOLDER):
            return None
        lines += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        action()
    finally:
        sys.settrace(before)
    return lines


def nodes_max(patterns: list[bytes]) -> int:
    """The root, and one for each level of a pattern, literal or not."""
    return 1 + sum(pattern.count(b"/") + 1 for pattern in patterns)


LONG = b"/".join([b"a"] * 128)

WORST = [
    b"/".join([b"*"] * 128 + [b"x"]),
    b"/".join([b"*", b"a"] * 64 + [b"x"]),
    b"/".join([b"*", b"+"] * 64 + [b"x"]),
    b"/".join([b"+", b"*"] * 64 + [b"x"]),
    b"/".join([b"*", b"a", b"+"] * 40 + [b"x"]),
    b"/".join([b"*", b"*", b"a", b"a"] * 32),
    b"/".join([b"a"] * 127 + [b"*", b"x"]),
    b"/".join([b"+"] * 128 + [b"x"]),
]


@pytest.mark.parametrize("pattern", WORST, ids=range(len(WORST)))
@pytest.mark.parametrize("name", [LONG, LONG + b"/x", LONG + b"/x/y"], ids=["no", "yes", "beyond"])
def test_the_worst_patterns_cost_what_they_are_long_not_times_the_name(pattern: bytes, name: bytes) -> None:
    index: RoutingIndex[str] = RoutingIndex(SLASHES)
    index.subscribe("x", pattern)
    found: list[tuple[str, ...]] = []
    lines = lines_run(lambda: found.append(index.match(name)))
    assert bool(found[0]) == table_matches(SLASHES, pattern, name)
    assert index.visits <= nodes_max([pattern])
    assert lines <= 20 * (nodes_max([pattern]) + name.count(b"/"))


def test_the_worst_patterns_together_cost_no_more_than_the_sum() -> None:
    index: RoutingIndex[bytes] = RoutingIndex(SLASHES)
    for pattern in WORST:
        index.subscribe(pattern, pattern)
    name = LONG + b"/x"
    lines = lines_run(lambda: index.match(name))
    assert index.visits <= nodes_max(WORST)
    assert lines <= 20 * (nodes_max(WORST) + name.count(b"/"))


texts = st.lists(st.sampled_from([b"a", b"b", b"", b"*", b"+"]), min_size=1, max_size=12).map(b"/".join)


@given(st.lists(texts, min_size=1, max_size=6, unique=True), texts)
def test_no_input_costs_more_than_the_nodes(patterns: list[bytes], name: bytes) -> None:
    index: RoutingIndex[bytes] = RoutingIndex(SLASHES)
    for pattern in patterns:
        index.subscribe(pattern, pattern)
    index.match(name)
    # Where a path divides its entries are gone through, too: fewer than two a pattern, and one for its rest.
    assert index.visits <= nodes_max(patterns) + 3 * len(patterns)


@pytest.mark.parametrize("behind", [b"*/%d", b"*/%d/+"], ids=["rests", "children"])
def test_of_many_entries_behind_any_levels_no_more_are_tried_than_the_name_has_levels(behind: bytes) -> None:
    index: RoutingIndex[int] = RoutingIndex(SLASHES)
    for i in range(10_000):
        index.subscribe(i, behind % i)
    found: list[tuple[int, ...]] = []
    lines = lines_run(lambda: found.append(index.match(b"1/2/3/4")))
    assert found == [(4,) if behind == b"*/%d" else (3,)]
    assert index.visits <= 2 + 4 + 4
    assert lines <= 250


def test_a_match_costs_the_same_among_few_and_among_many_subscriptions() -> None:
    index: RoutingIndex[int] = RoutingIndex(SLASHES)
    index.subscribe(0, b"a/+/c")
    among_one = lines_run(lambda: index.match(b"a/b/c"))
    for i in range(1, 5000):
        index.subscribe(i, b"z%d/+/c" % i)
        index.subscribe(i, b"a/b/c/z%d/*" % i)
        index.subscribe(i, b"z%d/b/c" % i)
    among_many = lines_run(lambda: index.match(b"a/b/c"))
    assert among_many <= 3 * among_one
