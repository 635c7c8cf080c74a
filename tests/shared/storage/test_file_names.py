"""Files of logs that are removed, replaced or cut while the store has them open."""

import errno
from collections.abc import Callable
from pathlib import Path

import attrs
import pytest
import trio
from structlog.testing import capture_logs
from trio.testing import MockClock

from shared.errors import CorruptRecord
from shared.storage.log import Log
from shared.storage.settings import Durability
from shared.storage.store import Store
from tests.support.commits import fail
from tests.support.fake_disk import Operation
from tests.support.stores import (
    ALWAYS,
    INTERVAL,
    NONE,
    SMALL,
    append,
    ask,
    fresh_store,
    open_store,
    read_all,
    reopen,
    running,
)

ROOMY = attrs.evolve(SMALL, segment_bytes=1 << 20)
FEW = attrs.evolve(ROOMY, open_files_max=1)


def remove(path: Path) -> None:
    path.unlink()


def move(path: Path) -> None:
    path.rename(path.with_suffix(".moved"))


def replace(path: Path) -> None:
    other = path.with_suffix(".other")
    other.write_bytes(b"somebody else's")
    other.rename(path)


async def log_with(store: Store, mode: Durability, *payloads: bytes) -> Log:
    """Its files have these; the catalog does not know of them."""
    log, ticket = store.namespace("logmq", ALWAYS).create("log", mode)
    await store.wait(ticket)
    for payload in payloads:
        await append(store, log, payload)
    await store.flush()
    return log


@pytest.mark.parametrize("ending", [".log", ".idx"])
@pytest.mark.parametrize("how", [remove, move, replace])
@pytest.mark.parametrize("mode", [ALWAYS, INTERVAL, NONE], ids=str)
async def test_a_file_that_lost_its_name_is_written_anew_before_it_is_trusted(
    tmp_path: Path, mode: Durability, how: Callable[[Path], None], ending: str
) -> None:
    store = await open_store(settings=ROOMY, folder=tmp_path)
    log = await log_with(store, mode, b"before", b"x" * 100_000)
    path = tmp_path / "logmq" / f"log{ending}"
    how(path)
    await append(store, log, b"behind it")
    with capture_logs() as said:
        await store.keep_names()
    assert [(line["path"], line["log_level"]) for line in said] == [(f"logmq/log{ending}", "error")]
    assert store.statistics().restored_files == 1
    await append(store, log, b"later")
    whole = [b"before", b"x" * 100_000, b"behind it", b"later"]
    assert await read_all(log) == whole
    store.abandon()  # the process dies
    store = await open_store(settings=ROOMY, folder=tmp_path)
    log = store.namespace("logmq", ALWAYS).logs["log"]
    assert await read_all(log) == whole
    assert store.statistics().damaged_ranges == 0
    how(path)
    await append(store, log, b"last")
    await store.close()
    store = await open_store(settings=ROOMY, folder=tmp_path)
    assert await read_all(store.namespace("logmq", ALWAYS).logs["log"]) == [*whole, b"last"]
    if how is replace:
        assert (tmp_path / "logmq" / f"log{ending}.stray-{log.id}").read_bytes() == b"somebody else's"
    await store.close()


async def test_the_running_store_looks_each_second(autojump_clock: MockClock) -> None:
    disk, store = await fresh_store(ROOMY)
    log = await log_with(store, ALWAYS, b"before")
    async with running(store):
        disk.unlink("logmq/log.log")
        await append(store, log, b"later")
        await trio.sleep(1.5)
        assert store.statistics().restored_files == 1
        assert "logmq/log.log" in disk.contents()


async def test_a_checkpoint_does_not_vouch_for_a_file_without_a_name() -> None:
    disk, store = await fresh_store(ROOMY)
    log = await log_with(store, ALWAYS, b"before")
    assert await store.checkpoint()
    await append(store, log, b"later")
    disk.unlink("logmq/log.log")
    assert not await store.checkpoint()
    store, disk = await reopen(store, disk, ROOMY)
    log = store.namespace("logmq", ALWAYS).logs["log"]
    assert await ask(log.read, 10, 100) == b"\0\0\0\x05later", "the journal still had it"
    assert isinstance(await ask(log.read, 0, 100), CorruptRecord)


