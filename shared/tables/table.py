"""The contract between a protocol and the pipeline: the rows that the records of its logs are.

A `Plugin` names them lazily (`tables="pubsub.tables:TABLES"`, a sequence of `LogTable`), so the pipeline
finds every protocol's by entry point and knows none by name. A job asks for a table by its name or for the
columns that it needs, never for a protocol.

Decoding is over Arrow batches: a function from one batch to another that keeps nothing between two, so Spark
may run it anywhere and again. It never raises over what stands in a log: what cannot be read is a row that
says so in `fault`, all other columns but its place null, and so is counted like any other row.

Columns of these names mean the same in every table; a table has those that it needs:

| column | type | |
|---|---|---|
| `log` | string | the log that the record stood in |
| `offset` | int64 | and where |
| `time` | timestamp[us, UTC] | when the broker had the message |
| `protocol` | string | |
| `name` | string | what a message was sent to: a topic, queue, exchange |
| `key` | string | what beside the name says where it goes or what it is; null where there is no such thing |
| `source` | string | who sent it, as `address:port`; null where that is not known |
| `payload` | binary | the message itself |
| `messages`, `bytes` | int64 | how many, and the bytes of their payloads |
| `fault` | string | null, or why this row could not be read |

Names that are no UTF-8 are shown with the bytes that are wrong as `\\xNN`.

This module is part of what every command loads: `pyarrow` is imported where it is used.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any

import attrs

from shared.errors import BrokerError

if TYPE_CHECKING:
    import pyarrow as pa

    from shared.plugin import Plugin

RECORDED = "recorded"
"""The table of every recorded log: its six fields, a row a message."""
VOLUMES = "volumes"
"""The table that every protocol should have: how much went to which name when."""
LIVES = "lives"
"""The table of a protocol that keeps messages until they are acknowledged: a row a message, its times."""
PLACES = "places"
"""The table of who reads, and how far each has come; a row a change, of which the newest counts."""
KEPT = "kept"
"""The table of what is kept for readers that are away."""
RECORDS = "records"
"""The table of a protocol whose records are just what was produced: there is nothing to take apart."""
PAYLOAD = "payload"
"""The column of a message itself."""
VALUE = "value"
"""The column (float64) of what was measured, in tables of readings."""


@attrs.frozen
class LogTable:
    """What the records of some logs are as rows of typed columns.

    `namespace`, `logs`: whose records, by the folder's name and a regular expression that matches whole names
    of logs. `decode`: from a batch of `records_schema` to one of `schema`, rows in the records' order; see
    above for what it may not do. `measure`: where a log's index tells enough, the same from a batch of
    `entries_schema`; records are then not read.

    `gather`: where several rows make one (the events of a message's life), from the Spark DataFrame of all
    decoded rows to that of the table; its columns are then what it says, and `schema` those of the rows that
    it starts from. `fold`: the same rows without Spark, from batches of decoded rows that come in each log's
    order. A table has both or neither. It raises `TooMany` for more than it can hold.
    """

    name: str
    summary: str
    namespace: str
    logs: str
    schema: "pa.Schema"
    decode: "Callable[[pa.RecordBatch], pa.RecordBatch]"
    measure: "Callable[[pa.RecordBatch], pa.RecordBatch] | None" = None
    gather: Callable[[Any], Any] | None = None
    fold: "Callable[[Iterable[pa.RecordBatch]], pa.Table] | None" = None


class TooMany(BrokerError):
    """More rows than one process should hold: an answer for Spark."""


def tables_of(plugin: "Plugin") -> Sequence[LogTable]:
    """A protocol's tables, loaded now; none where it has none. Raises ImportError, AttributeError."""
    found: Sequence[LogTable] = () if plugin.tables is None else resolve_name(plugin.tables)
    return found


def schema_of(*columns: "str | tuple[str, pa.DataType]") -> "pa.Schema":
    """These columns, in this order: those listed above by name alone, a table's own with their types."""
    import pyarrow as pa

    text, number = pa.string(), pa.int64()
    types = {
        **dict.fromkeys(("log", "protocol", "name", "key", "source", "fault"), text),
        **dict.fromkeys(("offset", "messages", "bytes"), number),
        "time": time_type(),
        "payload": pa.binary(),
    }
    return pa.schema([(each, types[each]) if isinstance(each, str) else each for each in columns])


def records_schema() -> "pa.Schema":
    """What the source gives and `decode` takes: one row a record, `timestamp` from the log's index."""
    import pyarrow as pa

    return schema_of(("topic", pa.string()), "offset", ("timestamp", time_type()), ("value", pa.binary()))


def entries_schema() -> "pa.Schema":
    """What the source gives of logs' indexes and `measure` takes: so many records of a log, and the bytes of
    their payloads, from `offset` on; `timestamp` as of each of the records."""
    import pyarrow as pa

    return schema_of(("topic", pa.string()), "offset", ("timestamp", time_type()), "messages", "bytes")


def recorded_schema() -> "pa.Schema":
    """The schema of the table `recorded`."""
    return schema_of("log", "offset", "time", "protocol", "name", "key", "source", "payload", "fault")


def volumes_schema() -> "pa.Schema":
    """Of the table `volumes`: added up as far as one batch allows, so rows of the same name and time may come
    again and are to be summed."""
    return schema_of("log", "time", "protocol", "name", "key", "messages", "bytes", "fault")


def places_schema() -> "pa.Schema":
    """Of the table `places`.

    `reader`: a group, a session. What it reads is the log with the id `log_id` (with its namespace
    `read_namespace`) up to the offset `position`, or whatever `name` says, where it has no place of its own.
    `ended`: it does so no more.
    """
    import pyarrow as pa

    return schema_of(
        *("log", "offset", "time", "protocol"),
        ("reader", pa.string()),
        "name",
        ("read_namespace", pa.string()),
        ("log_id", pa.int64()),
        ("position", pa.int64()),
        ("ended", pa.bool_()),
        "fault",
    )


def kept_schema() -> "pa.Schema":
    """Of the table `kept`: so many messages, and bytes, wait for `reader`."""
    import pyarrow as pa

    reader = "reader", pa.string()
    return schema_of("log", "offset", "time", "protocol", reader, "messages", "bytes", "fault")


def rows_of(
    batch: "pa.RecordBatch",
    schema: "pa.Schema",
    protocol: str,
    fault: str,
    columns_of: Callable[[bytes], Mapping[str, Any] | None],
) -> "pa.RecordBatch":
    """A row for each record, one by one: for logs of few records.

    `columns_of` makes the row's own columns of a payload. None: it cannot be read, and the row says `fault`.
    Empty: it has no row.
    """
    import pyarrow as pa

    rows: list[dict[str, Any]] = []
    for record in batch.select(["topic", "offset", "timestamp", "value"]).to_pylist():
        columns = columns_of(record["value"])
        if columns is None or columns:
            row = {"log": record["topic"], "offset": record["offset"], "time": record["timestamp"]}
            rows.append(row | ({"fault": fault} if columns is None else {"protocol": protocol, **columns}))
    return pa.RecordBatch.from_pylist(rows, schema=schema)


def time_type() -> "pa.DataType":
    """The type of each time: as Spark has it."""
    import pyarrow as pa

    return pa.timestamp("us", tz="UTC")
