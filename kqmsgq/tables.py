"""Rows of the recorded log, whose blocks hold message events as producers sent them."""

import struct
from collections.abc import Sequence
from itertools import chain
from typing import TYPE_CHECKING

from kqmsgq.wire import HEADER_BYTES, LENGTH_BYTES, MESSAGE, NAME_AT, RECORDED_MESSAGES
from shared.columns import equal_rows
from shared.recording.blocks import Block
from shared.recording.rows import FEW, NO_FIELD, TRY_AGAIN, Codec, Runs
from shared.recording.tables import RecordedLog
from shared.tables.table import LogTable

if TYPE_CHECKING:
    from shared.tables.vectors import Bytes

_read_u32 = struct.Struct(">I").unpack_from


def walk(data: "Bytes", frames: bytes, base: int, block: Block, runs: Runs) -> str | None:
    """Find the message events of a block, which follow each other (PROTOCOL.md, "Events")."""
    at, end = 0, len(frames)
    name_before = size_before = -1
    wait = 0  # frames until the next search for repetition
    try:
        while at < end:
            if frames[at] != MESSAGE:
                return "it is no message event"
            (name_bytes,) = _read_u32(frames, at + 1)
            (body_bytes,) = _read_u32(frames, at + NAME_AT + name_bytes)
            body_at = HEADER_BYTES + name_bytes
            size = body_at + body_bytes
            if size > end - at:
                return "a message reaches past its end"
            count = 1
            if size == size_before and name_bytes == name_before:
                if wait:
                    wait -= 1
                else:
                    lengths = chain(range(NAME_AT), range(body_at - LENGTH_BYTES, body_at))
                    count = equal_rows(frames, at, size, lengths, (end - at) // size)
                    wait = TRY_AGAIN if count < FEW else 0
            size_before, name_before = size, name_bytes
            runs.add((base + at, size, count, NAME_AT, name_bytes, *NO_FIELD, *NO_FIELD, body_at, body_bytes))
            runs.messages += count
            at += count * size
    except struct.error:
        return "a name reaches past its end"
    return None


LOG = RecordedLog("kqmsgq", Codec((RECORDED_MESSAGES,), walk))
TABLES: Sequence[LogTable] = LOG.tables()
