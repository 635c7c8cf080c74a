"""How far groups have come, from the records of their table (`groups.py`)."""

import pyarrow as pa

from logmq.logs import NAMESPACE
from shared.storage.changes import change
from shared.tables.table import places_schema

_NUMBER_BYTES = 8


def places(batch: pa.RecordBatch) -> pa.RecordBatch:
    """A row a commit, or end of one. One by one: these are few."""
    rows = []
    for record in batch.select(["topic", "offset", "timestamp", "value"]).to_pylist():
        row = {"log": record["topic"], "offset": record["offset"], "time": record["timestamp"]}
        found = change(record["value"])
        if found is not None and len(found.key) == _NUMBER_BYTES:
            continue  # a topic's end
        ended = found is not None and found.value is None
        if (
            found is None
            or len(found.key) <= _NUMBER_BYTES
            or not (ended or len(found.value or b"") == _NUMBER_BYTES)
        ):
            rows.append(row | {"fault": "it is no commit"})
            continue
        rows.append(
            row
            | {
                "protocol": "logmq",
                "reader": found.key[_NUMBER_BYTES:].decode(errors="backslashreplace"),
                "read_namespace": NAMESPACE,
                "log_id": _signed(found.key[:_NUMBER_BYTES]),
                "position": None if ended else _signed(found.value or b""),
                "ended": ended,
            }
        )
    return pa.RecordBatch.from_pylist(rows, schema=places_schema())


def _signed(number: bytes) -> int:
    """Ids and offsets are below 2^63; what is not is a number all the same, and nobody's."""
    return int.from_bytes(number, "big", signed=True)
