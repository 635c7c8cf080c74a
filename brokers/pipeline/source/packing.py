"""Arrow columns to LogMQ's records: runs of whole records, cut the same way whenever the same rows come.

No Python per record: a column of headers is joined with the column of values, and what comes out is laid in
memory as records lie in a log. The cuts depend on the order and the sizes of the rows alone, not on how Spark
divides them into Arrow batches: a task that runs again makes the same pieces.
"""

from array import array
from bisect import bisect_right
from collections.abc import Iterator
from sys import byteorder
from typing import Any

import attrs
import pyarrow as pa
import pyarrow.compute as pc

_ROWS = 10_000
"""Between two looks at how much is held."""


@attrs.frozen
class PackedRecords:
    """Whole records of one topic, to be written at once."""

    topic: str
    records: bytes = attrs.field(repr=lambda records: f"<{len(records)} bytes>")
    count: int


class Packer:
    """Gathers rows into pieces of at most `bytes_max`, each topic's apart, in the order of the rows.

    `held_bytes_max`: of rows that are held for all topics together. Every so many rows, when there are more,
    the pieces are given out as they are: a thousand topics must not need a thousand full pieces.
    """

    def __init__(self, bytes_max: int, held_bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._held_bytes_max = held_bytes_max
        self._filling: dict[str, _Filling] = {}
        self._rows = 0

    def add(self, topics: pa.Array | str, values: pa.Array) -> Iterator[PackedRecords]:
        """The pieces that these rows complete. `values`: binary or text, without nulls, as are `topics`."""
        at, count = 0, len(values)
        while at < count:
            some = min(_ROWS - self._rows % _ROWS, count - at)
            yield from self._rows_of(
                topics if isinstance(topics, str) else topics.slice(at, some), values.slice(at, some)
            )
            at += some
            self._rows += some
            held = sum(filling.size for filling in self._filling.values())
            if self._rows % _ROWS == 0 and held > self._held_bytes_max:
                yield from self.rest()

    def rest(self) -> Iterator[PackedRecords]:
        """What is left, a piece for each topic."""
        for topic, filling in self._filling.items():
            if filling.size:
                yield filling.close(topic)

    def _rows_of(self, topics: pa.Array | str, values: pa.Array) -> Iterator[PackedRecords]:
        if isinstance(topics, str):
            yield from self._add(topics, values)
            return
        encoded = topics.dictionary_encode()
        order = pc.sort_indices(encoded.indices)  # stable: each topic's rows stay in order
        values = values.take(order)
        names, at = encoded.dictionary.to_pylist(), 0
        for run in pc.value_counts(encoded.indices.take(order)).to_pylist():
            yield from self._add(names[run["values"]], values.slice(at, run["counts"]))
            at += run["counts"]

    def _add(self, topic: str, values: pa.Array) -> Iterator[PackedRecords]:
        filling = self._filling.get(topic)
        if filling is None:
            filling = self._filling[topic] = _Filling()
        records, ends = framed(values)
        at, count = 0, len(values)
        while at < count:
            room = max(self._bytes_max - filling.size, 0)
            fit = bisect_right(ends, ends[at] + room, at, count + 1) - 1
            if fit == at:
                if filling.size:
                    yield filling.close(topic)
                    continue
                fit = at + 1  # one record that is longer than a piece should be
            filling.add(records[ends[at] : ends[fit]], fit - at)
            at = fit


@attrs.define(eq=False)
class _Filling:
    parts: list[memoryview] = attrs.field(factory=list)
    size: int = 0
    count: int = 0

    def add(self, records: memoryview, count: int) -> None:
        self.parts.append(records)
        self.size += len(records)
        self.count += count

    def close(self, topic: str) -> PackedRecords:
        piece = PackedRecords(topic, b"".join(self.parts), self.count)
        self.parts, self.size, self.count = [], 0, 0
        return piece


def framed(values: pa.Array) -> tuple[memoryview, Any]:
    """The rows as records side by side, and where each begins, with the end of the last one."""
    payloads = values.cast(pa.large_binary())
    sizes = pc.binary_length(payloads).cast(pa.uint32())
    words = array("I")
    words.frombytes(memoryview(sizes.buffers()[1])[sizes.offset * 4 : (sizes.offset + len(sizes)) * 4])
    if byteorder == "little":
        words.byteswap()
    headers = pa.FixedSizeBinaryArray.from_buffers(pa.binary(4), len(sizes), [None, pa.py_buffer(words)])
    nothing = pa.scalar(b"", pa.large_binary())
    joined = pc.binary_join_element_wise(headers.cast(pa.large_binary()), payloads, nothing)
    _, ends, data = joined.buffers()
    starts = memoryview(ends).cast("B").cast("q")[joined.offset : joined.offset + len(joined) + 1]
    return memoryview(data).cast("B"), starts
