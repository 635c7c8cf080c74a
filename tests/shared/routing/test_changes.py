"""What comes and goes: the index, its trie and its cache against a plain dict and the table."""

import math
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from shared.budget import CacheBytes, Caches, unbounded
from shared.routing.index import RoutingIndex
from shared.routing.syntax import EVERY_NAME, EveryName, Pattern, Wildcards
from shared.routing.trie import Node, Trie
from tests.shared.routing.table import SLASHES, table_matches

levels = st.sampled_from([b"", b"a", b"b", b"c", b"*", b"+"])
texts = st.lists(levels, min_size=1, max_size=5).map(b"/".join)
common = st.sampled_from([b"a", b"a/b", b"a/+", b"a/*", b"a/+/b", b"a/+/c", b"a/*/b", b"+/*", b"*/*", b"*"])
patterns: st.SearchStrategy[Pattern] = st.just(EVERY_NAME) | common | texts
subscribers = st.integers(0, 3)


def shape(node: Node[Any]) -> Any:
    """Everything that hangs on `node`, as plain data, so that the forms (bare, dict or None) count too."""
    return (
        members(node.ends),
        members(node.below),
        node.rests and sorted((rest, members(who)) for rest, who in node.rests.items()),
        node.children and sorted((level, shape(child)) for level, child in node.children.items()),
        node.one and shape(node.one),
        node.many and shape(node.many),
    )


def members(few: Any) -> Any:
    return sorted(few) if isinstance(few, dict) else few


class Changes(RuleBasedStateMachine):
    wildcards: Wildcards | None = SLASHES
    cache_bytes_max = 2**20

    def __init__(self) -> None:
        super().__init__()
        self.index: RoutingIndex[int] = RoutingIndex(self.wildcards, cache_bytes_max=self.cache_bytes_max)
        self.trie: Trie[int] | None = None if self.wildcards is None else Trie(self.wildcards)
        self.model: dict[int, set[Pattern]] = {}
        self.asked: set[bytes] = set()

    def matches(self, pattern: Pattern, name: bytes) -> bool:
        if isinstance(pattern, EveryName):
            return True
        return pattern == name if self.wildcards is None else table_matches(self.wildcards, pattern, name)

    @rule(subscriber=subscribers, pattern=patterns)
    def subscribe(self, subscriber: int, pattern: Pattern) -> None:
        held = self.model.setdefault(subscriber, set())
        assert self.index.subscribe(subscriber, pattern) == (pattern not in held)
        if self.trie is not None and pattern not in held and not isinstance(pattern, EveryName):
            self.trie.add(pattern, subscriber)
        held.add(pattern)

    @rule(subscriber=subscribers, pattern=patterns)
    def unsubscribe(self, subscriber: int, pattern: Pattern) -> None:
        held = self.model.get(subscriber, set())
        assert self.index.unsubscribe(subscriber, pattern) == (pattern in held)
        self.remove_from_trie(subscriber, held & {pattern})
        held.discard(pattern)

    @precondition(lambda self: any(self.model.values()))
    @rule(data=st.data())
    def unsubscribe_what_is_held(self, data: st.DataObject) -> None:
        pairs = sorted((who, repr(pattern), pattern) for who, held in self.model.items() for pattern in held)
        subscriber, _, pattern = data.draw(st.sampled_from(pairs))
        assert self.index.unsubscribe(subscriber, pattern)
        self.remove_from_trie(subscriber, {pattern})
        self.model[subscriber].remove(pattern)

    @rule(subscriber=subscribers)
    def drop(self, subscriber: int) -> None:
        held = self.model.pop(subscriber, set())
        assert self.index.drop(subscriber) == len(held)
        self.remove_from_trie(subscriber, held)

    def remove_from_trie(self, subscriber: int, gone: set[Pattern]) -> None:
        for pattern in gone:
            if self.trie is not None and not isinstance(pattern, EveryName):
                self.trie.remove(pattern, subscriber)

    @rule(name=texts)
    def match(self, name: bytes) -> None:
        self.asked.add(name)
        self.check(name)

    @rule()
    def match_what_was_asked_before(self) -> None:
        for name in self.asked:
            self.check(name)

    def check(self, name: bytes) -> None:
        expected = [who for who, held in self.model.items() if any(self.matches(p, name) for p in held)]
        assert sorted(self.index.match(name)) == sorted(expected)

    @invariant()
    def the_books_agree(self) -> None:
        assert len(self.index) == sum(map(len, self.model.values()))
        assert self.index.subscribers == sum(1 for held in self.model.values() if held)
        for subscriber in range(4):
            assert set(self.index.patterns(subscriber)) == self.model.get(subscriber, set())

    @invariant()
    def the_trie_is_as_if_nothing_had_ever_left(self) -> None:
        if self.trie is None or self.wildcards is None:
            return
        fresh: Trie[int] = Trie(self.wildcards)
        for subscriber, held in self.model.items():
            for pattern in held:
                if not isinstance(pattern, EveryName):
                    fresh.add(pattern, subscriber)
        assert shape(self.trie.root) == shape(fresh.root)


