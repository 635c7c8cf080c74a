"""Who is subscribed to what, and what is kept for whom, from what `sessions.py` and `kept.py` write."""

import pyarrow as pa

from shared.storage.format import table_change
from shared.tables.table import kept_schema, places_schema


def places(batch: pa.RecordBatch) -> pa.RecordBatch:
    """A row for each subscription made or ended. A session has no place in a log."""
    rows = []
    for record in batch.to_pylist():
        row = {"log": record["topic"], "offset": record["offset"], "time": record["timestamp"]}
        found = table_change(record["value"])
        client, nul, topic = found.key.partition(b"\0") if found is not None else (b"", b"", b"")
        if found is None or not nul:
            rows.append(row | {"fault": "it is no subscription"})
            continue
        rows.append(
            row
            | {
                "protocol": "pubsub",
                "reader": client.decode(errors="backslashreplace"),
                "name": topic.decode(errors="backslashreplace"),
                "ended": found.value is None,
            }
        )
    return pa.RecordBatch.from_pylist(rows, schema=places_schema())


def kept(batch: pa.RecordBatch) -> pa.RecordBatch:
    """A row for each message that waits for a client; a clean stop writes them."""
    rows = []
    for record in batch.to_pylist():
        row = {"log": record["topic"], "offset": record["offset"], "time": record["timestamp"]}
        client, nul, frame = record["value"].partition(b"\0")
        if not nul:
            rows.append(row | {"fault": "it is no message of a client"})
            continue
        reader = client.decode(errors="backslashreplace")
        rows.append(row | {"protocol": "pubsub", "reader": reader, "messages": 1, "bytes": len(frame)})
    return pa.RecordBatch.from_pylist(rows, schema=kept_schema())
