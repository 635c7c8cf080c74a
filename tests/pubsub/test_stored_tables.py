"""Sessions and what is kept for them, from the records that the server writes of them."""

import pyarrow as pa

from pubsub.kept import Kept
from pubsub.metrics import Counts
from pubsub.settings import PubsubSettings
from pubsub.tables import KEPT_SCHEMA, kept, subscriptions
from shared.storage.table import Table
from shared.tables.table import places_schema, records_schema
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


async def test_what_is_kept_is_a_row_a_message_and_client() -> None:
    store = await open_store(FakeDisk())
    log, _ = store.namespace("pubsub", NONE).create("kept")
    keeps = Kept(PubsubSettings(), Counts())
    keeps.open(log, lambda error: None)
    keeps.add([b"c1", b"c2"], b"one\0\0")
    keeps.add([b"c1"], b"three")
    keeps.forget(b"c1")
    store.commit_pending()
    batch = kept(batch_of([*await read_all(log), b"c1\0older", b"nobody's"]))
    assert batch.schema == KEPT_SCHEMA
    rows = batch.to_pylist()
    assert [(row["reader"], row["number"], row["bytes"], row["gone"]) for row in rows[:-1]] == [
        ("c1", 1, 3, False),
        ("c2", 1, 3, False),
        ("c1", 2, 5, False),
        ("c1", 2, None, True),
        ("c1", 0, 5, False),
    ]
    assert rows[-1]["fault"]
