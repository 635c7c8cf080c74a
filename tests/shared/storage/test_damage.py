"""Damaged files: what is damaged is an error, and the rest is served."""

import pytest

from shared.errors import (
    CorruptRecord,
)
from tests.support.fake_disk import FakeDisk
from tests.support.stores import (
    ALWAYS,
    ask,
    filled,
    open_store,
    payloads,
    read_all,
    records,
)


async def test_every_flipped_bit_of_a_log_is_found_and_the_rest_is_served() -> None:
    disk = FakeDisk()
    store = await open_store(disk)
    log = await filled(store, count=200)
    whole = await read_all(log)
    entries = log.index_entries(0, log.end)
    await store.close()
    for position in range(0, log.end, 8111):
        damaged = disk.kill()
        fd = damaged.open("logmq/orders.log")
        byte = damaged.read(fd, 1, position)[0]
        damaged.write(fd, bytes([byte ^ 1 << position % 8]), position)
        store = await open_store(damaged)
        log = store.namespace("logmq", ALWAYS).logs["orders"]
        bad = next(entry for entry in entries if entry.offset <= position < entry.end)
        error = await ask(log.read, bad.offset, 10)
        assert isinstance(error, CorruptRecord)
        assert error.offset == bad.offset
        found: list[bytes] = []
        offset = 0
        while offset < log.visible:
            data = await ask(log.read, offset, 1 << 20)
            if isinstance(data, CorruptRecord):
                offset = bad.end
            else:
                found += payloads(data)
                offset += len(data)
        assert found == [p for n, p in enumerate(whole) if not bad.offset <= n * 1004 < bad.end]
        assert isinstance(await ask(log.read_chunk, bad.offset, 1 << 20), CorruptRecord)
        assert store.statistics().damaged_ranges == 1


@pytest.mark.parametrize("how", ["missing", "short", "last entry", "header"])
async def test_a_broken_index_is_rebuilt_and_says_so(how: str) -> None:
    disk = FakeDisk()
    store = await open_store(disk)
    log = await filled(store)
    whole = await read_all(log)
    await store.close()
    disk = disk.kill()
    if how == "missing":
        disk.unlink("logmq/orders.idx")
    else:
        fd = disk.open("logmq/orders.idx")
        size = disk.size(fd)
        if how == "short":
            disk.truncate(fd, size - 100)
        else:
            disk.write(fd, b"\xff", 4 if how == "header" else size - 10)
    store = await open_store(disk)
    log = store.namespace("logmq", ALWAYS).logs["orders"]
    assert await read_all(log) == whole
    entries = log.index_entries(0, log.end)
    assert entries[-1].unverified == (how != "header")
    assert entries[0].unverified == (how == "missing")
    assert entries[-1].end == log.end
    _, ticket = log.append(records(b"more"), 1)
    await store.wait(ticket)
    assert (await read_all(log))[-1] == b"more"


async def test_a_log_file_that_is_gone_is_damage_not_a_crash() -> None:
    disk = FakeDisk()
    store = await open_store(disk)
    await filled(store)
    await store.close()
    disk = disk.kill()
    disk.unlink("logmq/orders.log")
    store = await open_store(disk)
    log = store.namespace("logmq", ALWAYS).logs["orders"]
    assert isinstance(await ask(log.read, 0, 10), CorruptRecord)
    assert isinstance(await ask(log.read_chunk, 0, 1 << 20), CorruptRecord)
