"""What the tables of a queue's log say is what its records say, read one by one."""

from functools import cache

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dms import records
from dms.records import RecordKind, SeqRange
from dms.settings import DmsSettings
from dms.tables import TABLES, contents, events, volumes
from tests.dms import plain_events
from tests.dms.busy import QUEUES, busy
from tests.dms.world import World

OWN = (
    "log",
    "offset",
    "name",
    "event",
    "seq",
    "messages",
    "bytes",
    "deliveries",
    "reason",
    "origin",
    "target",
)


def rows(batch: pa.RecordBatch) -> list[dict[str, object]]:
    assert batch.schema == events.SCHEMA
    found = []
    for row in batch.to_pylist():
        assert row["fault"] is None
        assert row["protocol"] == "dms"
        found.append({name: row[name] for name in OWN} | {"time": row["time"].timestamp() * 1000})
    return found


@cache
def logs(seed: int) -> list[list[plain_events.Placed]]:
    world = busy(seed)
    return [plain_events.log_of(world, queue) for queue in QUEUES]


@pytest.mark.parametrize("seed", range(12))
def test_events_are_what_the_records_say(seed: int) -> None:
    for those in logs(seed):
        batch = plain_events.batch_of(those)
        assert rows(events.events(batch)) == list(plain_events.events(those))
        # Batches are cut anywhere, and a part of one has its bytes in the middle of somebody else's.
        cut = len(those) // 3
        parts = [events.events(part) for part in (batch.slice(0, cut), batch.slice(cut))]
        assert [row for part in parts for row in rows(part)] == list(plain_events.events(those))


def test_every_event_occurs_in_these_tests() -> None:
    seen = {
        (row["event"], row["reason"])
        for seed in range(12)
        for those in logs(seed)
        for row in plain_events.events(those)
    }
    assert {event for event, _ in seen} == set(plain_events.NAMES.values()) - {"imported"}
    assert {reason for _, reason in seen} == {None, *plain_events.REASONS.values()}


def payload(kind: RecordKind, count: int, seq: int, body: bytes = b"", reason: int = 0, **head: int) -> bytes:
    return records.pack(kind, count, seq, 5, head.get("time_ms", 1_700_000_000_000), body, reason)[4:]


def test_messages_of_one_length_and_of_many_have_their_places() -> None:
    def entries(*sizes: int) -> bytes:
        return b"".join(size.to_bytes(4, "big") + bytes(size) for size in sizes)

    cases = [(3, 3, 3), (0, 8, 0), (), (8, 0, 4, 4), (0,), (2, 2, 10, 2, 2), (0, 0)]
    # Four bytes of zeros and a length of four: what an entry of another length could be taken for.
    those = [
        ("q", number, payload(RecordKind.ENQUEUED, len(sizes), 10 * number + 1, entries(*sizes)))
        for number, sizes in enumerate(cases)
    ]
    found = [(row["seq"], row["bytes"]) for row in rows(events.events(plain_events.batch_of(those)))]
    assert found == [
        (10 * number + 1 + place, size)
        for number, sizes in enumerate(cases)
        for place, size in enumerate(sizes)
    ]


def test_a_long_run_is_several_rows() -> None:
    body = records.pack_runs([SeqRange(1, 10), SeqRange(100, 2 * events.RUN_MAX + 1), SeqRange(7, 0)])
    batch = plain_events.batch_of([("q", 0, payload(RecordKind.GONE, 3, 0, body, 5))])
    assert [(row["seq"], row["messages"]) for row in rows(events.events(batch))] == [
        (1, 10),
        (100, events.RUN_MAX),
        (100 + events.RUN_MAX, events.RUN_MAX),
        (100 + 2 * events.RUN_MAX, 1),
    ]


GOOD = payload(RecordKind.ENQUEUED, 1, 7, b"\0\0\0\2ab")


