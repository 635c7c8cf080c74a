"""Tables: a map that is the fold of its log, keeps itself small, and is atomic with other logs."""

import errno
import random
from itertools import pairwise

import attrs
import pytest

from shared.errors import CorruptRecord, StoreError
from shared.storage.store import Durability, Retention, Store
from shared.storage.table import Table
from tests.support.fake_disk import FakeDisk, Operation
from tests.support.stores import (
    ALWAYS,
    INTERVAL,
    NONE,
    SMALL,
    append,
    fresh_store,
    open_store,
    read_all,
    records,
    reopen,
)


async def table_of(store: Store, mode: Durability = ALWAYS) -> Table:
    return await Table.open(store.namespace("logmq", mode), "offsets")


@pytest.mark.parametrize("mode", [ALWAYS, INTERVAL, NONE], ids=str)
async def test_a_table_is_there_again_after_a_start(mode: Durability) -> None:
    disk, store = await fresh_store()
    table = await table_of(store, mode)
    table.put(b"a", b"1")
    table.put(b"b", b"")
    table.put(b"", b"empty key")
    table.delete(b"b")
    table.put(b"c", b"3")
    await store.wait(table.put(b"a", b"2"))
    assert dict(table.items()) == {b"": b"empty key", b"c": b"3", b"a": b"2"}
    assert (table[b"a"], table.get(b"b"), b"c" in table, len(table)) == (b"2", None, True, 3)
    store, _ = await reopen(store, disk)
    again = await table_of(store, mode)
    assert dict(again.items()) == dict(table.items())


@pytest.mark.parametrize("mode", [ALWAYS, INTERVAL, NONE], ids=str)
async def test_a_table_keeps_itself_small_and_loses_nothing(mode: Durability) -> None:
    disk, store = await fresh_store()
    table = await table_of(store, mode)
    random_ = random.Random(1)
    model: dict[bytes, bytes] = {}
    for n in range(30_000):
        key = b"%d" % random_.randrange(1000)
        if n < 1000:
            key = b"kept since the start %d" % n
        if n % 7 == 6 and key in model:
            table.delete(key)
            del model[key]
        else:
            model[key] = b"%d" % n + bytes(random_.randrange(60))
            table.put(key, model[key])
        if n % 50 == 0:
            store.commit_pending()
        if n % 5000 == 4999:
            await store.checkpoint()
            assert dict(table.items()) == model
    store.commit_pending()
    live = sum(7 + len(key) + len(value) for key, value in model.items())
    assert table.log.end > 1_000_000
    assert table.log.end - table.log.first <= 2 * live + 3 * (64 << 10)
    for _ in range(2):
        store, disk = await reopen(store, disk)
        again = await table_of(store, mode)
        assert dict(again.items()) == model


async def test_a_tables_change_and_other_logs_records_are_all_or_nothing() -> None:
    disk, store = await fresh_store()
    namespace = store.namespace("logmq", ALWAYS)
    log, _ = namespace.create("orders")
    table = await table_of(store)
    await store.wait(table.put(b"old", b"0"))

    def refuse(operation: Operation) -> None:
        if operation.kind == "write" and operation.length > 512:
            raise OSError(errno.ENOSPC, "injected")

    disk.before = refuse
    big = records(bytes(2000))
    _, ticket = store.append_all(
        [(log, big, 1), table.put_record(b"old", b"1"), table.put_record(b"k", b"v")]
    )
    assert (table[b"old"], table[b"k"]) == (b"1", b"v")
    with pytest.raises(StoreError):
        await store.wait(ticket)
    assert dict(table.items()) == {b"old": b"0"}, "the change was taken back with the records"
    disk.before = None
    _, ticket = store.append_all([(log, big, 1), table.put_record(b"old", b"2"), table.delete_record(b"k")])
    await store.wait(ticket)
    store, _ = await reopen(store, disk)
    assert dict((await table_of(store)).items()) == {b"old": b"2"}
    assert await read_all(store.namespace("logmq", ALWAYS).logs["orders"]) == [bytes(2000)]


async def test_retention_leaves_a_table_alone() -> None:
    disk, store = await fresh_store()
    namespace = store.namespace("logmq", ALWAYS, retention=Retention(bytes_kept=0))
    table = await Table.open(namespace, "offsets")
    await store.wait(table.put(b"a", bytes(1000)))
    for _ in range(2):
        await store.retain()
    store, _ = await reopen(store, disk)
    assert dict((await table_of(store)).items()) == {b"a": bytes(1000)}


@pytest.mark.parametrize("payload", [b"\3\0\1k", b"not a table's record"])
async def test_a_record_of_no_known_kind_is_refused(payload: bytes) -> None:
    store = await open_store(FakeDisk())
    log, _ = store.namespace("logmq", ALWAYS).create("offsets")
    await append(store, log, payload)
    with pytest.raises(CorruptRecord):
        await table_of(store)


async def test_keys_that_nobody_wants_any_more_go_some_in_each_commit() -> None:
    disk, store = await fresh_store()
    table = await table_of(store)
    keys = [b"%d" % number for number in range(5000)]
    for key in keys:
        table.put(key, b"value")
    await store.wait(table.put(b"stays", b"1"))
    left = [len(table)]
    table.log.advanced = lambda log: left.append(len(table))
    table.discard([*keys])
    store.commit_pending()
    assert dict(table.items()) == {b"stays": b"1"}
    assert max(before - after for before, after in pairwise(left)) <= 1024, left
    store, _ = await reopen(store, disk)
    assert dict((await table_of(store)).items()) == {b"stays": b"1"}


async def test_a_failed_append_leaves_an_older_change_of_the_same_round_undone_too() -> None:
    disk = FakeDisk()
    store = await open_store(disk, attrs.evolve(SMALL, inline_sync_seconds=1e9))
    table = await table_of(store)
    for n in range(3):
        table.put(b"a", b"%d" % n)
        table.put(b"b", b"%d" % n)
    await store.wait(table.delete(b"b"))
    before = dict(table.items())

    def refuse(operation: Operation) -> None:
        if operation.kind == "write" and operation.path.startswith("journal") and operation.length > 512:
            raise OSError(errno.EIO, "injected")

    disk.before = refuse
    for n in range(40):
        table.put(b"%d" % (n % 4), bytes(100))
        table.delete(b"a")
        table.put(b"b", b"back")
        table.put(b"a", b"%d" % n)
    store.commit_pending()
    assert dict(table.items()) == before == {b"a": b"2"}
