"""Records as a log has them, turned into Arrow: no Python object is made for a record.

A chunk is bytes of whole records, `[length u32][payload]` one after the other. Where the records begin is
found first; laid over the chunk as one binary array with the boundaries `header, payload, header, payload,
...` every second value is a payload, and Arrow copies those out in one go.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from shared.errors import BrokerError
from shared.storage.format import LENGTH_BYTES, length_at

Starts = npt.NDArray[np.int32]
"""Where each record of a chunk begins, and at last where the chunk ends."""

SCHEMA = pa.schema(
    [
        ("topic", pa.string()),
        ("offset", pa.int64()),
        ("timestamp", pa.timestamp("us", tz="UTC")),
        ("value", pa.binary()),
    ]
)
"""Exactly what Spark makes of the source's columns."""


class NotRecords(BrokerError):
    """The bytes are not so many whole records."""


def starts(chunk: bytes, records: int) -> Starts:
    """Where the records of a chunk begin. Raises NotRecords unless it is exactly `records` whole ones."""
    found = _equal_sized(chunk, records)
    return _walked(chunk, records) if found is None else found


def _equal_sized(chunk: bytes, records: int) -> Starts | None:
    """For records of one size, which every length field proves; None where they are not."""
    if not records or len(chunk) < LENGTH_BYTES:
        return None
    size = LENGTH_BYTES + length_at(chunk, 0)[0]
    if size * records != len(chunk):
        return None
    table = np.frombuffer(chunk, np.uint8).reshape(records, size)[:, :LENGTH_BYTES]
    if not (table == table[0]).all():
        return None
    return np.arange(0, len(chunk) + 1, size, dtype=np.int32)


def _walked(chunk: bytes, records: int) -> Starts:
    end = len(chunk)
    found = [0]
    add, position, stop = found.append, 0, end - LENGTH_BYTES
    while position <= stop:
        position += LENGTH_BYTES + length_at(chunk, position)[0]
        add(position)
    if position != end or len(found) != records + 1:
        raise NotRecords(f"{end} bytes are not {records} whole records")
    return np.array(found, np.int32)


def payloads(chunk: bytes, begins: Starts) -> pa.BinaryArray:
    """The payloads of a chunk's records; those of `begins`, which may be a part of them."""
    records = len(begins) - 1
    bounds = np.empty(2 * records + 1, np.int32)
    bounds[0::2] = begins
    bounds[1::2] = begins[:-1] + LENGTH_BYTES
    laid = pa.Array.from_buffers(pa.binary(), 2 * records, [None, pa.py_buffer(bounds), pa.py_buffer(chunk)])
    return laid.take(pa.array(np.arange(1, 2 * records, 2, dtype=np.int32)))


def rows(
    topic: str, base: int, chunk: bytes, begins: Starts, times_ms: Sequence[int], counts: Sequence[int]
) -> pa.RecordBatch:
    """A chunk's records as rows of `SCHEMA`.

    `base`: the log's offset of the chunk's first byte. `counts` records each have a time of `times_ms`.
    """
    records = len(begins) - 1
    offsets = begins[:-1].astype(np.int64) + base
    times = np.repeat(np.array(times_ms, np.int64) * 1000, np.array(counts, np.int64))
    return pa.RecordBatch.from_arrays(
        [
            pa.repeat(pa.scalar(topic), records),
            pa.array(offsets),
            pa.array(times).cast(pa.timestamp("us", tz="UTC")),
            payloads(chunk, begins),
        ],
        schema=SCHEMA,
    )
