"""A log's records as `brokers log dump` shows them: as rows of the table that its protocol has for them.

No Spark is needed, but the tables are Arrow's: where `pyarrow` is not installed there is no decoder.
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
"""So much is decoded at once, and held."""
_SAID_ALREADY = ("log", "protocol")
"""Whoever asks for a log has named both."""


def decoder(namespace: str, log: str) -> Decode | None:
    """From records to rows; None for a log whose records say all by themselves, or that no table is of.

    Raises ImportError where the tables cannot be loaded.
    """
    there = [
        table
        for plugin in plugins.load_all()[0]
        for table in tables_of(plugin)
        if table.namespace == namespace and re.fullmatch(table.logs, log) and table.gather is None
    ]
    # That of the messages themselves, where there is one.
    full = [table for table in there if {PAYLOAD, VALUE} & set(table.schema.names)]
    table = next(iter(full or there), None)
    if table is None or table.name == RECORDS:
        return None
    return lambda records: _decoded(table, log, records)


def _decoded(table: LogTable, log: str, records: Iterable[RecordRow | DamagedRow]) -> Iterator[Any]:
    """Rows in the records' order; a damaged range is a row of its own among them."""
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
        told = row | ({} if time is None else {"time": time.isoformat(timespec="milliseconds")})
        yield {name: value for name, value in told.items() if name not in _SAID_ALREADY}
