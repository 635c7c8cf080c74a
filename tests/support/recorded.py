"""Recorded blocks for tests, and what they say, read by plain Python: what the vectors are held against."""

from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Self

import pyarrow as pa
from hypothesis import strategies as st

from shared.recording import blocks
from shared.recording.blocks import Block
from shared.tables.table import LogTable, records_schema

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
TIME_US = 1_700_000_000_123_456
RECORD_TIME = datetime(2030, 1, 1, tzinfo=UTC)
"""As the index has it; a block's own is another."""

Row = dict[str, Any]


def block(
    protocol: str, messages: int, frames: bytes, *, codec: int = 1, name: bytes = b"", source: bytes = b""
) -> bytes:
    """A record's payload."""
    fields = blocks.pack_fields(protocol.encode(), name, source)
    return blocks.pack_head(codec, TIME_US, messages, fields, len(frames))[4:] + frames


def batch_of(payloads: Sequence[bytes], log: str) -> pa.RecordBatch:
    """As the source gives them, the first record at 0."""
    offsets, at = [], 0
    for payload in payloads:
        offsets.append(at)
        at += 4 + len(payload)
    columns = [log] * len(payloads), offsets, [RECORD_TIME] * len(payloads), list(payloads)
    schema = records_schema()
    return pa.RecordBatch.from_arrays(
        [pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)], schema=schema
    )


def rows(table: LogTable, batch: pa.RecordBatch) -> list[Row]:
    """What a table makes of a batch: the same rows wherever the batch is cut."""
    whole = table.decode(batch)
    assert whole.schema == table.schema
    whole.validate(full=True)
    found: list[Row] = whole.to_pylist()
    cut = batch.num_rows // 2
    parts = [table.decode(part).to_pylist() for part in (batch.slice(0, cut), batch.slice(cut))]
    assert [row for part in parts for row in part] == found
    return found


Frames = Callable[[Block, bytes], Iterator[Row]]
"""The rows of a block's frames, in plain Python; ends, or raises ValueError where it can read no further."""


def plainly(payloads: Sequence[bytes], log: str, frames: Frames, codecs: Sequence[int] = (1,)) -> list[Row]:
    """The table `recorded`, with True for any fault but a gap's."""
    found = []
    at = 0
    for payload in payloads:
        place = {"log": log, "offset": at, "protocol": log}
        for row in _of_block(payload, log, frames, codecs):
            empty = dict.fromkeys(("name", "key", "source", "payload", "fault"))
            found.append({**place, "time": RECORD_TIME, **empty, **row})
        at += 4 + len(payload)
    return found


def _of_block(payload: bytes, log: str, frames: Frames, codecs: Sequence[int]) -> Iterator[Row]:
    try:
        head = blocks.unpack(payload)
    except ValueError:
        yield {"fault": True}
        return
    if (
        head.protocol != log.encode()
        or head.codec not in (0, *codecs)
        or head.time_us > 253_402_300_799_999_999
    ):
        yield {"fault": True}
        return
    time = time_of(head)
    body = payload[head.frames_at :]
    if head.codec == 0:
        yield {"time": time, "fault": "not recorded" if len(body) == 8 else True}
        return
    count = 0
    try:
        for row in frames(head, body):
            count += 1
            yield {"time": time, "source": head.source.decode(errors="backslashreplace") or None, **row}
        if count != head.messages:
            raise ValueError("another count")
    except ValueError:
        yield {"time": time, "fault": True}


def time_of(head: Block) -> datetime:
    return EPOCH + timedelta(microseconds=head.time_us)


def told(found: Sequence[Row]) -> list[Row]:
    """Rows with True for any fault but a gap's: the words are not what is compared."""
    return [
        {**row, "fault": row["fault"] if row["fault"] in (None, "not recorded") else True} for row in found
    ]


@st.composite
def damaged(draw: st.DrawFn, payloads: st.SearchStrategy[bytes]) -> bytes:
    """A block as it should be, or cut, or with a few bytes that are others, or anything."""
    payload = draw(payloads)
    how = draw(st.sampled_from(("whole", "whole", "cut", "flipped", "longer", "anything")))
    if how == "cut":
        return payload[: draw(st.integers(0, len(payload)))]
    if how == "longer":
        return payload + draw(st.binary(min_size=1, max_size=9))
    if how == "anything":
        return draw(st.binary(max_size=60))
    if how == "flipped" and payload:
        changed = bytearray(payload)
        for _ in range(draw(st.integers(1, 3))):
            changed[draw(st.integers(0, len(changed) - 1))] = draw(st.sampled_from((0, 1, 2, 42, 127, 255)))
        return bytes(changed)
    return payload


def repeated(messages: st.SearchStrategy[Any]) -> st.SearchStrategy[list[Any]]:
    """Messages, some of them many times over: what vectors take at once."""
    several = st.tuples(messages, st.sampled_from((1, 1, 2, 3, 17, 40))).map(lambda pair: [pair[0]] * pair[1])
    return st.lists(several, max_size=6).map(lambda runs: [message for run in runs for message in run])


class Tape:
    """A recorder that keeps what it gets. `blocks`: messages, frames; `tracks`: codec, name, source;
    `left_out`: reason, messages, bytes."""

    def __init__(self) -> None:
        self.left_out: list[tuple[str, int, int]] = []
        self.blocks: list[tuple[int, bytes]] = []
        self.tracks: list[tuple[int, bytes, bytes]] = []

    def track(self, codec: int, *, name: bytes = b"", source: bytes = b"") -> Self:
        self.tracks.append((codec, name, source))
        return self

    def record(self, messages: int, frames: bytes | memoryview) -> None:
        self.blocks.append((messages, bytes(frames)))

    def leave_out(self, reason: str, messages: int, size: int) -> None:
        self.left_out.append((reason, messages, size))

    @property
    def messages(self) -> int:
        return sum(messages for messages, _ in self.blocks)

    @property
    def frames(self) -> bytes:
        return b"".join(frames for _, frames in self.blocks)
