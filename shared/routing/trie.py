"""The trie under the index: patterns by level, walked in all their states at once.

A pattern's levels up to its last wildcard are a path of nodes, and the literal rest behind it is a key in the
last node's `rests`, found by hashing what is left of the name. So a pattern without wildcards makes no node
and is found by one lookup at the root, and nodes stand only where there is still a choice.

A walk keeps a frontier: the nodes that some reading of the name's levels so far leads to. A node behind
`any_levels`, once entered, stays to the end and is not entered again; any other is reached from its one
parent, by one level. So a node is visited at most once at each position in the name: for one pattern at most
(its levels + 1) * (the name's levels + 1) visits on any input, and for many patterns at most their sum, less
what they share.

That sum is the bound of one walk, and a walk is not divided among turns of the loop. Patterns made for it, of
`+`, `*` and one literal, take 0.25 million visits for a thousand patterns of 20 levels and a name of 25 (some
60 ms), two million for ten thousand (a second), and 2.9 million for a thousand of 30 levels and a name of 127
(0.8 s); ordinary ones take tens. A walk that pauses would have to begin again, or work on a copy, whenever
somebody subscribes meanwhile: then whoever subscribes all the time keeps a name from ever being looked up,
and all that is to stay in order behind it. So what limits the work of one name is how many patterns there may
be (`subscriptions_max`, `sessions_max`, `bindings_max`); users divide the work of several names.

Most nodes have one child, if any. So `children` and `rests` hold a single entry bare (few.py says why), and
the shape of the trie follows from the patterns in it, whatever came and went before.
"""

from collections.abc import Hashable
from typing import Generic, TypeVar

from shared.routing.few import Few, with_one, without
from shared.routing.keyed import Keys, lookup, removed, stored
from shared.routing.syntax import Wildcards

S = TypeVar("S", bound=Hashable)


class Node(Generic[S]):
    """A prefix of patterns, in whole levels.

    `ends`: subscribers of the prefix and then one_level, last. `below`: of the prefix and then any_levels,
    last. `rests`: subscribers by literal rest; or one rest, and its subscribers in `rest_only`. `children`:
    nodes by literal level; or one level, and its node in `child_only`. `one`, `many`: the node behind
    one_level, behind any_levels, where more follows.
    """

    __slots__ = ("below", "child_only", "children", "ends", "many", "one", "rest_only", "rests")

    def __init__(self) -> None:
        self.ends: Few[S] | None = None
        self.below: Few[S] | None = None
        self.rests: Keys[Few[S]] = None
        self.rest_only: Few[S] | None = None
        self.children: Keys[Node[S]] = None
        self.child_only: Node[S] | None = None
        self.one: Node[S] | None = None
        self.many: Node[S] | None = None

    def is_empty(self) -> bool:
        return (
            self.ends is None
            and self.below is None
            and self.rests is None
            and self.children is None
            and self.one is None
            and self.many is None
        )


class Trie(Generic[S]):
    """Patterns and their subscribers. `visits`: how many (node, position) pairs all walks have looked at."""

    __slots__ = ("_any_levels", "_one_level", "_root", "_separator", "_wildcards", "visits")

    def __init__(self, wildcards: Wildcards) -> None:
        self._wildcards = wildcards
        self._separator = wildcards.separator
        self._any_levels = wildcards.any_levels
        self._one_level = wildcards.one_level
        self._root: Node[S] = Node()
        self.visits = 0

    def may_be_wild(self, pattern: bytes) -> bool:
        """False for what surely matches only itself."""
        return self._any_levels in pattern or self._one_level in pattern

    def walk(self, name: bytes) -> list[Few[S]]:
        """The subscribers of each pattern that matches; some sets may come more than once."""
        found: list[Few[S]] = []
        frontier = [self._root]
        entered: dict[Node[S], None] = {}  # the nodes behind any_levels
        separator = self._separator
        visits = 0
        rest, more = name, separator
        while more:
            level, more, after = rest.partition(separator)
            following: list[Node[S]] = []
            for node in frontier:  # it grows meanwhile: any_levels may stand for no level
                if (below := node.below) is not None:
                    found.append(below)
                if (rests := node.rests) is not None:
                    if type(rests) is dict:
                        if (subscribers := rests.get(rest)) is not None:
                            found.append(subscribers)
                    elif rests == rest and (subscribers := node.rest_only) is not None:
                        found.append(subscribers)
                if (children := node.children) is not None:
                    if type(children) is dict:
                        if (child := children.get(level)) is not None:
                            following.append(child)
                    elif children == level and (child := node.child_only) is not None:
                        following.append(child)
                if (one := node.one) is not None:
                    following.append(one)
                if not more and (ends := node.ends) is not None:
                    found.append(ends)
                if (many := node.many) is not None and many not in entered:
                    entered[many] = None
                    frontier.append(many)
            visits += len(frontier)
            rest = after
            frontier = [*entered, *following] if entered else following
            if not frontier:
                break
        # The name is read: only any_levels can still match, as no level. Nodes entered before had theirs.
        for node in following:
            if (below := node.below) is not None:
                found.append(below)
            if (many := node.many) is not None and many not in entered:
                entered[many] = None
                following.append(many)
        self.visits += visits + len(following)
        return found

    def add(self, pattern: bytes, subscriber: S) -> None:
        levels, last, rest = self._place(pattern)
        node = self._root
        for level in levels:
            child = self._child(node, level)
            if child is None:
                child = Node()
                self._set_child(node, level, child)
            node = child
        if rest is not None:
            subscribers = with_one(lookup(node.rests, node.rest_only, rest), subscriber)
            node.rests, node.rest_only = stored(node.rests, node.rest_only, rest, subscribers)
        elif last == self._any_levels:
            node.below = with_one(node.below, subscriber)
        else:
            node.ends = with_one(node.ends, subscriber)

    def remove(self, pattern: bytes, subscriber: S) -> None:
        """`subscriber` has `pattern`: the index knows."""
        levels, last, rest = self._place(pattern)
        node = self._root
        path = []
        for level in levels:
            path.append((node, level))
            child = self._child(node, level)
            assert child is not None
            node = child
        if rest is not None:
            left = without(lookup(node.rests, node.rest_only, rest), subscriber)
            if left is None:
                node.rests, node.rest_only = removed(node.rests, rest)
            else:
                node.rests, node.rest_only = stored(node.rests, node.rest_only, rest, left)
        elif last == self._any_levels:
            node.below = without(node.below, subscriber)
        else:
            node.ends = without(node.ends, subscriber)
        while path and node.is_empty():
            node, level = path.pop()
            self._set_child(node, level, None)

    def _place(self, pattern: bytes) -> tuple[list[bytes], bytes | None, bytes | None]:
        """The levels that lead to the pattern's node, and then its last wildcard or its literal rest."""
        levels, rest = self._wildcards.divide(pattern)
        return levels, levels.pop() if rest is None else None, rest

    def _child(self, node: Node[S], level: bytes) -> Node[S] | None:
        if level == self._one_level:
            return node.one
        if level == self._any_levels:
            return node.many
        return lookup(node.children, node.child_only, level)

    def _set_child(self, node: Node[S], level: bytes, child: Node[S] | None) -> None:
        if level == self._one_level:
            node.one = child
        elif level == self._any_levels:
            node.many = child
        elif child is None:
            node.children, node.child_only = removed(node.children, level)
        else:
            node.children, node.child_only = stored(node.children, node.child_only, level, child)
