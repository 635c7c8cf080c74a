"""Files that are removed while the store has them open."""

import shutil
from pathlib import Path

import pytest
import trio
from structlog.testing import capture_logs
from trio.testing import MockClock

from shared.errors import StoreReadOnly
from shared.storage.lock import LOCK_NAME
from shared.storage.os_disk import OsDisk
from tests.support.commits import logs_of
from tests.support.stores import ALWAYS, append, fresh_store, open_store, read_all, records, running


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
