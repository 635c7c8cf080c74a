"""A commit beside the loop, of more logs than are written one by one: the same promises, a log at a time."""

import errno
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import attrs
import pytest

from shared.errors import LogDeleted
from shared.storage.log import Log
from shared.storage.store import Store
from tests.support.fake_disk import FakeDisk, Operation
from tests.support.stores import ALWAYS, SMALL, open_store, read_all, records, reopen, running

LOGS = 80


@asynccontextmanager
async def many(disk: FakeDisk, open_files: int = 400) -> AsyncIterator[tuple[Store, list[Log]]]:
    store = await open_store(disk, attrs.evolve(SMALL, open_files_max=open_files))
    made = [store.namespace("logmq", ALWAYS).create(f"t{n}") for n in range(LOGS)]
    async with running(store):
        await store.wait(made[-1][1])
        yield store, [log for log, _ in made]


async def append_to_each(store: Store, logs: list[Log], payload: bytes) -> None:
    tickets = [log.append(records(b"%d " % n + payload), 1)[1] for n, log in enumerate(logs)]
    for ticket in tickets:
        await store.wait(ticket)


async def expect(logs: list[Log], *payloads: bytes) -> None:
    for n, log in enumerate(logs):
        assert await read_all(log) == [b"%d " % n + payload for payload in payloads]


@pytest.mark.parametrize("open_files", [400, 4])
async def test_each_log_has_its_own_bytes_and_has_them_after_a_kill(open_files: int) -> None:
    disk = FakeDisk()
    async with many(disk, open_files) as (store, logs):
        await append_to_each(store, logs, b"first")
        await append_to_each(store, logs, b"second")
        await expect(logs, b"first", b"second")
    again, _ = await reopen(store, disk)
    found = again.namespace("logmq", ALWAYS).logs
    await expect([found[log.name] for log in logs], b"first", b"second")


async def test_two_rounds_in_one_commit_land_one_behind_the_other() -> None:
    disk = FakeDisk()
    async with many(disk) as (store, logs):
        large = bytes(store._committer._batch(0).room // LOGS)
        for payload in (b"first" + large, b"second" + large):  # more than one round holds
            for n, log in enumerate(logs):
                log.append(records(b"%d " % n + payload), 1)
        assert len(store._committer._batches) > 1
        await append_to_each(store, logs, b"third")
        await expect(logs, b"first" + large, b"second" + large, b"third")


@pytest.mark.parametrize("short", [True, False])
async def test_a_file_that_takes_less_or_nothing_costs_its_own_log_alone(short: bool) -> None:
    disk = FakeDisk()
    async with many(disk) as (store, logs):
        await append_to_each(store, logs, b"first")

        def before(operation: Operation) -> int | None:
            if operation.kind == "write" and operation.path == "logmq/t7.log":
                if short:
                    return 1
                raise OSError(errno.EIO, "planted")
            return None

        disk.before = before
        await append_to_each(store, logs, b"second")
        await append_to_each(store, logs, b"third")
        assert store.statistics().unapplied_logs == (0 if short else 1)
        await expect(logs, b"first", b"second", b"third")
    disk.before = None
    again, _ = await reopen(store, disk)
    found = again.namespace("logmq", ALWAYS).logs
    await expect([found[log.name] for log in logs], b"first", b"second", b"third")


async def test_a_log_deleted_meanwhile_is_passed_over() -> None:
    disk = FakeDisk()
    async with many(disk) as (store, logs):
        await append_to_each(store, logs, b"first")
        for log in logs:
            log.append(records(b"last"), 1)
        store.namespace("logmq", ALWAYS).delete(logs[3].name)
        await append_to_each(store, logs[:3], b"second")
        with pytest.raises(LogDeleted):
            logs[3].append(records(b"more"), 1)
        assert (await read_all(logs[4]))[-1] == b"last"
