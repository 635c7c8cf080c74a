"""Fan-out: who gets a message, found once, and what one pass over the input has for each set of receivers.

A *route* says where messages go: into bundles. A *bundle* gathers what a pass finds for the same receivers,
as slices of the input; at the end of the pass these are written to all of its members, joined once where they
are small.

*Order.* So long as no receiver is in two sets, a bundle for each set keeps the order of messages at each
receiver. As soon as one is, every receiver has a bundle of its own, and a message is put in several.

*Memory.* Routes are remembered by set and by the first bytes of messages, up to a bound, and while the budget
has room; above that all are learnt anew, as when a subscription changes.
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
"""To copy so much costs about what it costs to write a piece to one more receiver."""
VIEWED_BYTES = 4 * 1024
"""A smaller piece is copied in less time than a view of it takes."""
ROUTES_MEMBERS_MAX = 500_000
"""Receivers in all routes remembered."""
MEMBER_BYTES = 100
"""What each takes of memory, and a route by itself at most as much as three."""

M = TypeVar("M", bound=Hashable)


class Bundle(list[bytes | memoryview], Generic[M]):
    """Slices of the input, in order; all are for each of `members`. `messages`: how many those are."""

    __slots__ = ("members", "messages")

    def __init__(self, members: tuple[M, ...]) -> None:
        super().__init__()
        self.members = members
        self.messages = 0


class Route(Generic[M]):
    """Into these bundles, and so to `fan` receivers; `away` get it later, and are in no bundle."""

    __slots__ = ("away", "bundles", "fan")

    def __init__(self, bundles: tuple[Bundle[M], ...], fan: int, away: tuple[M, ...] = ()) -> None:
        self.bundles = bundles
        self.fan = fan
        self.away = away


class Routes(Generic[M]):
    """The routes that are known, and what the pass under way has put in their bundles.

    `known`: by the first bytes of messages, for a pass to look up, and to enter what it has learnt with
    `remember`. `epoch` rises whenever routes that were given out are not to be used any more.
    """

    __slots__ = (
        "_bundles",
        "_by_set",
        "_each_its_own",
        "_memory",
        "_touched",
        "epoch",
        "known",
        "nowhere",
    )

    def __init__(self, caches: Caches | None = None) -> None:
        """`caches` count what is remembered by set."""
        self.known: dict[bytes, Route[M]] = {}
        self.nowhere: Route[M] = Route((), 0)
        self.epoch = 0
        self._by_set: dict[tuple[frozenset[M], frozenset[M]], Route[M]] = {}
        self._memory = CacheBytes(caches or Caches(unbounded()), math.inf)
        self._bundles: dict[M, Bundle[M]] = {}
        self._each_its_own = False
        self._touched: list[Bundle[M]] = []

    def forget(self) -> None:
        """Who gets what has changed. What was put in bundles is still delivered, before all that follows."""
        self.epoch += 1
        self.known.clear()
        self._by_set.clear()
        self._memory.cleared()
        self._bundles.clear()
        self._each_its_own = False

    def of(self, members: tuple[M, ...], away: tuple[M, ...] = ()) -> Route[M]:
        """The route to these receivers: one for each set, so that all that goes to the same makes one run."""
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
        """`head`, the first bytes of messages, says by itself that they go there."""
        if len(self.known) >= ROUTES_MAX:
            self.known.clear()
        self.known[head] = route

    def put(self, route: Route[M], piece: bytes | memoryview, messages: int) -> None:
        """Have all of `route` get `piece`, which is so many messages."""
        for bundle in route.bundles:
            if not bundle:
                self._touched.append(bundle)
            bundle.append(piece)
            bundle.messages += messages

    def put_all(self, bundle: Bundle[M], pieces: Iterable[bytes | memoryview], messages: int) -> None:
        """Have all members of a bundle get these, so many messages."""
        if not bundle:
            self._touched.append(bundle)
        bundle += pieces
        bundle.messages += messages

    def gathered(self) -> Iterator[tuple[tuple[M, ...], bytes | memoryview, int]]:
        """What the pass has found: for whom, all of it or the first part, and how many messages it is.

        What follows a first part is said to be none more. The bundles are empty afterwards.
        """
        touched, self._touched = self._touched, []
        for bundle in touched:
            pieces = bundle.copy()
            bundle.clear()
            messages, bundle.messages = bundle.messages, 0
            for chunk in chunks_of(pieces, len(bundle.members)):
                yield bundle.members, chunk, messages
                messages = 0


def piece_of(data: bytes, start: int, end: int) -> bytes | memoryview:
    """`data[start:end]`, for receivers. Where that is large, and most of `data`, it is a view.

    A receiver that does not read keeps all of `data` in memory with it.
    """
    if end - start >= VIEWED_BYTES and (end - start) * 2 >= len(data):
        return memoryview(data)[start:end]
    return data[start:end]


def chunks_of(pieces: Sequence[bytes | memoryview], receivers: int) -> Sequence[bytes | memoryview]:
    """What to write to each of so many receivers: these pieces, joined where they are small."""
    count = len(pieces)
    if count == 1 or sum(map(len, pieces)) >= WRITTEN_BYTES * count * receivers:
        return pieces
    return (b"".join(pieces),)


def limit_slow_receiver(
    connection: Connection, bytes_max: int, slow: str, on_drop: Callable[[bytes | memoryview], None]
) -> None:
    """What waits for a receiver that does not read has this bound; above it `slow` says what happens: `drop`,
    its oldest whole writes go, and `on_drop` is told each; `disconnect`.
    """
    outbox = connection.outbox
    outbox.bound = bytes_max
    outbox.policy = Policy(slow)
    outbox.on_drop = on_drop