async def test_while_a_file_cannot_be_written_anew_the_journal_keeps_what_comes() -> None:
    disk, store = await fresh_store(ROOMY)
    logs = [await log_with(store, ALWAYS, b"before")]
    disk.unlink(logs[0].file.path)
    await append(store, logs[0], b"later")
    fail(disk, errno.ENOSPC, lambda operation: operation.path.endswith(".new"))
    with capture_logs() as said:
        for _ in range(3):
            await store.keep_names()
    assert [line["event"].partition(":")[0][-12:] for line in said] == ["written anew"], "once"
    assert store.statistics().unapplied_logs == 1
    for log in logs:
        await append(store, log, b"last")
        assert await read_all(log) == [b"before", b"later", b"last"]
    assert not await store.checkpoint()
    killed = await open_store(disk.kill(), ROOMY)
    for log in logs:
        again = killed.namespace("logmq", ALWAYS).logs[log.name]
        assert await ask(again.read, log.visible - 8, 100) == b"\0\0\0\x04last"
    killed.abandon()
    disk.before = None
    await store.keep_names()
    assert await store.checkpoint()
    assert store.statistics().unapplied_logs == 0
    await store.close()
    store = await open_store(disk, ROOMY)
    for log in logs:
        again = store.namespace("logmq", ALWAYS).logs[log.name]
        assert await read_all(again) == [b"before", b"later", b"last"]


async def test_of_a_file_that_was_closed_when_it_was_removed_the_loss_is_named() -> None:
    disk, store = await fresh_store(FEW)
    log = await log_with(store, ALWAYS, b"before")
    await log_with_name(store, "other")
    assert log.file.fd < 0
    disk.unlink("logmq/log.log")
    with capture_logs() as said:
        await append(store, log, b"later")
        await store.flush()
    assert [(line["path"], line["offset"], line["length"]) for line in said] == [("logmq/log.log", 0, 10)]
    assert await ask(log.read, 10, 100) == b"\0\0\0\x05later"
    await store.close()
    store = await open_store(disk, FEW)
    log = store.namespace("logmq", ALWAYS).logs["log"]
    assert await ask(log.read, 10, 100) == b"\0\0\0\x05later"
    assert isinstance(await ask(log.read, 0, 100), CorruptRecord)


async def log_with_name(store: Store, name: str) -> None:
    log, _ = store.namespace("logmq", ALWAYS).create(name)
    await append(store, log, b"x")
    await store.flush()


@pytest.mark.parametrize("mode", [ALWAYS, NONE], ids=str)
async def test_an_index_that_was_closed_when_it_was_removed_is_made_anew_from_its_log(
    mode: Durability,
) -> None:
    disk, store = await fresh_store(FEW)
    log = await log_with(store, mode, *(b"%d" % number + b"x" * 70_000 for number in range(5)))
    await log_with_name(store, "other")
    assert log.index_file.fd < 0
    disk.unlink("logmq/log.idx")
    await append(store, log, b"later")
    await store.flush()
    whole = await read_all(log)
    assert (len(whole), whole[-1]) == (6, b"later")
    store, _ = await reopen(store, disk, FEW)
    assert await read_all(store.namespace("logmq", ALWAYS).logs["log"]) == whole


async def test_a_log_file_that_was_cut_is_reported() -> None:
    disk, store = await fresh_store(ROOMY)
    log = await log_with(store, ALWAYS, b"x" * 1000)
    disk.truncate(disk.open("logmq/log.log"), 100)
    await append(store, log, b"later")
    with capture_logs() as said:
        await store.keep_names()
    assert [(line["path"], line["offset"]) for line in said if line["log_level"] == "error"] == [
        ("logmq/log.log", 100)
    ]


async def test_a_log_that_is_deleted_while_its_file_has_no_name_leaves_its_successor_alone() -> None:
    disk, store = await fresh_store(ROOMY)
    log = await log_with(store, ALWAYS, b"before")
    disk.unlink("logmq/log.log")
    fail(disk, errno.ENOSPC, lambda operation: operation.path.endswith(".new"))
    await append(store, log, b"later")
    await store.keep_names()
    store.namespace("logmq", ALWAYS).delete("log")
    log = await log_with(store, ALWAYS, b"another")
    disk.before = None
    await store.keep_names()
    assert store.statistics().restored_files == 0
    await store.close()
    store = await open_store(disk, ROOMY)
    assert await read_all(store.namespace("logmq", ALWAYS).logs["log"]) == [b"another"]


async def test_what_retention_has_freed_is_not_written_anew() -> None:
    disk, store = await fresh_store(ROOMY)
    log = await log_with(store, ALWAYS, *(bytes([number]) * (1 << 20) for number in range(4)))
    log.drop_below(3 * ((1 << 20) + 4))
    store.commit_pending()
    assert await store.checkpoint()
    await store.retain()
    disk.unlink("logmq/log.log")
    await append(store, log, b"later")
    written = []

    def before(operation: Operation) -> None:
        if operation.kind == "write" and operation.path.endswith(".new"):
            written.append(operation.length)

    disk.before = before
    await store.keep_names()
    assert store.statistics().restored_files == 1
    assert sum(written) < 3 << 20
    assert await read_all(log) == [b"\3" * (1 << 20), b"later"]
