"""Reading what is not in memory."""

import trio

from shared.errors import (
    LogDeleted,
    StoreClosed,
)
from shared.storage.store import Ticket
from tests.support.fake_disk import FakeDisk
from tests.support.stores import (
    ALWAYS,
    ask,
    filled,
    open_store,
    payloads,
    read_all,
    records,
    running,
)


class ColdDisk(FakeDisk):
    """Nothing is ever in the page cache."""

    def read_nowait(self, fd: int, length: int, offset: int) -> bytes | None:
        return None


async def test_cold_reads_are_answered_later_and_the_same() -> None:
    disk = ColdDisk()
    store = await open_store(disk)
    log = await filled(store)
    async with running(store):
        assert len(await read_all(log)) == 300
        assert payloads(await ask(log.read, 1004, 1))[0][:6] == b"000001"
        early: list[object] = []
        log.read(200 * 1004, 10, early.append)
        assert early == []
        store.namespace("logmq", ALWAYS).delete("orders")
        await trio.testing.wait_all_tasks_blocked()
        assert isinstance(early[0], LogDeleted)
    assert store.statistics().cold_reads >= 3


async def test_what_is_appended_on_a_cold_answer_is_committed_without_anybodys_help() -> None:
    store = await open_store(ColdDisk())
    log = await filled(store)
    tickets: list[Ticket] = []
    async with running(store):
        log.is_record_start(200 * 1004, lambda _: tickets.append(log.append(records(b"later"), 1)[1]))
        assert not tickets
        await trio.testing.wait_all_tasks_blocked()
        assert tickets[0].done


async def test_a_cold_read_is_answered_when_the_store_stops() -> None:
    blocked = trio.Event()

    async def never(work: object, *args: object, **_: object) -> None:
        blocked.set()
        await trio.sleep_forever()

    store = await open_store(ColdDisk())
    log = await filled(store)
    found: list[object] = []
    store._background._in_thread = never
    async with running(store):
        log.read(0, 10, found.append)
        await blocked.wait()
    assert isinstance(found[0], StoreClosed)


async def test_a_bug_in_who_asked_does_not_end_the_store() -> None:
    store = await open_store(ColdDisk())
    log = await filled(store)

    def bug(_: object) -> None:
        raise ZeroDivisionError

    async with running(store):
        log.read(0, 10, bug)
        assert len(await ask(log.read, 0, 10)) == 1004
