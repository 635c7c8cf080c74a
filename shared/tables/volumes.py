"""The table `volumes`, the same for every protocol: messages and bytes by name and second.

Decoding sums one batch, so a million messages reach Spark as a few rows. Rows of the same name and second may
repeat; a query adds them up.
"""

from collections.abc import Callable

import pyarrow as pa
import pyarrow.compute as pc

from shared.tables.table import VOLUMES, LogTable, volumes_schema

_BY = ("log", "time", "protocol", "name", "key", "fault")
_SUMS = ("messages", "bytes")


Decode = Callable[[pa.RecordBatch], pa.RecordBatch]


def volumes_table(
    summary: str, namespace: str, logs: str, decode: Decode, measure: Decode | None = None
) -> LogTable:
    """The table of one protocol. `decode` returns `added_up` of records, and `measure` that of index
    entries."""
    return LogTable(VOLUMES, summary, namespace, logs, volumes_schema(), decode, measure)


def added_up(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Sum rows that have some of the columns of `volumes`, by the second.

    A missing column is null. Without `messages`, each row counts as one message.
    """
    there = set(rows.schema.names)
    columns = [
        rows.column(field.name) if field.name in there else pa.nulls(rows.num_rows, field.type)
        for field in volumes_schema()
    ]
    table = pa.Table.from_arrays(columns, schema=volumes_schema())
    if "messages" not in there:
        ones = pc.if_else(table["fault"].is_null(), pa.scalar(1, pa.int64()), pa.scalar(None, pa.int64()))
        table = table.set_column(table.schema.get_field_index("messages"), "messages", ones)
    seconds = pc.floor_temporal(table["time"], unit="second")
    added = _added(table.set_column(table.schema.get_field_index("time"), "time", seconds))
    batches = added.combine_chunks().to_batches()
    return batches[0] if batches else pa.RecordBatch.from_pylist([], schema=volumes_schema())


def _added(rows: pa.Table) -> pa.Table:
    # A sum of nulls alone is null: records that could not be read have no size.
    option = pc.ScalarAggregateOptions(min_count=1)
    added = rows.group_by(list(_BY), use_threads=False).aggregate([(name, "sum", option) for name in _SUMS])
    renamed = {f"{name}_sum": name for name in _SUMS}
    added = added.rename_columns([renamed.get(name, name) for name in added.column_names])
    return added.select(volumes_schema().names).cast(volumes_schema())
