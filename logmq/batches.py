"""Which batches writers have written, from the records of their table (`writers.py`)."""

import pyarrow as pa

from logmq.logs import NAMESPACE
from shared.storage.changes import change
from shared.tables.table import schema_of

_NUMBER_BYTES = 8
_SLOT_BYTES = 2


def writers_schema() -> pa.Schema:
    """Of the table `writers`.

    `writer` wrote the batch `seq` to the log with the id `log_id` at the offset `position`. `ended`: that is
    not remembered any more.
    """
    return schema_of(
        *("log", "offset", "time", "protocol"),
        ("writer", pa.string()),
        ("log_id", pa.int64()),
        ("seq", pa.int64()),
        ("position", pa.int64()),
        ("ended", pa.bool_()),
        "fault",
    )


def writers(batch: pa.RecordBatch) -> pa.RecordBatch:
    """A row a batch, or end of what is remembered of one."""
    rows = []
    for record in batch.select(["topic", "offset", "timestamp", "value"]).to_pylist():
        row = {"log": record["topic"], "offset": record["offset"], "time": record["timestamp"]}
        found = change(record["value"])
        value = None if found is None else found.value
        if (
            found is None
            or len(found.key) <= _NUMBER_BYTES + _SLOT_BYTES
            or not (value is None or len(value) == 2 * _NUMBER_BYTES)
        ):
            rows.append(row | {"fault": "it is no writer's batch"})
            continue
        rows.append(
            row
            | {
                "protocol": NAMESPACE,
                "writer": found.key[_NUMBER_BYTES:-_SLOT_BYTES].decode(errors="backslashreplace"),
                "log_id": _number(found.key[:_NUMBER_BYTES]),
                "seq": None if value is None else _number(value[:_NUMBER_BYTES]),
                "position": None if value is None else _number(value[_NUMBER_BYTES:]),
                "ended": value is None,
            }
        )
    return pa.RecordBatch.from_pylist(rows, schema=writers_schema())


def _number(data: bytes) -> int:
    """What is not below 2^63, as all of them are, is a number all the same."""
    return int.from_bytes(data, "big", signed=True)
