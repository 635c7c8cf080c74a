"""What one connection holds: deliveries that it has not acknowledged, by their ids.

A consumer of many credits gets messages in runs, and mostly acknowledges them in the same runs: a run is kept
as it was handed out, and comes apart only when something else than the whole of it is asked for. To keep each
of its messages by itself costs more than all else that is done for it.
"""

from collections.abc import Iterator, Sequence
from itertools import chain, repeat
from typing import TYPE_CHECKING, overload

from dms.messages import Out

if TYPE_CHECKING:
    from dms.queue import Queue


class Handed(Sequence[Out]):
    """A run: messages in a row of `queue`, from sequence `seq` on, none of which was delivered before."""

    __slots__ = ("_bodies", "ids", "queue", "seqs")

    def __init__(self, ids: tuple[bytes, ...], queue: "Queue", seq: int, bodies: Sequence[bytes]) -> None:
        self.ids = ids
        self.queue = queue
        self.seqs = range(seq, seq + len(ids))
        self._bodies = bodies

    def __len__(self) -> int:
        return len(self.ids)

    def __iter__(self) -> Iterator[Out]:
        return zip(repeat(self.queue), self.seqs, self._bodies, repeat(1), strict=False)

    @overload
    def __getitem__(self, at: int) -> Out: ...
    @overload
    def __getitem__(self, at: slice) -> Sequence[Out]: ...
    def __getitem__(self, at: int | slice) -> Out | Sequence[Out]:
        return tuple(self)[at]


class Held:
    """`alone`: deliveries by themselves; `in_runs`: how many others. Ids are as they stand in frames."""

    __slots__ = ("_runs", "alone", "in_runs")

    def __init__(self) -> None:
        self.alone: dict[bytes, Out] = {}
        self._runs: dict[bytes, Handed] = {}  # by their first id
        self.in_runs = 0

    def __len__(self) -> int:
        return len(self.alone) + self.in_runs

    def __iter__(self) -> Iterator[bytes]:
        return chain(self.alone, *(run.ids for run in self._runs.values()))

    def values(self) -> Iterator[Out]:
        return chain(self.alone.values(), *self._runs.values())

    def add(self, run: Handed) -> None:
        """Hold a run."""
        self._runs[run.ids[0]] = run
        self.in_runs += len(run.ids)

    def add_all(self, ids: Sequence[bytes], outs: Sequence[Out]) -> None:
        """Hold these."""
        self.alone.update(zip(ids, outs, strict=True))

    def get(self, message_id: bytes) -> Out | None:
        out = self.alone.get(message_id)
        if out is None and self._runs:
            self._take_apart()
            out = self.alone.get(message_id)
        return out

    def pop(self, message_id: bytes) -> Out | None:
        """Hold it no more; None: it was not held."""
        out = self.get(message_id)
        if out is not None:
            del self.alone[message_id]
        return out

    def pop_all(self, ids: Sequence[bytes]) -> list[Out] | None:
        """Hold none of them any more; None where one is not held, or comes twice: then nothing changes."""
        if self._runs:
            self._take_apart()
        alone = self.alone
        outs = [out for each in ids if (out := alone.get(each)) is not None]
        if len(outs) < len(ids) or (len(ids) > 1 and len(set(ids)) < len(ids)):
            return None
        for each in ids:
            del alone[each]
        return outs

    def pop_runs(self, ids: tuple[bytes, ...]) -> Sequence[Handed]:
        """Hold those runs no more whose ids, one run's behind the other's, are just these; () where it is not
        so, and then nothing changes."""
        taken: list[Handed] = []
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

    def _take_apart(self) -> None:
        runs, self._runs, self.in_runs = self._runs, {}, 0
        for run in runs.values():
            self.add_all(run.ids, run)
