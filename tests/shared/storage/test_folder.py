"""What a store takes of the machine: few handles, and one folder for itself."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import attrs
import pytest

from shared.errors import (
    StoreFormat,
    StoreInUse,
)
from shared.storage.files import ROOM_LEAST
from shared.storage.log import Log
from shared.storage.store import Durability, Store
from shared.storage.tools.repair import repair
from tests.support.fake_disk import FakeDisk
from tests.support.stores import (
    ALWAYS,
    MODES,
    SMALL,
    append,
    filled,
    open_store,
    read_all,
    records,
    running,
)


@pytest.mark.parametrize("mode", MODES, ids=str)
async def test_a_commit_of_more_logs_than_handles_leaves_few_open(mode: Durability) -> None:
    most = 0

    class CountingDisk(FakeDisk):
        def open(self, path: str, *, create: bool = False, exclusive: bool = False) -> int:
            nonlocal most
            fd = super().open(path, create=create, exclusive=exclusive)
            most = max(most, len(self.open_paths))
            return fd

    disk = CountingDisk()
    store = await open_store(disk, attrs.evolve(SMALL, open_files_max=10))
    namespace = store.namespace("logmq", mode)
    logs = [namespace.create(f"t{n}")[0] for n in range(100)]
    for n in range(3):
        tickets = [log.append(records(b"%d" % n), 1)[1] for log in logs]
        await store.wait(tickets[0])
        assert await store.flush()
    assert most <= 2 * (10 + ROOM_LEAST) + 5
    assert len(disk.open_paths) <= 10 + 3, "handles, and the journal's segments"
    for log in logs:
        assert await read_all(log) == [b"0", b"1", b"2"]
    await store.close()
    assert disk.open_paths == []


async def test_a_folder_serves_one_store_at_a_time(tmp_path: Path) -> None:
    store = await open_store(folder=tmp_path)
    with pytest.raises(StoreInUse):
        await open_store(folder=tmp_path)
    await store.close()
    await (await open_store(folder=tmp_path)).close()


async def test_a_newer_format_is_refused_and_left_alone(tmp_path: Path) -> None:
    await (await open_store(folder=tmp_path)).close()
    (tmp_path / "FORMAT").write_text("brokers data folder, format 2\n")
    with pytest.raises(StoreFormat, match="format 2"):
        await open_store(folder=tmp_path)
    (tmp_path / "FORMAT").write_text("diary")
    (tmp_path / "CATALOG").unlink()
    with pytest.raises(StoreFormat, match="neither a good FORMAT nor a good CATALOG"):
        await open_store(folder=tmp_path)


@pytest.mark.parametrize("repaired", [False, True], ids=["started", "repaired first"])
@pytest.mark.parametrize("applied", [False, True], ids=["in the journal", "in the files"])
async def test_an_older_catalog_put_back_over_newer_files_hides_nothing_of_them(
    tmp_path: Path, applied: bool, repaired: bool
) -> None:
    store = await open_store(folder=tmp_path)
    await filled(store)
    await store.close()
    older = (tmp_path / "CATALOG").read_bytes()

    store = await open_store(folder=tmp_path)
    log = store.namespace("logmq", ALWAYS, plain_names=True).logs["orders"]
    await append(store, log, b"newer")
    made, _ = store.namespace("logmq", ALWAYS).create("made")
    await append(store, made, b"new")
    if applied:
        await store.close()
        for segment in (tmp_path / "journal").iterdir():
            segment.write_bytes(bytes(segment.stat().st_size))
    else:
        store.abandon()
    (tmp_path / "CATALOG").write_bytes(older)

    if repaired:
        assert repair(tmp_path).ok
    store = await open_store(folder=tmp_path)
    logs = store.namespace("logmq", ALWAYS, plain_names=True).logs
    assert (await read_all(logs["orders"]))[-1] == b"newer"
    assert await read_all(logs["made"]) == [b"new"]
    assert repaired or store.statistics().damaged_ranges, "it is told"
    store.abandon()


# -- many logs in one commit


LOGS = 80


@asynccontextmanager
async def many(disk: FakeDisk, open_files: int = 400) -> AsyncIterator[tuple[Store, list[Log]]]:
    store = await open_store(disk, attrs.evolve(SMALL, open_files_max=open_files))
    made = [store.namespace("logmq", ALWAYS).create(f"t{n}") for n in range(LOGS)]
    async with running(store):
        await store.wait(made[-1][1])
        yield store, [log for log, _ in made]


async def expect(logs: list[Log], *payloads: bytes) -> None:
    for n, log in enumerate(logs):
        assert await read_all(log) == [b"%d " % n + payload for payload in payloads]
