"""Blocks as rows: what can be read is, and whatever else stands in a log is a fault and no error."""

import datetime
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pytest

from shared.recording import blocks
from shared.recording.blocks import FIXED, GAP, Block, pack_fields, pack_head
from shared.recording.rows import NO_FIELD, NOT_RECORDED, Codec, Rows, Runs

if TYPE_CHECKING:
    from shared.recording.rows import Bytes

ECHO = 7
TIME_US = 1_700_000_000_000_001
WRITTEN = datetime.datetime(2026, 3, 1, tzinfo=datetime.UTC)
FIELDS = pack_fields(b"echo", b"news", b"peer")


def walk(data: "Bytes", frames: bytes, base: int, block: Block, runs: Runs) -> str | None:
    """Frames of four bytes, three of them payload; behind `=` the first is a name, else it is the block's."""
    for at in range(0, len(frames), 4):
        name = (1, 1) if frames[at : at + 1] == b"=" else NO_FIELD
        runs.add((base + at, 4, 1, *name, *NO_FIELD, *NO_FIELD, 1, 3))
        runs.messages += 1
    return None


def payload(
    frames: bytes, messages: int, *, codec: int = ECHO, fields: bytes = FIELDS, time_us: int = TIME_US
) -> bytes:
    return pack_head(codec, time_us, messages, fields, len(frames))[4:] + frames


def batch(*payloads: bytes) -> pa.RecordBatch:
    columns = {
        "topic": pa.array(["echo"] * len(payloads)),
        "offset": pa.array(range(len(payloads))),
        "timestamp": pa.array([WRITTEN] * len(payloads), pa.timestamp("us", "UTC")),
        "value": pa.array(payloads, pa.binary()),
    }
    return pa.RecordBatch.from_pydict(columns)


def rows(*payloads: bytes) -> Rows:
    return Rows(batch(*payloads), "echo", Codec((ECHO,), walk))


GOOD = payload(b".abc.def", 2)


def headed(frames_at: int) -> bytes:
    """A block that says where its frames begin."""
    return FIXED.pack(blocks.VERSION, ECHO, frames_at, TIME_US, 2) + GOOD[FIXED.size :]


@pytest.mark.parametrize(
    ("bad", "says"),
    [
        (b"", "shorter than a head"),
        (GOOD[: FIXED.size - 1], "shorter than a head"),
        (b"\2" + GOOD[1:], "version 2"),
        (headed(FIXED.size - 1), "its frames begin outside of it"),
        (headed(len(GOOD) + 1), "its frames begin outside of it"),
        (headed(FIXED.size + len(FIELDS) - 1), "its fields reach past its head"),
        (payload(b"", 0, fields=pack_fields(b"echo", b"", b"")[:-1]), "its fields reach past its head"),
        (payload(b"", 0, fields=pack_fields(b"ohce", b"", b"")), "it is of the protocol ohce"),
        (payload(b"", 0, codec=ECHO + 1), "codec 8"),
        (payload(b"", 0, time_us=253_402_300_800_000_000), "its time"),
        (payload(bytes(7), 5, codec=GAP), "a gap of another length"),
    ],
)
def test_what_is_no_block_is_a_fault_among_what_is(bad: bytes, says: str) -> None:
    found = rows(GOOD, bad, GOOD)
    assert found.fault().to_pylist() == [None, None, says, None, None]
    assert found.offset().to_pylist() == [0, 0, 1, 2, 2]
    assert found.payload().to_pylist() == [b"abc", b"def", None, b"abc", b"def"]
    assert found.messages().to_pylist() == [1, 1, None, 1, 1]
    assert found.bytes().to_pylist() == [3, 3, None, 3, 3]
    if says != "a gap of another length":  # whose head can be read
        assert found.time().to_pylist()[2] == WRITTEN


def test_a_head_that_counts_otherwise_is_told_behind_what_was_read() -> None:
    found = rows(payload(b".abc.def", 3))
    assert found.fault().to_pylist() == [None, None, "2 messages where its head says 3"]
    assert found.payload().to_pylist() == [b"abc", b"def", None]


def test_a_gap_tells_how_much_is_missing_however_much() -> None:
    gaps = [(5, 70), (blocks.MESSAGES_MAX, (1 << 64) - 1)]
    found = rows(
        *(payload(blocks.GAP_BYTES.pack(size), messages, codec=GAP, time_us=9) for messages, size in gaps)
    )
    assert found.fault().to_pylist() == [NOT_RECORDED, NOT_RECORDED]
    assert found.messages().to_pylist() == [5, blocks.MESSAGES_MAX]
    assert found.bytes().to_pylist() == [70, np.iinfo(np.int64).max]
    assert not found.good.any()


def test_a_frame_without_a_name_of_its_own_has_its_block_s() -> None:
    found = rows(payload(b"=x12.abc", 2), payload(b".def", 1, fields=pack_fields(b"echo", b"old", b"")))
    assert found.name().to_pylist() == ["x", "news", "old"]
    assert found.source().to_pylist() == ["peer", "peer", None]
    assert found.key().to_pylist() == [None, None, None]


def test_a_part_of_a_batch_is_read_as_that_part() -> None:
    whole = batch(GOOD, payload(b".ghi", 1))
    part = Rows(whole.slice(1), "echo", Codec((ECHO,), walk))
    assert part.payload().to_pylist() == [b"ghi"]


def test_a_field_has_255_bytes_at_most() -> None:
    head = blocks.unpack(payload(b"", 0, fields=pack_fields(b"echo", b"n" * 256, b"s" * 255)))
    assert (head.name, head.source) == (b"n" * 255, b"s" * 255)
