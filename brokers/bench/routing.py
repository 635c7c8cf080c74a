"""The routing index by itself: no sockets, no protocol, one thread.

The population is half as many names of five levels as there are subscriptions; 60 % of these are such a name
as it is, and 20 % have one or two levels replaced by the one-level wildcard. 15 % end in the any-levels
wildcard after two to four levels, and 5 % have it in their middle. The names asked for come from the same
population, in no order, nearly all for the first time. What a match reads is not in the processor's caches
then, which at a million subscriptions is the larger half of its time.
"""

import gc
import random
from array import array
from collections.abc import Callable, Iterator, Sequence
from time import perf_counter_ns
from typing import Annotated, TypeVar

from brokers.bench.load import Spread
from brokers.bench.options import some
from brokers.bench.processes import resident_bytes
from shared.cli.options import Json
from shared.routing.index import RoutingIndex
from shared.routing.syntax import Wildcards

WILDCARDS = Wildcards(separator=b"/", any_levels=b"*", one_level=b"+")
T = TypeVar("T")

TREE = (200, 30, 30, 30, 10)  # values of each level


class Subscriber:
    """Small, and hashed by identity, as sessions are."""

    __slots__ = ()


def bench(
    *,
    subscriptions: Annotated[int, some("Patterns in the index.")] = 1_000_000,
    subscribers: Annotated[int, some("Parties that hold them.")] = 10_000,
    names: Annotated[int, some("Names that are asked for.")] = 40_000,
    json: Json = False,
) -> list[Spread]:
    """Subscribe, match and drop on one index of many subscriptions.

    Exact names and both wildcards, five levels deep; matches without the cache and
    with it. Memory is the growth of the process (Linux only).
    """
    rng = random.Random(1)
    population = [_name(rng) for _ in range(max(subscriptions // 2, 1))]
    parties = [Subscriber() for _ in range(subscribers)]
    spent = array("q", bytes(8 * subscriptions))
    index: RoutingIndex[Subscriber] = RoutingIndex(WILDCARDS, cache_bytes_max=0)
    gc.collect()
    resident = resident_bytes()
    for i, pattern in enumerate(_patterns(rng, population, subscriptions)):
        party = parties[rng.randrange(subscribers)]
        start = perf_counter_ns()
        index.subscribe(party, pattern)
        spent[i] = perf_counter_ns() - start
    rows = [Spread.of("subscribe", spent)]
    if resident is not None and (grown := resident_bytes()) is not None:
        rows.append(Spread("memory a subscription", round((grown - resident) / len(index)), None, "bytes", 1))

    asked = [b"/".join(rng.choice(population)) for _ in range(names)]
    walks = _times(index.match, asked)
    visits = index.statistics().visits / names
    found = [len(index.match(name)) for name in asked]
    rows += [
        Spread.of(
            "match of 10 subscribers, no cache", [ns for ns, n in zip(walks, found, strict=True) if n == 10]
        ),
        Spread.of("match of any number, no cache", walks),
        Spread.of("subscribers a match", found, unit="subscribers", per=1),
        Spread("nodes visited a match, mean", round(visits, 1), None, "visits", names),
    ]
    plain = {b"/".join(name): None for name in population}
    rows.append(Spread.of("yardstick: one lookup in a dict of the population", _times(plain.get, asked)))
    cached: RoutingIndex[Subscriber] = RoutingIndex(WILDCARDS)
    for party in parties[:10]:
        cached.subscribe(party, b"*")
    _times(cached.match, asked[:1000])
    rows.append(Spread.of("match of 10 subscribers, from the cache", _times(cached.match, asked[:1000] * 10)))

    start = perf_counter_ns()
    gc.collect()
    rows.append(Spread("full garbage collection", (perf_counter_ns() - start) / 1000, None, "us", 1))
    held = [len(index.patterns(party)) for party in parties[:1000]]
    drops = _times(index.drop, parties[:1000])
    rows.append(
        Spread.of("drop, a subscription", [ns // max(n, 1) for ns, n in zip(drops, held, strict=True)])
    )
    return rows


def _name(rng: random.Random) -> tuple[bytes, ...]:
    return tuple(b"%c%d" % (97 + depth, rng.randrange(values)) for depth, values in enumerate(TREE))


def _patterns(rng: random.Random, population: Sequence[tuple[bytes, ...]], count: int) -> Iterator[bytes]:
    for _ in range(count):
        levels = list(rng.choice(population))
        kind = rng.random()
        if kind >= 0.95:
            first = rng.randrange(1, 4)
            levels[first : rng.randrange(first + 1, 5)] = [WILDCARDS.any_levels]
        elif kind >= 0.8:
            levels[rng.randrange(2, 5) :] = [WILDCARDS.any_levels]
        elif kind >= 0.6:
            for depth in rng.sample(range(5), rng.choice((1, 1, 1, 2))):
                levels[depth] = WILDCARDS.one_level
        yield WILDCARDS.separator.join(levels)


def _times(action: Callable[[T], object], things: Sequence[T]) -> list[int]:
    """Nanoseconds of `action` on each of `things`."""
    spent = []
    for thing in things:
        start = perf_counter_ns()
        action(thing)
        spent.append(perf_counter_ns() - start)
    return spent