class ChangesWithoutCache(Changes):
    cache_bytes_max = 0


class ChangesOfExactNames(Changes):
    wildcards = None


class ChangesWithAFullCache(Changes):
    cache_bytes_max = 1500


TestChanges = Changes.TestCase
TestChangesWithoutCache = ChangesWithoutCache.TestCase
TestChangesOfExactNames = ChangesOfExactNames.TestCase
TestChangesWithAFullCache = ChangesWithAFullCache.TestCase
MACHINES = (
    TestChanges,
    TestChangesWithoutCache,
    TestChangesOfExactNames,
    TestChangesWithAFullCache,
)
for machine in MACHINES:
    machine.settings = settings(max_examples=30, stateful_step_count=30)
del machine  # or its tests would run once more under this name


def test_a_match_in_hand_stays_as_it_was() -> None:
    index: RoutingIndex[str] = RoutingIndex(SLASHES)
    index.subscribe("x", b"a/*")
    index.subscribe("y", b"a/*")
    found = index.match(b"a/b")
    for subscriber in found:
        index.drop(subscriber)  # what a loop over slow consumers does
    assert found == ("x", "y")
    assert index.match(b"a/b") == ()


def test_the_cache_stays_within_its_bound_whatever_is_asked() -> None:
    books = CacheBytes(Caches(unbounded()), math.inf)
    index: RoutingIndex[int] = RoutingIndex(SLASHES, cache_bytes_max=100_000, cache_books=books)
    for subscriber in range(100):
        index.subscribe(subscriber, b"*")
    for i in range(5000):
        index.match(b"name/%d" % i)
    assert 0 < books.held_bytes <= 100_000
    visits = index.visits
    index.match(b"name/4999")
    assert index.visits == visits


def test_a_subscriber_of_its_own_kind_is_told_apart_by_what_it_equals() -> None:
    index: RoutingIndex[tuple[str, int]] = RoutingIndex(SLASHES)
    assert index.subscribe(("x", 1), b"a")
    assert not index.subscribe(("x", 1), b"a")
    assert index.subscribe(("x", 2), b"a")
    assert index.unsubscribe(("x", 1), b"a")
    assert index.match(b"a") == (("x", 2),)


def test_an_exact_subscription_forgets_only_its_own_name() -> None:
    index: RoutingIndex[str] = RoutingIndex(SLASHES)
    index.match(b"a")
    index.match(b"b")
    index.subscribe("x", b"a")
    assert index.match(b"a") == ("x",)
    assert index.match(b"b") == ()
    assert index.visits == 3, "the root, once a walk"


def test_a_name_is_forgotten_in_the_old_generation_too() -> None:
    index: RoutingIndex[str] = RoutingIndex(SLASHES, cache_bytes_max=2000)
    index.match(b"a")
    for i in range(5):
        index.match(b"%d" % i)  # fills half of the bound: what was young is old now
    visits = index.visits
    assert index.match(b"a") == ()
    assert index.visits == visits
    for i in range(5, 9):
        index.match(b"%d" % i)
    index.subscribe("x", b"a")
    assert index.match(b"a") == ("x",)
