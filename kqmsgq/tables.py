"""What the blocks of the recorded log are as rows: message events as producers sent them."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from kqmsgq.wire import HEADER_BYTES, LENGTH_BYTES, MESSAGE, NAME_AT, RECORDED_MESSAGES
from shared.recording.blocks import Block
from shared.recording.rows import Codec, Repetition, Runs, repeats
from shared.recording.tables import RecordedLog
from shared.tables import Table

if TYPE_CHECKING:
    from shared.recording.rows import Bytes


def walk(data: "Bytes", memory: memoryview, at: int, end: int, block: Block, runs: Runs) -> str | None:
    """Message events, one behind the other (PROTOCOL.md, "Events")."""
    repetition = Repetition()
    while at < end:
        if end - at < HEADER_BYTES or memory[at] != MESSAGE:
            return "it is no message event"
        name_bytes = int.from_bytes(memory[at + 1 : at + NAME_AT], "big")
        length_at = NAME_AT + name_bytes
        body_at = length_at + LENGTH_BYTES
        if at + body_at > end:
            return "a name reaches past its end"
        body_bytes = int.from_bytes(memory[at + length_at : at + body_at], "big")
        stride = body_at + body_bytes
        if at + stride > end:
            return "a message reaches past its end"
        count = 1
        if repetition.worth((name_bytes, body_bytes)):
            columns = (0, NAME_AT), (length_at, body_at)
            count = repeats(data, at, stride, (end - at) // stride, columns)
            repetition.found(count)
        runs.add(at, stride, count, (body_at, body_bytes), (NAME_AT, name_bytes))
        at += count * stride
    return None


LOG = RecordedLog("kqmsgq", {RECORDED_MESSAGES: Codec(walk)})
TABLES: Sequence[Table] = LOG.tables()
