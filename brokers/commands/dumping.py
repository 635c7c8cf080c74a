"""Decodes a log's records for `brokers log dump`, as rows of its protocol's table.

It needs no Spark, but `pyarrow` for the tables.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from brokers import plugins
from shared.storage.tools.logs import DamagedRow, RecordRow
from shared.tables.table import PAYLOAD, RECORDS, VALUE, LogTable, records_schema, tables_of

Row = Mapping[str, Any]
Decode = Callable[[Iterable[RecordRow | DamagedRow]], Iterator[Any]]

BATCH_RECORDS = 256
BATCH_BYTES = 1 << 20
"""How many bytes are held, and decoded at once."""
_SAID_ALREADY = ("log", "protocol")
"""Columns that are left out, because the user has named both."""


def decoder(namespace: str, log: str) -> Decode | None:
    """Return a function from records to rows; None if a log needs no table, or has none.

    Raises ImportError if the tables cannot be loaded.
    """
    tables = [
        table
        for plugin in plugins.load_all()[0]
        for table in tables_of(plugin)
        if table.namespace == namespace and re.fullmatch(table.logs, log)
    ]
    # The table of the messages themselves comes first, and last one whose rows are made of several records.
    plain = [table for table in tables if table.gather is None]
    full = [table for table in plain if {PAYLOAD, VALUE} & set(table.schema.names)]
    table = next(iter(full or plain or tables), None)
    if table is None or table.name == RECORDS:
        return None
    return lambda records: _decoded(table, log, records)


def _decoded(table: LogTable, log: str, records: Iterable[RecordRow | DamagedRow]) -> Iterator[Any]:
    """Yield rows in the records' order. A damaged range is a row of its own."""
    waiting: list[RecordRow] = []
    size = 0
    for record in records:
        if isinstance(record, RecordRow):
            waiting.append(record)
            size += len(record.payload)
            if len(waiting) < BATCH_RECORDS and size < BATCH_BYTES:
                continue
        yield from _rows(table, log, waiting)
        waiting, size = [], 0
        if isinstance(record, DamagedRow):
            yield record
    yield from _rows(table, log, waiting)


def _rows(table: LogTable, log: str, records: list[RecordRow]) -> Iterator[Row]:
    import pyarrow as pa

    if not records:
        return
    times = [None if record.time_ms is None else record.time_ms * 1000 for record in records]
    schema = records_schema()
    columns = {
        "topic": [log] * len(records),
        "offset": [record.offset for record in records],
        "timestamp": pa.array(times, pa.int64()).cast(schema.field("timestamp").type),
        "value": [record.payload for record in records],
    }
    for row in table.decode(pa.RecordBatch.from_pydict(columns, schema=schema)).to_pylist():
        time = row.get("time")
        shown = row | ({} if time is None else {"time": time.isoformat(timespec="milliseconds")})
        yield {name: value for name, value in shown.items() if name not in _SAID_ALREADY}
