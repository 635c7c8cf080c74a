"""Logs whose CREATE the journal has lost come back: absence is never proof, only a recorded delete
deletes."""

from pathlib import Path

import attrs
import pytest

from shared.errors import CorruptRecord
from shared.storage import catalog, replay
from shared.storage.disk import replace_file
from shared.storage.journal import segment_path
from shared.storage.settings import Durability
from shared.storage.store import Store
from shared.storage.tools.fsck import Severity, check, check_disk
from shared.storage.tools.repair import repair
from tests.support.fake_disk import FakeDisk
from tests.support.folders import contents, fill
from tests.support.stores import (
    ALWAYS,
    NONE,
    SMALL,
    append,
    ask,
    fresh_store,
    open_store,
    payloads,
    read_all,
)


async def killed(*, indexes: bool, mode: Durability = ALWAYS) -> FakeDisk:
    """`lost` is made, and gets its first record, in one batch; five more follow. `before` has more of
    them."""
    disk, store = await fresh_store(SMALL if indexes else attrs.evolve(SMALL, tail_log_bytes=0))
    namespace = store.namespace("logmq", ALWAYS)
    for name in ("before", "lost"):
        log, _ = namespace.create(name, mode)
        for number in range(6):
            await append(store, log, b"%s %d" % (name.encode(), number))
    if indexes:
        assert await store.flush()
    store.abandon()
    return disk.kill()


def damage_creation(disk: FakeDisk, name: str) -> None:
    """Turn a bit over in the batch that made the log."""
    found = catalog.read(disk)
    assert found is not None
    for each, payload in replay.read_payloads(
        disk, replay.scan(disk, found.journal_id, found.replay_lsn).batches
    ):
        if b'"name": "%s"' % name.encode() in bytes(payload) or b'"name":"%s"' % name.encode() in bytes(
            payload
        ):
            disk.flip(segment_path(each.segment.lsn), (each.position + 70) * 8)
            return
    raise AssertionError("no batch made it")


async def logs_of(disk: FakeDisk, namespace: str = "logmq") -> tuple[Store, dict[str, list[bytes]]]:
    store = await open_store(disk)
    logs = store.namespace(namespace, ALWAYS).logs
    return store, {name: await read_all(log) for name, log in logs.items()}


@pytest.mark.parametrize("mode", [ALWAYS, NONE], ids=str)
async def test_a_log_whose_creation_is_damaged_is_there_again_by_its_files(mode: Durability) -> None:
    disk = await killed(indexes=True, mode=mode)
    damage_creation(disk, "before")
    store, found = await logs_of(disk)
    assert found == {name: [b"%s %d" % (name.encode(), n) for n in range(6)] for name in ("before", "lost")}
    assert store.statistics().damaged_ranges == (mode is ALWAYS), "what was not synced may be a torn tail"
    store.abandon()
    store, again = await logs_of(disk.kill())
    assert again == found


async def test_without_an_index_a_file_is_known_by_what_the_journal_has_of_it() -> None:
    disk = await killed(indexes=False)
    damage_creation(disk, "before")
    store = await open_store(disk)
    log = store.namespace("logmq", ALWAYS).logs["before"]
    found: list[bytes] = []
    offset = 0
    while offset < log.visible:
        data = await ask(log.read, offset, 100)
        if isinstance(data, CorruptRecord):
            offset = log.lost_at(offset).end
        else:
            found += payloads(data)
            offset += len(data)
    assert found[-5:] == [b"before %d" % number for number in range(1, 6)]


async def test_without_files_its_records_are_recovered_under_a_name_of_their_own() -> None:
    disk = await killed(indexes=True)
    damage_creation(disk, "before")
    for suffix in ("log", "idx"):
        disk.unlink(f"logmq/before.{suffix}")
    store = await open_store(disk)
    assert list(store.namespace("logmq", ALWAYS).logs) == ["lost"]
    (log,) = store.namespace("recovered", ALWAYS).logs.values()
    assert log.name == f"log-{log.id}"
    assert isinstance(await ask(log.read, 0, 100), CorruptRecord), "and not the end of an empty log"
    start = log.lost_at(0).end
    assert payloads(await ask(log.read, start, 1000)) == [b"before %d" % number for number in range(1, 6)]


async def test_a_recorded_delete_deletes_even_where_the_creation_is_lost() -> None:
    disk, store = await fresh_store()
    namespace = store.namespace("logmq", ALWAYS)
    log, _ = namespace.create("gone")
    for number in range(3):
        await append(store, log, b"%d" % number)
    await store.wait(namespace.delete("gone"))
    other, _ = namespace.create("other")
    await append(store, other, b"x")
    store.abandon()
    disk = disk.kill()
    damage_creation(disk, "gone")
    store, found = await logs_of(disk)
    assert found == {"other": [b"x"]}
    assert not store.namespace("recovered", ALWAYS).logs


async def test_files_that_are_newer_than_a_copys_catalog_are_logs_again() -> None:
    disk, store = await fresh_store()
    store.namespace("logmq", ALWAYS)
    await store.close()
    before = disk.contents()["CATALOG"]
    store = await open_store(disk)
    log, _ = store.namespace("logmq", ALWAYS).create("orders")
    await append(store, log, b"a", b"b")
    await store.close()
    disk = disk.kill()
    replace_file(disk, catalog.PATH, before)
    store, found = await logs_of(disk)
    assert found == {"orders": [b"a", b"b"]}
    other, _ = store.namespace("logmq", ALWAYS).create("other")
    assert other.id > log.id


async def test_a_file_that_nobody_owns_is_never_removed_by_a_log_of_its_name() -> None:
    disk, store = await fresh_store()
    store.namespace("logmq", ALWAYS).create("first")
    store.commit_pending()
    await store.close()
    fd = disk.open("logmq/orders.log", create=True)
    disk.write(fd, b"somebody's", 0)
    store = await open_store(disk)
    store.namespace("logmq", ALWAYS).create("orders")
    store.commit_pending()
    store.abandon()
    disk = disk.kill()
    await open_store(disk)
    assert b"somebody's" in disk.contents().values()


async def test_what_an_index_cannot_vouch_for_after_a_crash_is_kept_beside() -> None:
    disk = await killed(indexes=True, mode=NONE)
    whole = disk.contents()["logmq/lost.log"]
    disk.unlink("logmq/lost.idx")
    await open_store(disk)
    assert whole in disk.contents().values()


def test_a_repair_finds_again_what_a_start_would(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    fill(folder, {("logmq", "old"): [b"x"]})
    before = (folder / "CATALOG").read_bytes()
    fill(folder, {("logmq", "young"): [b"y", b"z"]})
    (folder / "CATALOG").write_bytes(before)
    for segment in (folder / "journal").iterdir():
        segment.unlink()
    assert {each.path for each in check(folder).findings if each.severity is Severity.WARNING} == {
        "logmq/young.idx",
        "logmq/young.log",
    }
    assert repair(folder).ok
    assert contents(folder) == {("logmq", "old"): [b"x"], ("logmq", "young"): [b"y", b"z"]}


async def test_fsck_tells_of_a_log_whose_creation_is_lost() -> None:
    disk = await killed(indexes=True)
    damage_creation(disk, "before")
    texts = [each.text for each in check_disk(disk).findings if each.severity is Severity.DAMAGE]
    assert any("whose making is lost" in text for text in texts)
