"""What the blocks of the recorded log are as rows: messages as they came into a sink.

The sink names the block, since messages may leave their exchange empty; the key is the message's.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from dmp.wire import (
    RECORDED_MESSAGES,
    SIZE_BYTES,
    WireError,
    end_of,
    layout_untrusted,
    size_max_of,
)
from shared.recording.blocks import Block
from shared.recording.rows import FEW, NO_FIELD, TRY_AGAIN, Codec, Runs, repeats
from shared.recording.tables import RecordedLog
from shared.tables import Table

if TYPE_CHECKING:
    from shared.recording.rows import Bytes

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
        except WireError as error:
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
                columns = (0, key_at), (key_at + key_bytes, body_at)
                count = repeats(data, base + at, size, (end - at) // size, columns)
                wait = TRY_AGAIN if count < FEW else 0
        before = shape
        runs.add((base + at, size, count, *NO_FIELD, key_at, key_bytes, *NO_FIELD, body_at, size - body_at))
        runs.messages += count
        at += count * size
    return None


LOG = RecordedLog("dmp", Codec(RECORDED_MESSAGES, walk))
TABLES: Sequence[Table] = LOG.tables()
