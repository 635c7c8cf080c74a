"""LogMQ's tables: its messages as rows, and what it remembers of writers."""

from datetime import UTC, datetime

import pyarrow as pa

from logmq.groups import Groups
from logmq.tables import RECORDS_SCHEMA, TABLES, WRITERS_SCHEMA, commits, records, writers
from logmq.writers import Writers
from shared.storage.format import record
from shared.storage.table import Table
from shared.tables.table import places_schema, records_schema
from tests.support.fake_disk import FakeDisk
from tests.support.stores import ALWAYS, open_store, read_all

NOW = datetime(2026, 11, 21, tzinfo=UTC)


def as_read(topic: str, payloads: list[bytes]) -> pa.RecordBatch:
    rows = [
        {"topic": topic, "offset": 10 * at, "timestamp": NOW, "value": each}
        for at, each in enumerate(payloads)
    ]
    return pa.RecordBatch.from_pylist(rows, schema=records_schema())


def test_a_message_is_a_row() -> None:
    batch = records(as_read("orders", [b"one", b"\xff"]))
    assert batch.schema == RECORDS_SCHEMA
    row = {"log": "orders", "time": NOW, "protocol": "logmq", "name": "orders", "fault": None}
    assert batch.to_pylist() == [
        row | {"offset": 0, "payload": b"one"},
        row | {"offset": 10, "payload": b"\xff"},
    ]


async def test_a_writers_batch_is_a_row_and_so_is_its_end() -> None:
    store = await open_store(FakeDisk())
    log, _ = store.namespace("logmq", ALWAYS, plain_names=True).create("orders", ALWAYS)
    table = await Table.open(store.namespace("logmq-tables", ALWAYS), "writers")
    kept = Writers(store, table, writers_max=10)
    for seq in (7, 8):
        _, ticket, _ = kept.write(log, "anonymous", "w", seq, [(record(b"x"), 1)])
        assert ticket is not None
        await store.wait(ticket)
    kept.forget(log.id)
    store.commit_pending()
    payloads = [*await read_all(table.log), b"", b"\1\0\2ab", b"\1\0\x0b12345678w01short"]
    batch = writers(as_read("writers", payloads))
    assert batch.schema == WRITERS_SCHEMA
    rows = batch.to_pylist()
    found = [(row["writer"], row["log_id"], row["seq"], row["position"], row["ended"]) for row in rows[:4]]
    assert found[:2] == [("w", log.id, 7, 0, False), ("w", log.id, 8, 5, False)]
    assert found[2:] == [("w", log.id, None, None, True)] * 2
    assert [row["fault"] is None for row in rows] == [True] * 4 + [False] * 3


async def test_a_commit_is_a_row_and_so_is_its_end() -> None:
    store = await open_store(FakeDisk())
    log, _ = store.namespace("logmq", ALWAYS, plain_names=True).create("orders", ALWAYS)
    table = await Table.open(store.namespace("logmq-tables", ALWAYS), "groups")
    groups = Groups(table, 10)
    groups.commit("billing", log, 0)
    groups.commit("billing", log, 1 << 40)
    groups.forget(log.id)
    await store.wait(groups.commit("audit", log, 5))
    payloads = [*await read_all(table.log), b"", b"\1\0\2ab", b"\1\0\x09123456789short"]
    batch = commits(as_read("groups", payloads))
    assert batch.schema == places_schema()
    found = [(row["reader"], row["log_id"], row["position"], row["ended"]) for row in batch.to_pylist()[:4]]
    assert found == [
        ("billing", log.id, 0, False),
        ("billing", log.id, 1 << 40, False),
        ("billing", log.id, None, True),
        ("audit", log.id, 5, False),
    ]
    assert [row["fault"] is None for row in batch.to_pylist()] == [True] * 4 + [False] * 3


def test_every_log_of_logmq_has_a_table() -> None:
    assert {(table.namespace, table.logs) for table in TABLES} == {
        ("logmq", ".*"),
        ("logmq-tables", "groups"),
        ("logmq-tables", "writers"),
    }
