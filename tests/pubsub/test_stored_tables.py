"""Sessions and what is kept for them, from the records that the server writes of them."""

import pyarrow as pa

from pubsub.kept import Kept
from pubsub.metrics import Counts
from pubsub.settings import PubsubSettings
from pubsub.tables import kept, subscriptions
from shared.storage.format import length_at
from shared.storage.table import Table
from shared.tables.table import kept_schema, places_schema, records_schema
from tests.support.fake_disk import FakeDisk
from tests.support.stores import NONE, open_store, read_all


def batch_of(payloads: list[bytes]) -> pa.RecordBatch:
    rows = [
        {"topic": "sessions", "offset": at, "timestamp": 0, "value": each} for at, each in enumerate(payloads)
    ]
    return pa.RecordBatch.from_pylist(rows, schema=records_schema())


async def test_a_subscription_is_a_row_and_so_is_its_end() -> None:
    store = await open_store(FakeDisk())
    table = await Table.open(store.namespace("pubsub", NONE), "sessions")
    table.put(b"c1\0a/*", b"\1")
    table.put(b"c\xff\0b", b"")
    table.delete(b"c1\0a/*")
    await store.wait(table.put(b"no session", b""))
    batch = subscriptions(batch_of(await read_all(table.log)))
    assert batch.schema == places_schema()
    found = [(row["reader"], row["name"], row["ended"], row["fault"] is None) for row in batch.to_pylist()]
    assert found == [
        ("c1", "a/*", False, True),
        ("c\\xff", "b", False, True),
        ("c1", "a/*", True, True),
        (None, None, None, False),
    ]
    assert subscriptions(batch_of([b"", b"\3\0\0", b"\1\0\xff"])).column("fault").null_count == 0


def test_what_is_kept_is_a_row_a_message() -> None:
    keeps = Kept(PubsubSettings(), Counts())
    for frame in (b"one\0\0", b"three"):
        keeps.add([b"c1"], frame)
    ((records, count),) = keeps.records()
    payloads, at = [], 0
    while at < len(records):
        end = at + 4 + length_at(records, at)[0]
        payloads.append(records[at + 4 : end])
        at = end
    batch = kept(batch_of([*payloads, b"nobody's"]))
    assert batch.schema == kept_schema()
    rows = batch.to_pylist()
    assert [(row["reader"], row["messages"], row["bytes"]) for row in rows[:count]] == [
        ("c1", 1, 3),
        ("c1", 1, 5),
    ]
    assert rows[count]["fault"]
