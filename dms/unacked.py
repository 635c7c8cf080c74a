"""What one consumer holds: deliveries that it has not acknowledged, by id.

A consumer with many credits gets messages in runs, and mostly acknowledges them in the same runs. So a run is
kept whole, and split only when a part of it is asked for. An entry for each message would cost more than
everything else done for it. Ids count up within a run, and no two runs overlap.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, islice, repeat
from typing import Generic, TypeVar, overload

Q = TypeVar("Q")
"""The queue of a delivery: opaque here."""

Delivery = tuple[Q, int, bytes, int]
"""Queue, sequence, body, number of deliveries. A tuple, because `zip` makes a run of them."""


class DeliveredRun(Sequence[Delivery[Q]]):
    """Consecutive messages of one queue, from sequence `seq` on, never delivered before. `times`: their
    number of deliveries."""

    __slots__ = ("_bodies", "_times", "ids", "queue", "seqs")

    def __init__(
        self, ids: tuple[bytes, ...], queue: Q, seq: int, bodies: Sequence[bytes], times: int = 1
    ) -> None:
        self.ids = ids
        self.queue = queue
        self.seqs = range(seq, seq + len(ids))
        self._bodies = bodies
        self._times = times

    def __len__(self) -> int:
        return len(self.ids)

    def __iter__(self) -> Iterator[Delivery[Q]]:
        return zip(repeat(self.queue), self.seqs, self._bodies, repeat(self._times), strict=False)

    @overload
    def __getitem__(self, at: int) -> Delivery[Q]: ...
    @overload
    def __getitem__(self, at: slice) -> Sequence[Delivery[Q]]: ...
    def __getitem__(self, at: int | slice) -> Delivery[Q] | Sequence[Delivery[Q]]:
        return tuple(self)[at]


class Unacked(Generic[Q]):
    """`single`: deliveries by themselves; `in_runs`: the number of others. Ids are as in frames."""

    __slots__ = ("_firsts", "_runs", "in_runs", "single")

    def __init__(self) -> None:
        self.single: dict[bytes, Delivery[Q]] = {}
        self._runs: dict[bytes, DeliveredRun[Q]] = {}  # by their first id
        self._firsts: list[bytes] | None = None
        """All keys of `_runs` in order, and maybe former ones; None: to be made."""
        self.in_runs = 0

    def __len__(self) -> int:
        return len(self.single) + self.in_runs

    def __iter__(self) -> Iterator[bytes]:
        return chain(self.single, *(run.ids for run in self._runs.values()))

    def deliveries(self, start: int) -> Iterator[Delivery[Q]]:
        """All deliveries but the first `start`; nothing may be added or removed meanwhile."""
        yield from islice(self.single.values(), start, None)
        start -= len(self.single)
        for run in self._runs.values():
            if start < len(run):
                yield from islice(run, max(start, 0), None)
            start -= len(run)

    def pieces(self) -> list[Sequence[Delivery[Q]]]:
        """A copy of all deliveries as of now."""
        return [tuple(self.single.values()), *self._runs.values()]

    def add(self, run: DeliveredRun[Q]) -> None:
        self._runs[run.ids[0]] = run
        self._firsts = None
        self.in_runs += len(run.ids)

    def add_all(self, ids: Sequence[bytes], deliveries: Sequence[Delivery[Q]]) -> None:
        self.single.update(zip(ids, deliveries, strict=True))

    def get(self, delivery_id: bytes) -> Delivery[Q] | None:
        found = self.single.get(delivery_id)
        if found is None and self._runs:
            self._split((delivery_id,))
            found = self.single.get(delivery_id)
        return found

    def pop(self, delivery_id: bytes) -> Delivery[Q] | None:
        """Remove one; None: it is not here."""
        found = self.get(delivery_id)
        if found is not None:
            del self.single[delivery_id]
        return found

    def pop_all(self, ids: Sequence[bytes]) -> list[Delivery[Q]] | None:
        """Remove all; None, and nothing changes, if one is not here or is named twice."""
        if self._runs:
            self._split(ids)
        single = self.single
        found = [delivery for each in ids if (delivery := single.get(each)) is not None]
        if len(found) < len(ids) or (len(ids) > 1 and len(set(ids)) < len(ids)):
            return None
        for each in ids:
            del single[each]
        return found

    def pop_runs(self, ids: tuple[bytes, ...]) -> Sequence[DeliveredRun[Q]]:
        """Remove the runs whose ids, run after run, are exactly these; else (), unchanged."""
        taken: list[DeliveredRun[Q]] = []
        at = 0
        while at < len(ids):
            run = self._runs.pop(ids[at], None)
            if run is None:
                break
            taken.append(run)
            if ids[at : at + len(run.ids)] != run.ids:
                break
            at += len(run.ids)
        else:
            self.in_runs -= at
            return taken
        for run in taken:
            self._runs[run.ids[0]] = run
        return ()

    def _split(self, ids: Iterable[bytes]) -> None:
        """Split the runs that hold one of these ids."""
        firsts, single = self._firsts, self.single
        if firsts is None:
            firsts = self._firsts = sorted(self._runs)
        for each in ids:
            if each in single:
                continue
            at = bisect_right(firsts, each)
            run = self._runs.get(firsts[at - 1]) if at else None
            if run is not None and each <= run.ids[-1]:
                del self._runs[run.ids[0]]
                self.in_runs -= len(run.ids)
                self.add_all(run.ids, run)


class Returning(Generic[Q]):
    """What a consumer held, on its way back to the queues. `back`: so many of them have returned.

    Nothing is copied. The garbage collector would walk a new container of 50,000 deliveries three times, with
    all that is in it: 40 ms.
    """

    __slots__ = ("_held", "_untried", "back")

    def __init__(self, held: Unacked[Q], untried: Callable[[bytes], bool] | None = None) -> None:
        self._held = held
        self._untried = untried
        self.back = 0

    def __iter__(self) -> Iterator[Delivery[Q]]:
        """The deliveries that have not returned now; others may return meanwhile. The number of deliveries is
        one less for those that are `untried`, by id.
        """
        deliveries, untried = self._held.deliveries(self.back), self._untried
        if untried is None:
            return deliveries
        ids = islice(self._held, self.back, None)
        return (
            (queue, seq, body, count - untried(each))
            for each, (queue, seq, body, count) in zip(ids, deliveries, strict=True)
        )
