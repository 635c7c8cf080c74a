"""The contract between a protocol and the pipeline: how records of its logs become rows.

A `Plugin` names them lazily (`tables="pubsub.tables:TABLES"`, a sequence of `LogTable`), so the pipeline
finds every protocol's by entry point and knows none by name. A job asks for a table by its name or for the
columns that it needs, never for a protocol.

Decoding maps one Arrow batch to another and keeps no state, so Spark may run it anywhere and repeat it. It
never raises for the content of a log. A record that cannot be read becomes a row, so it is counted like any
other. The reason is in `fault`, and all columns but its place are null.

These columns mean the same in every table; a table has those that it needs:

| column | type | |
|---|---|---|
| `log` | string | the log of the record |
| `offset` | int64 | the record's offset in it |
| `time` | timestamp[us, UTC] | when the broker had the message |
| `protocol` | string | |
| `name` | string | the topic, queue or exchange that a message was sent to |
| `key` | string | what routes or types the message beside its name; null where there is none |
| `source` | string | the sender as `address:port`; null where that is not known |
| `payload` | binary | the message's body |
| `messages`, `bytes` | int64 | how many messages, and the bytes of their payloads |
| `fault` | string | null, or why this row could not be read |

In names that are not UTF-8, the wrong bytes are shown as `\\xNN`.

Every command loads this module, so `pyarrow` is imported only where it is used.
"""

from collections.abc import Callable, Mapping, Sequence
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any

import attrs

if TYPE_CHECKING:
    import pyarrow as pa

    from shared.plugin import Plugin

RECORDED = "recorded"
"""The table of every recorded log: its six fields, a row a message."""
VOLUMES = "volumes"
"""The table that every protocol should have: messages and bytes by name and second."""
LIVES = "lives"
"""The table of protocols that keep messages until acknowledged: a row a message, with its times."""
PLACES = "places"
"""The table of readers and their positions; a row a change, of which the newest counts."""
KEPT = "kept"
"""The table of messages that are kept for absent readers."""
RECORDS = "records"
"""The table of protocols whose records are the produced messages as they are."""
PAYLOAD = "payload"
"""The column of message bodies."""
VALUE = "value"
"""The column (float64) of measured values, in tables of readings."""


@attrs.frozen
class LogTable:
    """A table: the records of some logs as rows of typed columns.

    `namespace`, `logs`: which logs, by the folder's name and a regular expression for the log's whole name.
    `decode`: maps a batch of `records_schema` to one of `schema`, rows in the records' order, under the rules
    above. `measure`: the same from a batch of `entries_schema`, where the log's index suffices; the records
    are then not read.

    `gather`: for tables in which several decoded rows make one, such as the events of a message's life. It is
    a query in Spark's SQL, in which `{decoded}` stands for the decoded rows (`schema`).
    """

    name: str
    summary: str
    namespace: str
    logs: str
    schema: "pa.Schema"
    decode: "Callable[[pa.RecordBatch], pa.RecordBatch]"
    measure: "Callable[[pa.RecordBatch], pa.RecordBatch] | None" = None
    gather: str | None = None


def tables_of(plugin: "Plugin") -> Sequence[LogTable]:
    """Load a protocol's tables; empty where it has none. Raises ImportError, AttributeError."""
    found: Sequence[LogTable] = () if plugin.tables is None else resolve_name(plugin.tables)
    return found


def schema_of(*columns: "str | tuple[str, pa.DataType]") -> "pa.Schema":
    """A schema of these columns in this order: those listed above by name, a table's own with their types."""
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
    """The batches that `decode` takes: one row a record, `timestamp` from the log's index."""
    import pyarrow as pa

    return schema_of(("topic", pa.string()), "offset", ("timestamp", time_type()), ("value", pa.binary()))


def entries_schema() -> "pa.Schema":
    """The batches that `measure` takes, one row an index entry. A row has the number of `messages` of a log
    from `offset` on, their `bytes`, and the `timestamp` that they share."""
    import pyarrow as pa

    return schema_of(("topic", pa.string()), "offset", ("timestamp", time_type()), "messages", "bytes")


def recorded_schema() -> "pa.Schema":
    """The schema of the table `recorded`."""
    return schema_of("log", "offset", "time", "protocol", "name", "key", "source", "payload", "fault")


def volumes_schema() -> "pa.Schema":
    """The schema of the table `volumes`. Sums cover one batch, so rows of the same name and time may repeat
    and are to be added up."""
    return schema_of("log", "time", "protocol", "name", "key", "messages", "bytes", "fault")


def places_schema() -> "pa.Schema":
    """The schema of the table `places`.

    `reader`: a group or session. It has read the log `log_id` (in the namespace `read_namespace`) up to the
    offset `position`; a reader without a position reads `name`. `ended`: it reads no more.
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
    """The schema of the table `kept`: the messages and bytes that wait for `reader`."""
    import pyarrow as pa

    reader = "reader", pa.string()
    return schema_of("log", "offset", "time", "protocol", reader, "messages", "bytes", "fault")


def rows_of(
    batch: "pa.RecordBatch",
    schema: "pa.Schema",
    protocol: str,
    fault: str,
    columns_of: Callable[[bytes], Mapping[str, Any] | Sequence[Mapping[str, Any]] | None],
) -> "pa.RecordBatch":
    """Decode records one by one, a row each: for logs of few records.

    `columns_of` makes the row's own columns from a payload, or those of several rows. None: it cannot be
    read, and the row gets a `fault`. Empty: the record has no row.
    """
    import pyarrow as pa

    rows: list[dict[str, Any]] = []
    for record in batch.select(["topic", "offset", "timestamp", "value"]).to_pylist():
        columns = columns_of(record["value"])
        row = {"log": record["topic"], "offset": record["offset"], "time": record["timestamp"]}
        if columns is None:
            rows.append({**row, "fault": fault})
        elif columns:
            each = [columns] if isinstance(columns, Mapping) else columns
            rows += [{**row, "protocol": protocol, **own} for own in each]
    return pa.RecordBatch.from_pylist(rows, schema=schema)


def time_type() -> "pa.DataType":
    """The type of all times: Spark's."""
    import pyarrow as pa

    return pa.timestamp("us", tz="UTC")
