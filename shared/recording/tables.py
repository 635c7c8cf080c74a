"""The tables that every recorded log has: `recorded`, `messages`, `volumes`."""

from collections.abc import Callable
from functools import partial

import attrs
import pyarrow as pa

from shared.recording.blocks import NAMESPACE
from shared.recording.rows import Codec, Rows
from shared.tables.table import RECORDED, LogTable, recorded_schema, schema_of, volumes_schema
from shared.tables.volumes import added_up, volumes_table

MESSAGES = "messages"
Decode = Callable[[Rows], pa.RecordBatch]

MESSAGES_SCHEMA = schema_of("log", "offset", "time", "protocol", "name", "key", "source", "bytes", "fault")
"""As `recorded`, with the payload's bytes counted instead of copied."""


@attrs.frozen
class RecordedLog:
    """A protocol's recorded log and what its blocks hold."""

    protocol: str
    codec: Codec

    def rows(self, batch: pa.RecordBatch) -> Rows:
        return Rows(batch, self.protocol, self.codec)

    def table(self, name: str, summary: str, schema: pa.Schema, decode: Decode | None = None) -> LogTable:
        """A table of the log. `decode` is applied to its rows; without it their own columns are the table."""
        decoded = decode or partial(columns_of, schema=schema)
        return LogTable(
            name,
            summary,
            namespace=NAMESPACE,
            logs=self.protocol,
            schema=schema,
            decode=lambda batch: decoded(self.rows(batch)),
        )

    def tables(self) -> tuple[LogTable, ...]:
        """The tables that each recorded log offers."""
        return (
            self.table(
                RECORDED,
                "every message that passed through: when, to which name and key, from whom, and itself",
                recorded_schema(),
            ),
            self.table(MESSAGES, "the same with sizes instead of payloads", MESSAGES_SCHEMA),
            volumes_table(
                "what passed through: messages and bytes by name, key and second",
                *(NAMESPACE, self.protocol),
                decode=lambda batch: added_up(columns_of(self.rows(batch), volumes_schema())),
            ),
        )


def columns_of(rows: Rows, schema: pa.Schema, **own: pa.Array) -> pa.RecordBatch:
    """The columns of a schema: those given, the others from `rows`, by their names."""
    columns = [own[name] if name in own else getattr(rows, name)() for name in schema.names]
    return pa.RecordBatch.from_arrays(columns, schema=schema)
