"""The deliveries that one consumer has not acknowledged, by their ids.

A consumer that asks for many messages gets them in runs, and mostly acknowledges them in the same runs. So a
run is kept whole, and split only when a part of it is asked for. An entry for each message would cost more
than everything else done for it. Ids count up within a run, and no two runs overlap. Where ids are numbers
that follow each other, as AMQP's delivery tags do, those of a run are a `range`.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Iterable, Iterator, Sequence
from typing import Generic, TypeAlias, TypeVar

from shared.queues.runs import Run

K = TypeVar("K", bytes, int)
"""A delivery's id, as in the protocol's frames."""
Q = TypeVar("Q")
"""The queue of a delivery: opaque here."""

Delivery: TypeAlias = tuple[Sequence[K], Q, Run]
"""The ids of a run's messages, their queue, and the run."""


class Unacked(Generic[K, Q]):
    """`runs`: deliveries by their first ids, in the order in which they were added. `count`: of messages."""

    __slots__ = ("_firsts", "count", "runs")

    def __init__(self) -> None:
        self.runs: dict[K, Delivery[K, Q]] = {}
        self.count = 0
        self._firsts: list[K] | None = None
        """All keys of `runs` in order, and maybe former ones; None: to be made."""

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[Delivery[K, Q]]:
        return iter(self.runs.values())

    def add(self, ids: Sequence[K], queue: Q, run: Run) -> None:
        self.runs[ids[0]] = ids, queue, run
        self.count += len(ids)
        firsts = self._firsts
        if firsts is not None:
            if len(firsts) > 2 * len(self.runs) or (firsts and ids[0] < firsts[-1]):
                self._firsts = None
            else:
                firsts.append(ids[0])

    def put_back(self, deliveries: Iterable[Delivery[K, Q]]) -> None:
        """Add deliveries that were taken."""
        for delivery in deliveries:
            self.add(*delivery)

    def get(self, delivery_id: K) -> Delivery[K, Q] | None:
        """The delivery of this id alone; it stays. None: it is not here."""
        delivery = self.runs.get(delivery_id)
        if delivery is not None and len(delivery[0]) == 1:
            return delivery
        return self.runs.get(delivery_id) if self._split(delivery_id) else None

    def take(self, ids: Sequence[K]) -> list[Delivery[K, Q]] | None:
        """Remove deliveries, in the order of `ids`. None, and nothing changes, if one is not here or is named
        twice.
        """
        runs = self.runs
        if type(ids) is list:
            ids = tuple(ids)
        taken: list[Delivery[K, Q]] = []
        at, count = 0, len(ids)
        while at < count:
            delivery = runs.pop(ids[at], None)
            if delivery is not None:
                size = len(delivery[0])
                if size > 1 and delivery[0] != ids[at : at + size]:
                    delivery = self._cut(delivery, ids[at : at + size])
                    size = len(delivery[0])
                taken.append(delivery)
                at += size
            elif not self._split(ids[at]):
                runs.update((each[0][0], each) for each in taken)
                self._firsts = None
                return None
        self.count -= count
        return taken

    def take_one(self, delivery_id: K) -> Delivery[K, Q] | None:
        """Remove one delivery. None: it is not here."""
        runs = self.runs
        delivery = runs.get(delivery_id)
        if delivery is None or len(delivery[0]) > 1:
            if not self._split(delivery_id):
                return None
            delivery = runs[delivery_id]
        del runs[delivery_id]
        self.count -= 1
        return delivery

    def take_up_to(self, last: K) -> list[Delivery[K, Q]]:
        """Remove the deliveries whose ids are not above `last`, in the order of their ids."""
        runs, firsts = self.runs, self._sorted_firsts()
        behind = bisect_right(firsts, last)
        taken = [runs.pop(first) for first in firsts[:behind] if first in runs]
        del firsts[:behind]
        if taken and taken[-1][0][-1] > last:
            ids, queue, run = taken.pop()
            place = bisect_right(ids, last)
            taken.append((ids[:place], queue, run.part(0, place)))
            runs[ids[place]] = ids[place:], queue, run.part(place, len(ids))
            firsts.insert(0, ids[place])
        self.count -= sum([len(ids) for ids, _, _ in taken])
        return taken

    def take_all(self) -> list[Delivery[K, Q]]:
        """Remove all, in the order of their ids."""
        taken = [self.runs[first] for first in sorted(self.runs)]
        self.runs.clear()
        self.count, self._firsts = 0, None
        return taken

    def _sorted_firsts(self) -> list[K]:
        if self._firsts is None:
            self._firsts = sorted(self.runs)
        return self._firsts

    def _cut(self, delivery: Delivery[K, Q], wanted: Sequence[K]) -> Delivery[K, Q]:
        """Cut off the front of a delivery that was taken, as far as its ids are the wanted ones. The rest
        stays."""
        ids, queue, run = delivery
        size = len(wanted)
        if ids[:size] != wanted:
            size = next(at for at, (one, other) in enumerate(zip(ids, wanted, strict=False)) if one != other)
        rest = ids[size:]
        self.runs[rest[0]] = rest, queue, run
        if self._firsts is not None:
            insort(self._firsts, rest[0])
        return ids[:size], queue, run.cut(size)

    def _split(self, delivery_id: K) -> bool:
        """Split the run that holds this id into its messages; whether there is one. Messages that are asked
        for one by one cost half of what it costs to cut each off a run."""
        delivery = self.runs.get(delivery_id)
        if delivery is None:
            firsts = self._sorted_firsts()
            place = bisect_right(firsts, delivery_id)
            delivery = self.runs.get(firsts[place - 1]) if place else None
            if delivery is None or delivery_id > delivery[0][-1]:
                return False
        ids, queue, run = delivery
        self.runs.update(
            [(ids[at], (ids[at : at + 1], queue, message)) for at, message in enumerate(run.singles())]
        )
        self._firsts = None
        return True
