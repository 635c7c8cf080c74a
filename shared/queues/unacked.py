"""The deliveries that one consumer has not acknowledged, by their ids.

A consumer that asks for many messages gets them in runs, and mostly acknowledges them in the same runs. So a
run is kept whole, and split only when a part of it is asked for. An entry for each message would cost more
than everything else done for it. Ids count up within a run, and no two runs overlap.
"""

from __future__ import annotations

from bisect import bisect_right
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
        self._firsts = None
        self.count += len(ids)

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
        if type(ids) is not tuple:
            ids = tuple(ids)
        taken: list[Delivery[K, Q]] = []
        at, count = 0, len(ids)
        while at < count:
            delivery = runs.pop(ids[at], None)
            if delivery is not None:
                size = len(delivery[0])
                if size == 1 or delivery[0] == ids[at : at + size]:
                    taken.append(delivery)
                    at += size
                    continue
                runs[ids[at]] = delivery
            if not self._split(ids[at]):
                runs.update((each[0][0], each) for each in taken)
                self._firsts = None
                return None
        self.count -= count
        return taken

    def _split(self, delivery_id: K) -> bool:
        """Split the run that holds this id into its messages; whether there is one."""
        firsts = self._firsts
        if firsts is None:
            firsts = self._firsts = sorted(self.runs)
        place = bisect_right(firsts, delivery_id)
        delivery = self.runs.get(firsts[place - 1]) if place else None
        if delivery is None or delivery_id > delivery[0][-1]:
            return False
        ids, queue, run = delivery
        for at in range(len(ids)):
            self.runs[ids[at]] = ids[at : at + 1], queue, run.part(at, at + 1)
        self._firsts = None
        return True
