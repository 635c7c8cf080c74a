"""Files that are removed while the store has them open."""

import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio
from structlog.testing import capture_logs
from trio.testing import MockClock

from shared.errors import StoreReadOnly
from shared.storage.files import FREED_BYTES
from shared.storage.lock import LOCK_NAME
from shared.storage.os_disk import OsDisk
from shared.storage.shipping import Ships
from shared.storage.store import Store
from shared.units import KIB, MIB
from tests.support.commits import logs_of
from tests.support.fake_disk import FakeDisk
from tests.support.stores import (
    ALWAYS,
    SMALL,
    HandClock,
    append,
    fresh_store,
    open_store,
    read_all,
    records,
    running,
)


async def test_a_removed_journal_is_told_once_and_nothing_more_is_accepted(autojump_clock: MockClock) -> None:
    disk, store = await fresh_store()
    (log,) = await logs_of(store, ALWAYS)
    async with running(store):
        await append(store, log, b"kept")
        await trio.sleep(2.5)
        assert store.read_only is None
        (segment, *_) = (path for path in disk.contents() if path.startswith("journal/"))
        disk.unlink(segment)
        with capture_logs() as said:
            await trio.sleep(5)
        with pytest.raises(StoreReadOnly, match=f"is in no file .{segment} is gone."):
            log.append(records(b"late"), 1)
        assert await read_all(log) == [b"kept"]
        assert store.statistics().read_only
        assert [line["log_level"] for line in said] == ["critical"], "once"
        assert "save what is still served" in said[0]["event"]
    with pytest.raises(StoreReadOnly, match="in no file"):
        await store.close()


@pytest.mark.parametrize("again", [False, True], ids=["removed", "and made again"])
async def test_a_folder_that_was_removed_is_told_at_the_stop_too(tmp_path: Path, again: bool) -> None:
    folder = tmp_path / "data"
    store = await open_store(folder=folder)
    (log,) = await logs_of(store, ALWAYS)
    await append(store, log, b"x")
    shutil.rmtree(folder)
    if again:
        await (await open_store(folder=folder)).close()
        before = sorted(folder.rglob("*"))
    with pytest.raises(StoreReadOnly, match="what was written since then is in no file"):
        await store.close()
    if again:
        assert sorted(folder.rglob("*")) == before, "another server's files are left alone"


async def test_a_removed_lock_is_told_since_another_server_may_have_the_folder(tmp_path: Path) -> None:
    store = await open_store(folder=tmp_path)
    (tmp_path / LOCK_NAME).unlink()
    with pytest.raises(StoreReadOnly, match="another server may be writing"):
        await store.close()


async def test_a_folder_that_was_moved_is_served_on(tmp_path: Path) -> None:
    store = await open_store(folder=tmp_path / "data")
    (log,) = await logs_of(store, ALWAYS)
    (tmp_path / "data").rename(tmp_path / "moved")
    await append(store, log, b"x")
    await store.close()
    store = await open_store(folder=tmp_path / "moved")
    await store.close()


async def test_a_journal_that_rolls_and_is_freed_is_not_gone(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shared.storage.watch.LOOK_SECONDS", 0.001)
    _, store = await fresh_store()
    (log,) = await logs_of(store, ALWAYS)
    async with running(store):
        for number in range(60):
            await append(store, log, bytes([number]) * 20_000)
            await trio.sleep(0.001)
            if number % 10 == 0:
                await store.checkpoint()
    await store.close()
    assert store.statistics().journal_batches > 50


def test_a_file_is_gone_where_its_path_leads_elsewhere_or_nowhere(tmp_path: Path) -> None:
    with OsDisk(tmp_path) as disk:
        disk.make_folder("journal")
        fd = disk.open("journal/a", create=True)
        assert not disk.is_gone("journal/a", fd)
        disk.rename("journal/a", "journal/b")
        assert disk.is_gone("journal/a", fd)
        assert not disk.is_gone("journal/b", fd)
        disk.unlink("journal/b")
        disk.close(disk.open("journal/b", create=True))
        assert disk.is_gone("journal/b", fd)
        shutil.rmtree(tmp_path / "journal")
        assert disk.is_gone("journal/b", fd)
        (tmp_path / "journal").write_text("a file in its place")
        assert disk.is_gone("journal/b", fd)
        disk.close(fd)
        assert not disk.is_gone("journal/b", fd), "a closed descriptor tells nothing"


async def test_a_catalog_that_is_removed_is_written_anew(autojump_clock: MockClock) -> None:
    disk, store = await fresh_store()
    await logs_of(store, ALWAYS)
    async with running(store):
        disk.unlink("CATALOG")
        with capture_logs() as said:
            await trio.sleep(3)
    assert disk.contents()["CATALOG"]
    assert [line["path"] for line in said] == ["CATALOG"]


SHIPS = Ships(lambda disk: None, lambda namespace, name: False)


@pytest.mark.parametrize("then", ["open", "closed before", "shipped", "not shipped"])
async def test_the_blocks_of_a_deleted_log_are_freed_in_a_thread(
    autojump_clock: MockClock, tmp_path: Path, then: str
) -> None:
    """Whoever closes the last handle of a large file that has no name frees its blocks, and waits."""
    closed: list[bool] = []
    in_thread = False

    async def thread(work: Callable[..., Any], *args: Any, **_: Any) -> Any:
        nonlocal in_thread
        await trio.lowlevel.checkpoint()
        in_thread = True
        try:
            return work(*args)
        finally:
            in_thread = False

    class Disk(FakeDisk):
        def close(self, fd: int) -> None:
            size, before = self.size(fd), Counter(self.open_paths)
            super().close(fd)
            (path,) = before - Counter(self.open_paths)
            if size > FREED_BYTES and path.startswith("logmq/") and before[path] == 1:
                closed.append(in_thread)

    ships = SHIPS if then in ("shipped", "not shipped") else None
    files_max = 1 if then == "closed before" else 64
    settings = attrs.evolve(SMALL, reference_bytes=16 * KIB, open_files_max=files_max)
    store = await Store.open(
        tmp_path, settings, disk=Disk(), clock=HandClock(), in_thread=thread, ships=ships
    )
    log, other = await logs_of(store, ALWAYS, ALWAYS)
    async with running(store):
        for _ in range(3):
            await append(store, log, bytes(MIB))
        assert await store.checkpoint(), "and no other one is under way"
        await append(store, other, bytes(MIB // 2))
        assert (log.file.fd < 0) == (then == "closed before")
        closed.clear()
        await store.wait(store.namespace("logmq", ALWAYS).delete(log.name))
        await trio.sleep(0.1)
        if then == "shipped":
            assert closed == []
            assert store.shipping is not None
            store.shipping.advance(store.shipping.synced_lsn, restorable=True)
        await trio.sleep(0.1)
        assert closed == ([] if then == "not shipped" else [True])
    await store.close()
    assert closed == [True]
