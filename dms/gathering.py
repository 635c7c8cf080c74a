"""What one round changes in one queue: gathered, so that its log gets three records, however many requests.

A record costs as much as a dozen of its entries, and most requests are small: one message, one ACK. So
messages that come and those that are acknowledged are only noted here, with the ticket of the round that is
being filled; when that round is sealed, one ENQUEUED, the notes, and one ACKED are written. Nobody may be
told of a change before that ticket is done, so nothing shows that its record was written late. What else is
written of the queue (a return, a move, a snapshot) rests on what is gathered, which is then written first.
"""

from collections.abc import Sequence
from operator import itemgetter
from typing import TYPE_CHECKING

from dms.held import Handed
from dms.messages import Out
from dms.records import HEAD, RUN_BYTES, Kind, to_runs
from shared.storage.store import LogAppend, Ticket

if TYPE_CHECKING:
    from dms.consuming import Consuming
    from dms.keeper import Keeper

_HEADS_BYTES = 3 * HEAD.size
_LENGTH_BYTES = 4
_seq_of = itemgetter(1)  # of an Out

Acks = tuple["Consuming", Sequence[bytes], Sequence[Out]]
"""What a connection has acknowledged: by which ids it was held."""


class Gathering:
    """Of one queue. `_run`: where in the store's round it will be written."""

    __slots__ = ("_acks", "_bodies", "_first", "_keeper", "_kept", "_log", "_run", "_size")

    def __init__(self, keeper: "Keeper") -> None:
        self._keeper = keeper
        self._log = keeper.log
        self._run: LogAppend | None = None
        self._kept = 0
        """Room that is kept in the round."""
        self._bodies: list[bytes] = []
        self._size = self._first = 0
        self._acks: list[Acks] = []

    def came(self, bodies: Sequence[bytes], size: int) -> Ticket:
        """Messages, `size` bytes in all, from the row's tail on. Raises StoreError."""
        run = self._room(size + _LENGTH_BYTES * len(bodies), reserved=False)
        if not self._bodies:
            self._first = self._keeper.queue.tail
        self._bodies += bodies
        self._size += size
        return run.ticket

    def acked(self, session: "Consuming", ids: Sequence[bytes], outs: Sequence[Out]) -> Ticket:
        """Messages have gone. Raises StoreError."""
        size = RUN_BYTES * len(outs)
        run = self._run
        if run is None or run is not self._log.pending or size > run.batch.room:
            run = self._room(size, reserved=True)
        else:  # the same without a call: this is where every ACK passes
            run.batch.room -= size
            self._kept += size
        self._acks.append((session, ids, outs))
        return run.ticket

    def _room(self, size: int, *, reserved: bool) -> LogAppend:
        run = self._run
        if run is None or run is not self._log.pending or size > run.batch.room:
            size += _HEADS_BYTES
            # Where the round is full this seals it, and so writes what was gathered for it.
            run = self._run = self._log.gather(size, self.write, reserved)
        else:
            run.batch.room -= size
        self._kept += size
        return run

    def write(self) -> None:
        """Write what is gathered, if anything is."""
        run, self._run = self._run, None
        if run is None:
            return
        run.batch.room += self._kept
        self._kept = 0
        keeper = self._keeper
        bodies, acks = self._bodies, self._acks
        parts: list[bytes] = []
        if bodies:
            parts.append(keeper.record_of(bodies, self._first))
        gone = b""
        if acks:
            seqs: list[int] = []
            for _, _, outs in acks:
                seqs.extend(outs.seqs if isinstance(outs, Handed) else map(_seq_of, outs))
            seqs.sort()
            gone = keeper.runs_record(Kind.ACKED, to_runs(seqs))
        notes, count = keeper.take_notes(run.batch.room - sum(map(len, parts)) - len(gone))
        parts += (notes, gone)
        offset = run.add(b"".join(parts), count + bool(bodies) + bool(acks))
        if bodies:
            keeper.came(bodies, self._size, offset, self._first)
            self._bodies, self._size = [], 0
        if acks:
            keeper.went(acks)
            self._acks = []
