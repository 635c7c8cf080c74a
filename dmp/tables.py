"""What the blocks of the recorded log are as rows: messages as they came into a sink or by `basic.publish`.

The sink or the exchange names the block; messages to a sink may leave theirs empty. The key is the message's.
"""

import struct
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from dmp import queue_records
from dmp.wire import RECORDED_MESSAGES, RECORDED_PUBLISHES, SIZE_BYTES, end_of, layout_untrusted, size_max_of
from shared.columns import equal_rows
from shared.errors import CorruptRecord, RemoteProtocolError
from shared.recording.blocks import Block
from shared.recording.rows import FEW, NO_FIELD, TRY_AGAIN, Codec, Runs
from shared.recording.tables import RecordedLog
from shared.tables.table import LogTable, schema_of

if TYPE_CHECKING:
    from shared.tables.vectors import Bytes

SIZE_MAX = size_max_of((1 << 32) - 1)
"""What a setting allowed when it was recorded is not known here; the block's end is bound enough."""


def walk(data: "Bytes", frames: bytes, base: int, block: Block, runs: Runs) -> str | None:
    """Messages as on the wire, null messages between them (PROTOCOL.md, "Messages")."""
    at, end = 0, len(frames)
    before = (-1, -1, -1)
    wait = 0  # frames before repetition is looked for again
    while at < end:
        try:
            ends = end_of(frames, at, SIZE_MAX)
            if ends is None or ends > end:
                return "a message reaches past its end"
            if ends == at + SIZE_BYTES:
                at = ends
                continue
            parts = layout_untrusted(frames, at, ends)
        except RemoteProtocolError as error:
            return error.text
        size = ends - at
        key_at = SIZE_BYTES + 1 + len(parts.exchange) + 1
        key_bytes = len(parts.key)
        body_at = parts.body_at - at
        shape = key_at, body_at, size
        count = 1
        if shape == before:
            if wait:
                wait -= 1
            else:
                # Sizes, lengths and properties are the same, byte for byte; only keys and bodies may differ.
                columns = chain(range(key_at), range(key_at + key_bytes, body_at))
                count = equal_rows(frames, at, size, columns, (end - at) // size)
                wait = TRY_AGAIN if count < FEW else 0
        before = shape
        runs.add((base + at, size, count, *NO_FIELD, key_at, key_bytes, *NO_FIELD, body_at, size - body_at))
        runs.messages += count
        at += count * size
    return None


STORED = "stored"
STORED_SCHEMA = schema_of(
    *("log", "offset", "time", "protocol", "name"),
    ("event", pa.string()),
    ("number", pa.int64()),
    "messages",
    *("key", "payload", "fault"),
)
"""`number`: which of the queue's messages, of a run the first. `key`: the routing key that it came with.
`payload` is null for a large one, whose body stands in a log of its own."""


def stored(batch: pa.RecordBatch) -> pa.RecordBatch:
    """A row a record of durable queues' logs, and of one that takes several messages away, a row for each."""
    rows = []
    columns = (batch.column(name).to_pylist() for name in ("topic", "offset", "timestamp", "value"))
    for log, offset, time, value in zip(*columns, strict=True):
        common = {"log": log, "offset": offset, "time": time, "protocol": "dmp", "name": log}
        try:
            rows += [common | told for told in _told(value)]
        except (struct.error, IndexError, ValueError, CorruptRecord) as error:
            fault = f"it cannot be read: {type(error).__name__}"
            rows.append({"log": log, "offset": offset, "time": time, "fault": fault})
    return pa.RecordBatch.from_pylist(rows, schema=STORED_SCHEMA)


def _told(value: bytes) -> Iterator[dict[str, Any]]:
    op = queue_records.Op(value[0])
    event = op.name.lower()
    if op is queue_records.Op.TAKEN:
        for number in queue_records.numbers_in(value, 0, len(value)):
            yield {"event": event, "number": _number(number), "messages": 1}
    elif op is queue_records.Op.TRIED:
        for number in queue_records.tried_in(value, 0, len(value))[1]:
            yield {"event": event, "number": _number(number), "messages": 1}
    elif op is queue_records.Op.PURGED:
        first, end = map(_number, queue_records.numbers_in(value, 0, len(value)))
        yield {"event": event, "number": first, "messages": end - first}
    else:
        message = queue_records.MessageReader("").read(value, 0, len(value), 0)
        key = message.head.key.decode(errors="backslashreplace")
        payload = None if message.head.large else message.bodies[0]
        number = _number(message.first)
        yield {"event": event, "number": number, "messages": 1, "key": key, "payload": payload}


def _number(number: int) -> int:
    """Raises ValueError for one that a column cannot hold, and no queue has."""
    if number >= 1 << 63:
        raise ValueError(number)
    return number


LOG = RecordedLog("dmp", Codec((RECORDED_MESSAGES, RECORDED_PUBLISHES), walk))
TABLES: Sequence[LogTable] = (
    *LOG.tables(),
    LogTable(
        STORED,
        "what durable queues keep and let go: a row a message that came or left",
        namespace=queue_records.QUEUES,
        logs=".*",
        schema=STORED_SCHEMA,
        decode=stored,
    ),
)
