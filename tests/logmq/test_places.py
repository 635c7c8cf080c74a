"""Groups' places, from the records that the broker writes of them."""

import pyarrow as pa

from logmq.groups import Groups
from logmq.places import places
from shared.storage.table import Table
from shared.tables.table import places_schema, records_schema
from tests.support.fake_disk import FakeDisk
from tests.support.stores import ALWAYS, open_store, read_all


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
    rows = [
        {"topic": "groups", "offset": at, "timestamp": 0, "value": each} for at, each in enumerate(payloads)
    ]
    batch = places(pa.RecordBatch.from_pylist(rows, schema=records_schema()))
    assert batch.schema == places_schema()
    found = [(row["reader"], row["log_id"], row["position"], row["ended"]) for row in batch.to_pylist()[:4]]
    assert found == [
        ("billing", log.id, 0, False),
        ("billing", log.id, 1 << 40, False),
        ("billing", log.id, None, True),
        ("audit", log.id, 5, False),
    ]
    assert [row["fault"] is None for row in batch.to_pylist()] == [True] * 4 + [False] * 3
