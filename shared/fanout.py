"""Fan-out: the receivers of a message, remembered as routes, and one write for each set of receivers.

A *route* names the bundles that a message goes into. A *bundle* gathers slices of the input for one set of
receivers. At the end of a pass its slices are written to all its members; small ones are joined once.

*Order.* While no receiver is in two sets, one bundle for each set keeps the order of messages at each
receiver. Once a receiver is in two, every receiver gets its own bundle, and a message goes into several.

*Memory.* Routes are remembered by set and by the first bytes of messages, up to a bound and while the budget
has room. Above that, and when a subscription changes, all are forgotten and found again.
"""

import math
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from typing import Generic, TypeVar

from shared.budget import CacheBytes, Caches, unbounded
from shared.net.connection import Connection
from shared.net.outbox import Policy

ROUTES_MAX = 8192
"""Routes remembered by the first bytes of messages."""
WRITTEN_BYTES = 2 * 1024
"""Copying so many bytes costs about as much as writing one more piece to a receiver."""
VIEWED_BYTES = 4 * 1024
"""Below this size a copy takes less time than a view."""
ROUTES_MEMBERS_MAX = 500_000
"""Receivers in all remembered routes together."""
MEMBER_BYTES = 100
"""Memory of a receiver in a route; a route itself takes at most three times as much."""

M = TypeVar("M", bound=Hashable)


class Bundle(list[bytes | memoryview], Generic[M]):
    """Slices of the input, in order, for each of `members`. `messages`: the number of messages in them."""

    __slots__ = ("members", "messages")

    def __init__(self, members: tuple[M, ...]) -> None:
        super().__init__()
        self.members = members
        self.messages = 0


class Route(Generic[M]):
    """The bundles of a message, with `fan` receivers in all. `away`: receivers that get it later, in no
    bundle."""

    __slots__ = ("away", "bundles", "fan")

    def __init__(self, bundles: tuple[Bundle[M], ...], fan: int, away: tuple[M, ...] = ()) -> None:
        self.bundles = bundles
        self.fan = fan
        self.away = away


class Routes(Generic[M]):
    """The known routes, and the slices that the current pass has put in their bundles.

    `known`: first bytes of messages to routes; a pass looks them up, and adds to them by `remember`. `epoch`
    rises whenever routes that were given out become invalid. `touched`: the bundles that hold slices.
    """

    __slots__ = ("_bundles", "_by_set", "_each_its_own", "_memory", "epoch", "known", "nowhere", "touched")

    def __init__(self, caches: Caches | None = None) -> None:
        """`caches`: the account of routes remembered by set."""
        self.known: dict[bytes, Route[M]] = {}
        self.nowhere: Route[M] = Route((), 0)
        self.epoch = 0
        self._by_set: dict[tuple[frozenset[M], frozenset[M]], Route[M]] = {}
        self._memory = CacheBytes(caches or Caches(unbounded()), math.inf)
        self._bundles: dict[M, Bundle[M]] = {}
        self._each_its_own = False
        self.touched: list[Bundle[M]] = []

    def forget(self) -> None:
        """Subscriptions have changed: forget all routes. Slices in bundles are still delivered, in order."""
        self.epoch += 1
        self.known.clear()
        self._by_set.clear()
        self._memory.cleared()
        self._bundles.clear()
        self._each_its_own = False

    def of(self, members: tuple[M, ...], away: tuple[M, ...] = ()) -> Route[M]:
        """The route to these receivers; one object for each set, so that messages for the same set form one
        run."""
        if not members and not away:
            return self.nowhere
        those = frozenset(members), frozenset(away)
        route = self._by_set.get(those)
        if route is not None:
            return route
        size = (len(members) + len(away) + 3) * MEMBER_BYTES
        if self._memory.held_bytes > ROUTES_MEMBERS_MAX * MEMBER_BYTES or not self._memory.fits(size):
            self.forget()
        if not (self._each_its_own or self._bundles.keys().isdisjoint(those[0])):
            self.forget()
            self._each_its_own = True
        route = self._by_set[those] = Route(self._bundles_of(members), len(members), away)
        self._memory.add(size)
        return route

    def _bundles_of(self, members: tuple[M, ...]) -> tuple[Bundle[M], ...]:
        of_member = self._bundles
        if self._each_its_own:
            for each in members:
                if each not in of_member:
                    of_member[each] = Bundle((each,))
            return tuple([of_member[each] for each in members])
        bundle = Bundle(members)
        of_member.update(dict.fromkeys(members, bundle))
        return (bundle,) if members else ()

    def remember(self, head: bytes, route: Route[M]) -> None:
        """Remember the route of all messages that begin with `head`."""
        if len(self.known) >= ROUTES_MAX:
            self.known.clear()
        self.known[head] = route

    def put(self, route: Route[M], piece: bytes | memoryview, messages: int) -> None:
        """Add `piece`, so many messages, to all bundles of `route`."""
        for bundle in route.bundles:
            if not bundle:
                self.touched.append(bundle)
            bundle.append(piece)
            bundle.messages += messages

    def put_all(self, bundle: Bundle[M], pieces: Iterable[bytes | memoryview], messages: int) -> None:
        """Add pieces, so many messages, to one bundle."""
        if not bundle:
            self.touched.append(bundle)
        bundle += pieces
        bundle.messages += messages

    def gathered(self) -> Iterator[tuple[tuple[M, ...], bytes | memoryview, int]]:
        """Empty the bundles: yield (receivers, chunk, number of messages).

        A large bundle comes in several chunks; the first counts all its messages, the others none.
        """
        touched, self.touched = self.touched, []
        for bundle in touched:
            members = bundle.members
            messages, bundle.messages = bundle.messages, 0
            if len(bundle) == 1:
                yield members, bundle.pop(), messages
                continue
            chunks = chunks_of(bundle, len(members))
            if chunks is bundle:
                chunks = bundle.copy()
            bundle.clear()
            for chunk in chunks:
                yield members, chunk, messages
                messages = 0


def piece_of(data: bytes, start: int, end: int) -> bytes | memoryview:
    """`data[start:end]` for receivers; a view if that is large and most of `data`.

    With a view, a receiver that does not read keeps all of `data` in memory.
    """
    if end - start >= VIEWED_BYTES and (end - start) * 2 >= len(data):
        return memoryview(data)[start:end]
    return data[start:end]


def chunks_of(pieces: Sequence[bytes | memoryview], receivers: int) -> Sequence[bytes | memoryview]:
    """The chunks to write to each of so many receivers: the pieces, joined where they are small."""
    count = len(pieces)
    if count == 1 or sum(map(len, pieces)) >= WRITTEN_BYTES * count * receivers:
        return pieces
    return (b"".join(pieces),)


def limit_slow_receiver(
    connection: Connection, bytes_max: int, slow: str, on_drop: Callable[[bytes | memoryview], None]
) -> None:
    """Bound the bytes that wait for a receiver that does not read. Above the bound `slow` decides: `drop`
    drops its oldest whole writes, and calls `on_drop` with each; `disconnect` closes it.
    """
    outbox = connection.outbox
    outbox.bound = bytes_max
    outbox.policy = Policy(slow)
    outbox.on_drop = on_drop
