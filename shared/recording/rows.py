"""From blocks to rows: decoding a batch of a recorded log's records with vectors.

A protocol's `Codec` finds the frames in a block, and the fields in each. It reports *runs*: consecutive
frames of one shape at equal distances. Repetition is found by comparing columns of many frames at once
(`equal_rows`). So there is a step per run, not per message; a frame unlike its neighbours is a run of one.
The runs of a batch become arrays of positions. A column is gathered from the batch's own memory at once. An
Arrow array is laid over it with the positions as offsets, and every second entry is taken.

Nothing in a log raises. What cannot be read is a fault: a row of its own, after the rows of its block that
could be read.
"""

from array import array
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import attrs
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from shared.recording import blocks
from shared.recording.blocks import GAP, GAP_BYTES, BadBlock, Block
from shared.tables.table import time_type
from shared.tables.vectors import TIME_MS_MAX, counted, memory_of

if TYPE_CHECKING:
    from shared.tables.vectors import Bytes, Numbers

Raw = bytes
"""Where a method has that name."""
NOWHERE = -1
"""The size of a field that frames do not have. A name or source then comes from the block; a key is null."""
NOT_RECORDED = "not recorded"
"""The fault of a gap."""
NO_FIELD = (0, NOWHERE)
_RUN = ("at", "stride", "messages")
_FIELDS = ("name", "key", "source", "payload")
_NUMBERS = len(_RUN) + 2 * len(_FIELDS)


class Runs:
    """What codecs find in blocks.

    `add(run)`: a run, eleven numbers: where its first frame begins, the distance of frames, their number;
    then name, key, source and payload, each as (offset in the frame, bytes). `add_all`: rows of these.
    `messages`: of all runs; the codec that adds runs counts them.
    """

    __slots__ = ("add", "flat", "messages")

    def __init__(self) -> None:
        self.flat = array("q")
        self.add = self.flat.extend
        self.messages = 0

    def add_all(self, runs: "Numbers") -> None:
        self.flat.frombytes(runs.tobytes())


Walk = Callable[["Bytes", bytes, int, Block, Runs], str | None]
"""Adds a block's frames to the runs. It gets the batch's memory, the frames, where they begin in the memory,
and the block's head. It returns the fault of the first frame that it cannot read."""


@attrs.frozen
class Codec:
    """The frames of a protocol's blocks. `numbers`: the codecs' numbers in its blocks (RECORDING.md).

    `ends_at_nul`: fields that end at their first NUL, if any. `key`: turns a key's bytes into text.
    """

    numbers: Sequence[int]
    walk: Walk
    ends_at_nul: frozenset[str] = frozenset()
    key: "Callable[[pa.Array], pa.Array] | None" = None


class _Fault(NamedTuple):
    """Something that cannot be read. `record`: its number in the batch. `messages`, `bytes`: how many are
    missing, or NOWHERE if unknown.
    """

    record: int
    what: str
    messages: int
    bytes: int


