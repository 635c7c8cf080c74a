"""Reading the records of an Arrow batch with numpy: all of them at once, from the batch's own memory."""

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Numbers = NDArray[np.int64]
    Bytes = NDArray[np.uint8]

TIME_MS_MAX = 253_402_300_799_999
"""The end of the year 9999, the latest time of Spark and Python."""


def memory_of(batch: pa.RecordBatch) -> "tuple[memoryview, Numbers]":
    """The memory of the column `value`, and where each record begins in it, plus the end of the last."""
    value = batch.column("value")
    _, offsets, data = value.buffers()
    bounds = np.frombuffer(offsets, np.int32)[value.offset : value.offset + len(value) + 1]
    return memoryview(data if data is not None else b""), bounds.astype(np.int64)


def unsigned(data: "Bytes", at: "Numbers", size: int) -> "Numbers":
    """Big-endian numbers of `size` bytes at these places; numbers from 2^63 on come out negative."""
    found = np.zeros(len(at), np.int64)
    for byte in range(size):
        found = (found << 8) | data[at + byte]
    return found


def counted(counts: "Numbers") -> "Numbers":
    """0 up to each count, one after the other: which entry of its group each is."""
    return np.arange(int(counts.sum())) - np.repeat(np.cumsum(counts) - counts, counts)