@pytest.mark.parametrize(
    "bad",
    [
        b"",
        b"\1\1",
        payload(RecordKind.DELIVERED, 2, 0, bytes(12)),
        payload(RecordKind.ACKED, 0xFFFFFFFF, 0, bytes(12)),
        payload(RecordKind.MOVED, 2, 0, bytes(12) + b"target"),
        payload(RecordKind.RETURNED, 1, 0, bytes(12)),
        payload(RecordKind.RETURNED, 1, 0, b"\xff" * 20),
        payload(RecordKind.GONE, 1, 0, b"\xff" * 12),
        payload(RecordKind.ENQUEUED, 1, 1, b"\0\0\0\3ab"),
        payload(RecordKind.ENQUEUED, 0xFFFFFFFF, 1, b"\0\0\0\2ab"),
        payload(RecordKind.ENQUEUED, 2, 1, b"\0\0\0\2ab\0\0\0\1"),
        payload(RecordKind.ENQUEUED, 1, 1 << 63, b"\0\0\0\2ab"),
        payload(RecordKind.ENQUEUED, 1, 1, b"\0\0\0\2ab", time_ms=1 << 60),
        payload(RecordKind.LETTERS, 1, 1, b"\0\0\0\2{}\0\0\0\0"),
        payload(RecordKind.LETTERS, 1, 1, b"\0\0\0\1{\0\0\0\0"),
        payload(RecordKind.LETTERS, 2, 1, b"\0\0\0\2{}\0\0\0\0"),
        payload(RecordKind.KEPT, 1, 0, bytes(27)),
        payload(RecordKind.KEPT, 2, 0, bytes(28)),
        b"\x0b" + GOOD[1:],
        b"\0" + GOOD[1:],
        GOOD[:1] + b"\2" + GOOD[2:],
    ],
)
def test_what_cannot_be_read_is_one_row_that_says_so(bad: bytes) -> None:
    found = events.events(
        plain_events.batch_of([("q", 0, GOOD), ("q", 10, bad), ("q", 20, GOOD)], time=5)
    ).to_pylist()
    assert [(row["offset"], row["event"]) for row in found] == [(0, "produced"), (10, None), (20, "produced")]
    assert found[1].pop("fault")
    assert found[1].pop("time").timestamp() == 5e-6  # the index's
    assert {name: value for name, value in found[1].items() if value is not None} == {
        "log": "q",
        "offset": 10,
    }


@given(st.lists(st.binary(max_size=90)), st.lists(st.tuples(st.integers(0, 11), st.binary(max_size=60))))
def test_no_bytes_are_too_bad_to_be_decoded(garbage: list[bytes], bodies: list[tuple[int, bytes]]) -> None:
    heads = [bytes([kind, 1, 0, 3, 0, 0, 0, 1]) + bytes(24) + body for kind, body in bodies]
    batch = plain_events.batch_of([("q", number, each) for number, each in enumerate([*garbage, *heads])])
    for table in TABLES:
        assert table.decode(batch).schema == table.schema
    faults = {row["offset"] for row in events.events(batch).to_pylist() if row["fault"]}
    assert faults >= {number for number, each in enumerate(garbage) if len(each) < 32}


@pytest.fixture
def few_and_a_fault() -> pa.RecordBatch:
    """The log of a queue that got `one` and `three`, of which the first was acknowledged; and no event."""
    world = World(DmsSettings())
    peer = world.connect()
    peer.create("jobs")
    peer.produce("jobs", b"one", b"three")
    ((held, _),) = peer.consume("jobs")
    peer.ack(held)
    return plain_events.batch_of([*plain_events.log_of(world, "jobs"), ("jobs", 9999, b"bad")])


def test_volumes_are_what_was_produced(few_and_a_fault: pa.RecordBatch) -> None:
    (good, bad) = volumes(few_and_a_fault).to_pylist()
    assert (good["name"], good["messages"], good["bytes"], good["fault"]) == ("jobs", 2, 8, None)
    assert (bad["log"], bad["name"], bad["messages"], bad["bytes"]) == ("jobs", None, None, None)
    assert bad["fault"]


def test_contents_are_the_events_with_the_bodies_of_what_came(few_and_a_fault: pa.RecordBatch) -> None:
    found = contents(few_and_a_fault).to_pylist()
    assert [row["payload"] for row in found if row["bytes"] is not None] == [b"one", b"three"]
    assert [{**row, "payload": None} for row in found] == [
        {**row, "payload": None} for row in events.events(few_and_a_fault).to_pylist()
    ]