class Rows:
    """The rows of a batch. Columns are made when asked for.

    `record`: the record of each row. `good`: which rows are messages; the others are faults, which have no
    entries in `places`.
    """

    def __init__(self, batch: pa.RecordBatch, protocol: str, codec: Codec) -> None:
        self._batch = batch
        self._protocol, self._own = protocol, protocol.encode()
        self._memory, bounds = memory_of(batch)
        self._buffer = pa.py_buffer(self._memory)
        self.data: Bytes = np.frombuffer(self._memory, np.uint8)
        self._heads: list[Block | None] = []
        self._faults: list[_Fault] = []
        self._codec = codec
        runs = Runs()
        done = 0
        sizes = []
        for number, (at, end) in enumerate(zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True)):
            self._read(number, at, end, runs)
            sizes.append(runs.messages - done)
            done = runs.messages
        self._place(np.frombuffer(runs.flat, np.int64).reshape(-1, _NUMBERS), sizes)

    # -- decoding blocks

    def _read(self, number: int, at: int, end: int, runs: Runs) -> None:
        payload = bytes(self._memory[at:end])
        try:
            head = blocks.unpack(payload)
            self._check(head)
        except BadBlock as bad:
            self._heads.append(None)
            self._fault(number, str(bad))
            return
        self._heads.append(head)
        frames = payload[head.frames_at :]
        if head.codec == GAP:
            self._gap(number, head, frames)
            return
        before = runs.messages
        wrong = self._codec.walk(self.data, frames, at + head.frames_at, head, runs)
        found = runs.messages - before
        if wrong is None and found != head.messages:
            wrong = f"{found} messages where its head says {head.messages}"
        if wrong is not None:
            self._fault(number, wrong)

    def _check(self, head: Block) -> None:
        """Raises BadBlock for a block that this protocol does not write."""
        if head.protocol != self._own:
            raise BadBlock(f"it is of the protocol {head.protocol.decode(errors='backslashreplace')}")
        if head.time_us // 1000 > TIME_MS_MAX:
            raise BadBlock("its time")
        if head.codec != GAP and head.codec not in self._codec.numbers:
            raise BadBlock(f"codec {head.codec}")

    def _gap(self, number: int, head: Block, frames: Raw) -> None:
        if len(frames) != GAP_BYTES.size:
            self._fault(number, "a gap of another length")
            return
        (size,) = GAP_BYTES.unpack(frames)
        self._fault(number, NOT_RECORDED, head.messages, min(size, np.iinfo(np.int64).max))

    def _fault(self, number: int, what: str, messages: int = NOWHERE, size: int = NOWHERE) -> None:
        self._faults.append(_Fault(number, what, messages, size))

    def _place(self, runs: "Numbers", sizes: Sequence[int]) -> None:
        """The positions of every message's fields, from runs."""
        times = runs[:, 2]
        which = np.repeat(np.arange(len(runs)), times)
        begins = runs[which, 0] + runs[which, 1] * counted(times)
        self.places: dict[str, tuple[Numbers, Numbers]] = {}
        for number, field in enumerate(_FIELDS):
            column = len(_RUN) + 2 * number
            self.places[field] = begins + runs[which, column], runs[which, column + 1]
        self._message_record = np.repeat(np.arange(len(sizes)), sizes)
        of_faults = np.array([fault.record for fault in self._faults], np.int64)
        record = np.concatenate([self._message_record, of_faults])
        # Rows by record, faults last; `_order` picks from messages followed by faults.
        self._order: Numbers = np.argsort(record, kind="stable")
        self.record: Numbers = record[self._order]
        self.good = self._order < len(self._message_record)

    # -- columns

    def __len__(self) -> int:
        return len(self.record)

    def log(self) -> pa.Array:
        return self._batch.column("topic").take(pa.array(self.record))

    def offset(self) -> pa.Array:
        return self._batch.column("offset").take(pa.array(self.record))

    def time(self) -> pa.Array:
        """The block's own time; the record's if its head cannot be read."""
        own = pa.array([None if head is None else head.time_us for head in self._heads], pa.int64())
        times = pc.coalesce(own.cast(time_type()), self._batch.column("timestamp"))
        return times.take(pa.array(self.record))

    def protocol(self) -> pa.Array:
        return pa.array([self._protocol], pa.string()).take(pa.array(np.zeros(len(self), np.int64)))

    def name(self) -> pa.Array:
        return self._field("name", lambda head: head.name)

    def source(self) -> pa.Array:
        """Null if unknown."""
        return self._field("source", lambda head: head.source or None)

    def key(self) -> pa.Array:
        shown = self._codec.key or texts
        _, size = self.places["key"]
        if (size == NOWHERE).all():
            return pa.nulls(len(self), pa.string())
        return self.of_messages(shown(self._gathered("key")))

    def payload(self) -> pa.Array:
        return self.of_messages(self._gathered("payload"))

    def bytes(self) -> pa.Array:
        """Bytes of the payload; of a gap, all that was left out; null for other faults."""
        return self._numbers(self.places["payload"][1], [fault.bytes for fault in self._faults])

    def messages(self) -> pa.Array:
        """1; of a gap, the number left out; null for other faults."""
        ones = np.ones(len(self._message_record), np.int64)
        return self._numbers(ones, [fault.messages for fault in self._faults])

    def fault(self) -> pa.Array:
        faults = pa.array([None, *(fault.what for fault in self._faults)], pa.string())
        of = np.where(self.good, 0, self._order - len(self._message_record) + 1)
        return faults.take(pa.array(of))

    # -- making columns

    def _field(self, field: str, of_block: Callable[[Block], Raw | None]) -> pa.Array:
        """A field's column: from the frames if they have it, else from the head of their block."""
        heads = [None if head is None else of_block(head) for head in self._heads]
        named = texts(pa.array(heads, pa.binary())).take(pa.array(self._message_record))
        _, size = self.places[field]
        if not (size == NOWHERE).all():
            own = texts(self._gathered(field))
            named = pc.if_else(pa.array(size != NOWHERE), own, named)
        return self.of_messages(named)

    def _gathered(self, field: str) -> pa.Array:
        at, size = self.places[field]
        size = np.maximum(size, 0)
        if field in self._codec.ends_at_nul:
            size = self.to_nul(at, size)
        return self.gather(at, size)

    def to_nul(self, at: "Numbers", size: "Numbers") -> "Numbers":
        """The sizes up to the first NUL of each."""
        nul = pc.find_substring(self.gather(at, size), pattern=b"\0").to_numpy(zero_copy_only=False)
        return np.where(nul >= 0, nul, size)

    def gather(self, at: "Numbers", size: "Numbers") -> pa.Array:
        """The bytes at these places, which go up."""
        if not len(at):
            return pa.array([], pa.binary())
        bounds = np.empty(2 * len(at), np.int32)
        bounds[0::2] = at
        bounds[1::2] = at + size
        laid = pa.Array.from_buffers(pa.binary(), len(bounds) - 1, [None, pa.py_buffer(bounds), self._buffer])
        return laid.take(pa.array(np.arange(0, len(bounds), 2)))

    def of_messages(self, column: pa.Array) -> pa.Array:
        """Turn a column with an entry for each message into one with an entry for each row."""
        if not self._faults:
            return column
        return column.take(pa.array(self._order, mask=~self.good))

    def _numbers(self, of_messages: "Numbers", of_faults: Sequence[int]) -> pa.Array:
        values = np.concatenate([of_messages, np.array(of_faults, np.int64)])[self._order]
        return pa.array(values, pa.int64(), mask=values == NOWHERE)


# -- for codecs and tables


FEW = 32
"""Where `equal_rows` finds fewer it has cost as much as reading these one by one."""
TRY_AGAIN = 64
"""After so little luck, that many frames are read one by one before it is asked again."""


def texts(raw: pa.Array) -> pa.Array:
    """Bytes as text; what is no UTF-8 as `\\xNN`."""
    try:
        return raw.cast(pa.string())
    except pa.ArrowInvalid:
        encoded = raw.dictionary_encode()
        shown = [each.as_py().decode(errors="backslashreplace") for each in encoded.dictionary]
        return pa.array(shown, pa.string()).take(encoded.indices)
