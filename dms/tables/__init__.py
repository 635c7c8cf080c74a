"""The records of queues' logs as rows: events, with or without bodies; lifecycles; volumes."""

import struct
from collections.abc import Iterator, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from dms import records
from dms.settings import NAMESPACE
from dms.tables import events
from dms.tables.lifecycles import LIFECYCLES
from shared.tables.table import LIVES, PAYLOAD, LogTable
from shared.tables.volumes import added_up, volumes_table

EVENTS = "events"
CONTENTS = "contents"
CONTENTS_SCHEMA = pa.schema([*events.SCHEMA, (PAYLOAD, pa.binary())])


def contents(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The events; those with a size have the body of their message."""
    happened = events.events(batch)
    bodies = {
        offset: _bodies(value)
        for offset, value in zip(
            batch.column("offset").to_pylist(), batch.column("value").to_pylist(), strict=True
        )
    }
    sized = zip(happened.column("offset").to_pylist(), happened.column("bytes").to_pylist(), strict=True)
    found = [None if size is None else next(bodies[offset], None) for offset, size in sized]
    return pa.RecordBatch.from_arrays(
        [*happened.columns, pa.array(found, pa.binary())], schema=CONTENTS_SCHEMA
    )


def _bodies(value: bytes) -> Iterator[bytes]:
    """The bodies of a record's messages, in order; none of a record that cannot be read."""
    data = len(value).to_bytes(4, "big") + value
    try:
        (record,) = records.unpack(data)
        if record.kind in (records.RecordKind.ENQUEUED, records.RecordKind.LETTERS):
            return iter(records.messages_in(data, record))
        if record.kind in (records.RecordKind.KEPT, records.RecordKind.JOBS):
            return iter([kept.body for kept in records.kept_in(data, record)])
    except (records.NotOurs, ValueError, KeyError, TypeError, struct.error, RecursionError):
        pass
    return iter(())


def volumes(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Messages that were produced, and records that cannot be read."""
    happened = events.events(batch)
    produced = pc.equal(happened.column("event"), events.PRODUCED).fill_null(False)
    return added_up(happened.filter(pc.or_(produced, happened.column("fault").is_valid())))


TABLES: Sequence[LogTable] = (
    LogTable(
        EVENTS,
        "what happened to messages: a row for each that came, and for each run of them later",
        namespace=NAMESPACE,
        logs=".*",
        schema=events.SCHEMA,
        decode=events.events,
    ),
    LogTable(
        CONTENTS,
        "the same, each message that came with its body",
        namespace=NAMESPACE,
        logs=".*",
        schema=CONTENTS_SCHEMA,
        decode=contents,
    ),
    LogTable(
        LIVES,
        "a row for each message: when it came, was delivered, returned and left, how, and how long that took",
        namespace=NAMESPACE,
        logs=".*",
        schema=events.SCHEMA,
        decode=events.events,
        gather=LIFECYCLES,
    ),
    volumes_table("what was produced: messages and bytes by queue and second", NAMESPACE, ".*", volumes),
)
