"""Logs in mode `none` that now and then take part in a change through the journal: kill -9 loses nothing."""

import errno

import pytest

from shared.storage.store import Store
from tests.support.fake_disk import FakeDisk, Operation
from tests.support.stores import ALWAYS, NONE, ask, open_store, read_all, records, reopen


async def _appended(store: Store, steps: str) -> list[bytes]:
    """`d`: a record around the journal; `j`: one through it, with a change to another log."""
    namespace = store.namespace("logmq", ALWAYS, plain_names=True)
    log = namespace.create("direct", NONE)[0]
    other = namespace.create("other", ALWAYS)[0]
    made = []
    for number, step in enumerate(steps):
        payload = b"%d%s" % (number, step.encode() * number)
        made.append(payload)
        if step == "d":
            ticket = log.append(records(payload), 1)[1]
        else:
            ticket = store.append_all([(log, records(payload), 1), (other, records(b"x"), 1)])[1]
        await store.wait(ticket)
    return made


@pytest.mark.parametrize("steps", ["d", "j", "dj", "jd", "djd", "ddjjdd", "djdjd", "jddjdddj"])
async def test_records_around_the_journal_survive_a_kill_beside_those_in_it(steps: str) -> None:
    disk = FakeDisk()
    store = await open_store(disk)
    made = await _appended(store, steps)
    for _ in range(2):  # another recovery changes nothing
        store, disk = await reopen(store, disk)
        log = store.namespace("logmq", ALWAYS, plain_names=True).logs["direct"]
        assert await read_all(log) == made
        assert not any(entry.unverified for entry in log.index_entries(0, log.end))
        assert sum(entry.records for entry in log.index_entries(0, log.end)) == len(made)


async def test_behind_bytes_that_the_file_would_not_take_nothing_goes_around_the_journal() -> None:
    disk = FakeDisk()
    store = await open_store(disk)
    namespace = store.namespace("logmq", ALWAYS, plain_names=True)
    log = namespace.create("direct", NONE)[0]
    other = namespace.create("other", ALWAYS)[0]
    full = True

    def before(operation: Operation) -> None:
        if full and operation.path == "logmq/direct.log" and operation.kind in ("create", "write"):
            raise OSError(errno.ENOSPC, "injected")

    disk.before = before
    await store.wait(store.append_all([(log, records(b"journaled"), 1), (other, records(b"x"), 1)])[1])
    full = False
    await store.wait(log.append(records(b"later"), 1)[1])
    assert await ask(log.read, 13, 100) == records(b"later")
    assert await read_all(log) == [b"journaled", b"later"]
    store, disk = await reopen(store, disk)
    log = store.namespace("logmq", ALWAYS, plain_names=True).logs["direct"]
    assert await read_all(log) == [b"journaled", b"later"]
