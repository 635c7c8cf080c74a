"""What LogMQ's records are as rows: the messages of topics, how much went to which when, and what it keeps of
groups and writers. What is in a message, its users know."""

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from logmq.batches import writers, writers_schema
from logmq.logs import GROUPS, NAMESPACE, TABLES_NAMESPACE, WRITERS
from logmq.places import places
from shared.tables.table import PLACES, RECORDS, VOLUMES, Table, places_schema, schema_of, volumes_schema
from shared.tables.volumes import added_up, by_minute, per_minute

RECORDS_SCHEMA = schema_of("log", "offset", "time", "protocol", "name", "payload", "fault")


def volumes(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Records and their bytes, lengths left out, by topic and second."""
    return _volumes(batch, bytes=pc.binary_length(batch.column("value")).cast(pa.int64()))


def measured(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The same of index entries."""
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


TABLES: Sequence[Table] = (
    Table(
        RECORDS,
        "what was produced: a row a message",
        namespace=NAMESPACE,
        logs=".*",
        schema=RECORDS_SCHEMA,
        decode=records,
    ),
    Table(
        VOLUMES,
        "what was produced: records and bytes by topic and minute",
        namespace=NAMESPACE,
        logs=".*",
        schema=volumes_schema(),
        decode=volumes,
        measure=measured,
        gather=per_minute,
        fold=by_minute,
    ),
    Table(
        PLACES,
        "what groups committed: a row a commit",
        namespace=TABLES_NAMESPACE,
        logs=GROUPS,
        schema=places_schema(),
        decode=places,
    ),
    Table(
        "writers",
        "what BATCH writers wrote: a row a batch",
        namespace=TABLES_NAMESPACE,
        logs=WRITERS,
        schema=writers_schema(),
        decode=writers,
    ),
)
