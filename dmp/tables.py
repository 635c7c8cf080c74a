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
from shared.recording.rows import Codec, Repetition, Runs, repeats
from shared.recording.tables import RecordedLog
from shared.tables import Table

if TYPE_CHECKING:
    from shared.recording.rows import Bytes

SIZE_MAX = size_max_of((1 << 32) - 1)
"""What a setting allowed when it was recorded is not known here; the block's end is bound enough."""


def walk(data: "Bytes", memory: memoryview, at: int, end: int, block: Block, runs: Runs) -> str | None:
    """Messages as on the wire, null messages between them (PROTOCOL.md, "Messages")."""
    repetition = Repetition()
    base, payload = at, bytes(memory[at:end])  # what takes envelopes apart wants bytes
    while at < end:
        try:
            ends = end_of(payload, at - base, SIZE_MAX)
            if ends is None or base + ends > end:
                return "a message reaches past its end"
            if ends == at - base + SIZE_BYTES:
                at = base + ends
                continue
            parts = layout_untrusted(payload, at - base, ends)
        except WireError as error:
            return error.text
        stride = base + ends - at
        key_at = SIZE_BYTES + 1 + len(parts.exchange) + 1
        key_bytes = len(parts.key)
        body_at = base + parts.body_at - at
        envelope = (key_at, key_bytes, body_at, stride)
        count = 1
        if repetition.worth(envelope):
            # Sizes, lengths and properties are the same, byte for byte; only keys and bodies may differ.
            columns = (0, key_at), (key_at + key_bytes, body_at)
            count = repeats(data, at, stride, (end - at) // stride, columns)
            repetition.found(count)
        runs.add(at, stride, count, (body_at, stride - body_at), key=(key_at, key_bytes))
        at += count * stride
    return None


LOG = RecordedLog("dmp", {RECORDED_MESSAGES: Codec(walk)})
TABLES: Sequence[Table] = LOG.tables()
