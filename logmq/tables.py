"""LogMQ's records as rows: messages, volumes by topic and time, groups' commits, writers' batches.

What is inside a message, only its users know.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from logmq.settings import GROUPS, NAMESPACE, TABLES_NAMESPACE, WRITERS
from shared.storage.format import table_change
from shared.tables.table import PLACES, RECORDS, LogTable, places_schema, rows_of, schema_of
from shared.tables.volumes import added_up, volumes_table

RECORDS_SCHEMA = schema_of("log", "offset", "time", "protocol", "name", "payload", "fault")
WRITERS_SCHEMA = schema_of(
    *("log", "offset", "time", "protocol"),
    ("writer", pa.string()),
    ("log_id", pa.int64()),
    ("seq", pa.int64()),
    ("position", pa.int64()),
    ("ended", pa.bool_()),
    "fault",
)
"""`writer` wrote the batch `seq` to the log with the id `log_id`, at the offset `position`. Its user stands
before it where that is not anonymous: `ann/w`. `ended`: it is no longer remembered."""

_NUMBER_BYTES = 8
_SLOT_BYTES = 2


def volumes(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Records and their bytes, without length fields, by topic and second."""
    return _volumes(batch, bytes=pc.binary_length(batch.column("value")).cast(pa.int64()))


def measured(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The volumes of index entries."""
    return _volumes(batch, messages=batch.column("messages"), bytes=batch.column("bytes"))


def _volumes(batch: pa.RecordBatch, **sums: pa.Array) -> pa.RecordBatch:
    topic = batch.column("topic")
    protocol = pa.array([NAMESPACE] * batch.num_rows, pa.string())
    columns = {"log": topic, "time": batch.column("timestamp"), "protocol": protocol, "name": topic}
    return added_up(pa.RecordBatch.from_pydict(columns | sums))


def records(batch: pa.RecordBatch) -> pa.RecordBatch:
    """A row a message, as it was produced."""
    topic = batch.column("topic")
    return pa.RecordBatch.from_pydict(
        {
            "log": topic,
            "offset": batch.column("offset"),
            "time": batch.column("timestamp"),
            "protocol": pa.array([NAMESPACE] * batch.num_rows, pa.string()),
            "name": topic,
            "payload": batch.column("value"),
            "fault": pa.nulls(batch.num_rows, pa.string()),
        },
        schema=RECORDS_SCHEMA,
    )


def commits(batch: pa.RecordBatch) -> pa.RecordBatch:
    """A row for each commit, or deletion of one (`groups.py`)."""
    return rows_of(batch, places_schema(), NAMESPACE, "it is no commit", _commit)


def _commit(payload: bytes) -> Mapping[str, Any] | None:
    found = table_change(payload)
    if found is None or len(found.key) < _NUMBER_BYTES:
        return None
    if len(found.key) == _NUMBER_BYTES:  # the tombstone of a topic
        return {}
    value = found.value
    if value is not None and len(value) != _NUMBER_BYTES:
        return None
    return {
        "reader": found.key[_NUMBER_BYTES:].decode(errors="backslashreplace"),
        "read_namespace": NAMESPACE,
        "log_id": _number(found.key[:_NUMBER_BYTES]),
        "position": None if value is None else _number(value),
        "ended": value is None,
    }


def writers(batch: pa.RecordBatch) -> pa.RecordBatch:
    """A row for each batch, or for its being forgotten (`writers.py`)."""
    return rows_of(batch, WRITERS_SCHEMA, NAMESPACE, "it is no writer's batch", _batch)


def _batch(payload: bytes) -> Mapping[str, Any] | None:
    found = table_change(payload)
    if found is None or len(found.key) <= _NUMBER_BYTES + _SLOT_BYTES:
        return None
    value = found.value
    if value is not None and len(value) != 2 * _NUMBER_BYTES:
        return None
    return {
        "writer": found.key[_NUMBER_BYTES:-_SLOT_BYTES].decode(errors="backslashreplace"),
        "log_id": _number(found.key[:_NUMBER_BYTES]),
        "seq": None if value is None else _number(value[:_NUMBER_BYTES]),
        "position": None if value is None else _number(value[_NUMBER_BYTES:]),
        "ended": value is None,
    }


def _number(data: bytes) -> int:
    """Ids, seqs and offsets are below 2^63. A higher number is damage, and matches nothing."""
    return int.from_bytes(data, "big", signed=True)


TABLES: Sequence[LogTable] = (
    LogTable(
        RECORDS,
        "what was produced: a row a message",
        namespace=NAMESPACE,
        logs=".*",
        schema=RECORDS_SCHEMA,
        decode=records,
    ),
    volumes_table(
        *("what was produced: records and bytes by topic and second", NAMESPACE, ".*"), volumes, measured
    ),
    LogTable(
        PLACES,
        "what groups committed: a row a commit",
        namespace=TABLES_NAMESPACE,
        logs=GROUPS,
        schema=places_schema(),
        decode=commits,
    ),
    LogTable(
        "writers",
        "what BATCH writers wrote: a row a batch",
        namespace=TABLES_NAMESPACE,
        logs=WRITERS,
        schema=WRITERS_SCHEMA,
        decode=writers,
    ),
)
