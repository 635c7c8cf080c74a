"""Backups: whole, checked, sparse, and taken while the folder is written."""

import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import trio
from crc32c import crc32c

from shared.errors import StoreError, StoreFormat, StoreInUse
from shared.storage import format, syscalls
from shared.storage.format import MANIFEST_PATH
from shared.storage.lock import FolderLock
from shared.storage.settings import Durability
from shared.storage.store import Store
from shared.storage.tools.backup import (
    HOST_FILES,
    FileLine,
    Manifest,
    backup,
    backup_files,
    read_manifest,
    restore,
)
from shared.storage.tools.fsck import check
from tests.support.folders import add, contents, fill, flip, open_folder, tree

WORDS = {
    ("logmq", "orders"): [b"one", b"two"],
    ("logmq", "Mixed.Case"): [b""],
    ("dms", "%41 queue"): [b"x" * 9],
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    fill(tmp_path / "data", WORDS)
    return tmp_path / "data"


@pytest.mark.parametrize("clean", [True, False])
def test_a_backup_restored_serves_what_the_folder_did(tmp_path: Path, folder: Path, clean: bool) -> None:
    fill(folder, {("logmq", "orders"): [b"three"]}, clean=clean)
    made = backup(folder, tmp_path / "backup", now_ms=5)
    assert made.check.ok
    put_back = restore(tmp_path / "backup", tmp_path / "restored")
    assert put_back.check.ok
    assert put_back.bytes == made.bytes > 0
    wanted = {**WORDS, ("logmq", "orders"): [b"one", b"two", b"three"]}
    assert contents(tmp_path / "restored") == wanted == contents(folder)


@pytest.mark.parametrize("live", [False, True])
async def test_what_the_host_keeps_beside_its_folders_is_in_it(
    tmp_path: Path, folder: Path, live: bool
) -> None:
    (name,) = HOST_FILES
    (folder / name).write_bytes(b"[1]")
    (folder / "users.toml").write_bytes(b"secret")
    if live:
        store = await open_folder(folder)
        async with trio.open_nursery() as nursery:
            await nursery.start(store.run)
            await backup_files(store, folder, tmp_path / "backup", now_ms=5)
            nursery.cancel_scope.cancel()
        await store.close()
    else:
        backup(folder, tmp_path / "backup", now_ms=5)
    put_back = restore(tmp_path / "backup", tmp_path / "restored")
    assert put_back.check.ok
    assert (tmp_path / "restored" / name).read_bytes() == b"[1]"
    assert not (tmp_path / "restored" / "users.toml").exists()


def test_a_backup_is_its_owners_alone(tmp_path: Path, folder: Path) -> None:
    backup(folder, tmp_path / "backup", now_ms=5)
    for path in (tmp_path / "backup").rglob("*"):
        assert path.stat().st_mode & 0o077 == 0


def test_a_target_that_holds_something_is_left_alone(tmp_path: Path, folder: Path) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine").write_text("mine")
    with pytest.raises(StoreError, match="not empty"):
        backup(folder, tmp_path / "full", now_ms=5)
    backup(folder, tmp_path / "backup", now_ms=5)
    with pytest.raises(StoreError, match="not empty"):
        restore(tmp_path / "backup", tmp_path / "full")
    with pytest.raises(StoreError, match="not empty"):
        restore(tmp_path / "backup", folder)
    assert tree(tmp_path / "full") == {"mine": b"mine"}
    (tmp_path / "empty").mkdir()
    restore(tmp_path / "backup", tmp_path / "empty")


def test_what_a_file_system_has_at_the_top_of_a_volume_is_no_part_of_a_folder(
    tmp_path: Path, folder: Path
) -> None:
    for volume in folder, tmp_path / "backup", tmp_path / "new":
        (volume / "lost+found").mkdir(parents=True)
        (volume / "lost+found" / "orders.log").write_bytes(b"of another")
    backup(folder, tmp_path / "backup", now_ms=5)
    assert "lost+found" not in (tmp_path / "backup" / MANIFEST_PATH).read_text()
    restore(tmp_path / "backup", tmp_path / "new")
    assert check(tmp_path / "new").findings == ()
    shutil.rmtree(tmp_path / "new" / "lost+found")
    assert contents(tmp_path / "new") == WORDS


def test_what_cannot_be_backed_up_leaves_no_target(tmp_path: Path, folder: Path) -> None:
    target = tmp_path / "backup"
    (tmp_path / "other").mkdir()
    with pytest.raises(StoreFormat, match="is not a data folder"):
        backup(tmp_path / "other", target, now_ms=5)
    with pytest.raises(FileNotFoundError):
        backup(tmp_path / "nowhere", target, now_ms=5)
    with FolderLock.take(folder), pytest.raises(StoreInUse):
        backup(folder, target, now_ms=5)
    (folder / "FORMAT").write_bytes(b"brokers-storage 999\n")
    with pytest.raises(StoreFormat):
        backup(folder, target, now_ms=5)
    assert sorted(path.name for path in tmp_path.iterdir()) == [folder.name, "other"]
    assert list((tmp_path / "other").iterdir()) == []


def test_a_backup_inside_of_the_folder_is_refused(folder: Path) -> None:
    with pytest.raises(StoreError, match="inside"):
        backup(folder, folder / "backup", now_ms=5)
    (folder.parent / "link").symlink_to(folder)
    before = tree(folder)
    for source, target in ((folder, "link/backup"), (folder.parent / "link", f"{folder.name}/backup")):
        with pytest.raises(StoreError, match="inside"):
            backup(source, folder.parent / target, now_ms=5)
    assert tree(folder) == before


def test_what_is_not_a_whole_backup_is_not_restored(tmp_path: Path, folder: Path) -> None:
    with pytest.raises(StoreError, match="not a backup"):
        restore(folder, tmp_path / "restored")
    backup(folder, tmp_path / "backup", now_ms=5)
    flip(tmp_path / "backup" / "BACKUP", 77)
    with pytest.raises(StoreError, match="damaged"):
        restore(tmp_path / "backup", tmp_path / "restored")
    assert not (tmp_path / "restored").exists()


_FILES = ["logmq/orders.log", "logmq/orders.idx", "CATALOG"]


@pytest.mark.parametrize("name", _FILES)
def test_a_strict_restore_stops_at_a_file_that_changed_since(tmp_path: Path, folder: Path, name: str) -> None:
    backup(folder, tmp_path / "backup", now_ms=5)
    flip(tmp_path / "backup" / name, 20)
    with pytest.raises(StoreError, match=f"{name} is not as it was"):
        restore(tmp_path / "backup", tmp_path / "restored", strict=True)
    assert not (tmp_path / "restored" / "FORMAT").exists(), "no broker takes it"


def _remove(path: Path) -> None:
    path.unlink()


def _shorten(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 1)


def _change(path: Path) -> None:
    flip(path, path.stat().st_size - 1)


@pytest.mark.parametrize("name", [*_FILES, "FORMAT"])
@pytest.mark.parametrize("damage", [_remove, _shorten, _change])
def test_one_damaged_file_costs_its_own_range_and_the_rest_of_a_backup_is_restored(
    tmp_path: Path, folder: Path, name: str, damage: Callable[[Path], None]
) -> None:
    made = tmp_path / "backup"
    backup(folder, made, now_ms=5)
    damage(made / name)
    report = restore(made, tmp_path / "restored")
    found = {"_remove": "is gone", "_shorten": "has .* of the .* bytes", "_change": "is not as it was"}
    if name == "FORMAT":
        assert report.changed == (), "its text is known"
    else:
        (line,) = report.changed
        assert re.match(f"{made}/{name} {found[damage.__name__]}", line)
    if name == "logmq/orders.log":
        assert {finding.path for finding in report.check.findings} == {name}
    else:
        assert contents(tmp_path / "restored") == WORDS


def test_a_manifest_cannot_lead_out_of_the_backup(tmp_path: Path, folder: Path) -> None:
    backup(folder, tmp_path / "backup", now_ms=5)
    for path in ("../data/FORMAT", "/etc/passwd", "a//b"):
        (tmp_path / "backup" / "BACKUP").write_bytes(Manifest(5, False, [FileLine(path, 0, 1, 0)]).pack())
        with pytest.raises(StoreError, match="outside"):
            restore(tmp_path / "backup", tmp_path / "restored")


def test_neither_users_nor_the_admin_ports_token_are_in_a_backup_or_come_out_of_one(
    tmp_path: Path, folder: Path
) -> None:
    secrets = ("users.toml", "admin.token", "brokers.toml")
    for name in secrets:
        (folder / name).write_text("mine")
    backup(folder, tmp_path / "backup", now_ms=5)
    assert not {*secrets} & tree(tmp_path / "backup").keys()
    found = read_manifest(tmp_path / "backup")
    for name in secrets:
        (tmp_path / "backup" / name).write_text("evil")
    forged = Manifest(5, False, [*found.files, *(FileLine(name, 0, 4, crc32c(b"evil")) for name in secrets)])
    (tmp_path / "backup" / MANIFEST_PATH).write_bytes(forged.pack())
    assert restore(tmp_path / "backup", tmp_path / "restored").files == len(found.files)
    assert not {*secrets} & tree(tmp_path / "restored").keys()
    assert contents(tmp_path / "restored") == WORDS


HEAD = {"backup": 1, "made_ms": 5, "live": False}
LINE = {"path": "logmq/orders.log", "start": 0, "end": 1, "crc32c": 0}


@pytest.mark.parametrize(
    "lines",
    [
        [],
        [5],
        [{**HEAD, "backup": "1"}],
        [{**HEAD, "made_ms": None}],
        [HEAD, 5],
        [HEAD, [LINE]],
        [HEAD, {**LINE, "path": 5}],
        [HEAD, {**LINE, "path": "logmq/\0"}],
        [HEAD, {**LINE, "path": "logmq/\ud800"}],
        [HEAD, {**LINE, "start": "0"}],
        [HEAD, {**LINE, "start": -1}],
        [HEAD, {**LINE, "start": 2}],
        [HEAD, {**LINE, "end": 1.5}],
        [HEAD, {**LINE, "end": 1 << 70}],
        [HEAD, LINE, LINE],
        [HEAD, {"path": "logmq/orders.log"}],
    ],
)
def test_a_manifest_that_is_malformed_is_said_to_be_damaged(
    tmp_path: Path, folder: Path, lines: list[Any]
) -> None:
    backup(folder, tmp_path / "backup", now_ms=5)
    (tmp_path / "backup" / MANIFEST_PATH).write_bytes(format.pack_lines(lines))
    with pytest.raises(StoreFormat, match="is damaged"):
        restore(tmp_path / "backup", tmp_path / "restored")


def test_a_manifest_that_claims_more_than_a_file_has_is_refused(tmp_path: Path, folder: Path) -> None:
    backup(folder, tmp_path / "backup", now_ms=5)
    found = read_manifest(tmp_path / "backup")
    longer = [line._replace(end=1 << 50) for line in found.files]
    (tmp_path / "backup" / MANIFEST_PATH).write_bytes(Manifest(5, False, longer).pack())
    with pytest.raises(StoreError, match=f"of the {1 << 50} bytes"):
        restore(tmp_path / "backup", tmp_path / "restored", strict=True)


def test_damage_is_copied_and_told(tmp_path: Path, folder: Path) -> None:
    flip(folder / "logmq" / "orders.log", 40)
    made = backup(folder, tmp_path / "backup", now_ms=5)
    assert [finding.path for finding in made.check.findings] == ["logmq/orders.log"]
    assert not made.check.ok
    assert (tmp_path / "backup/logmq/orders.log").read_bytes() == (folder / "logmq/orders.log").read_bytes()


async def test_a_served_folder_is_not_copied_behind_the_brokers_back(tmp_path: Path) -> None:
    store = await open_folder(tmp_path / "data")
    with pytest.raises(StoreInUse):
        backup(tmp_path / "data", tmp_path / "backup", now_ms=5)
    store.abandon()


async def _live(store: Store, tmp_path: Path) -> None:
    report = await backup_files(store, tmp_path / "data", tmp_path / "backup", now_ms=5)
    assert report.check.findings == ()


async def test_no_broker_takes_a_folder_that_was_left_half_made(tmp_path: Path) -> None:
    store = await open_folder(tmp_path / "data")
    add(store, "logmq", "orders", [b"one", b"two"])
    await _live(store, tmp_path)
    await store.close()
    flip(tmp_path / "backup" / "logmq" / "orders.log", 5)
    with pytest.raises(StoreError, match="not as it was"):
        restore(tmp_path / "backup", tmp_path / "restored", strict=True)
    with pytest.raises(StoreFormat, match="cut short"):
        await open_folder(tmp_path / "restored")


async def test_a_live_backup_holds_what_was_visible_and_no_more(tmp_path: Path) -> None:
    store = await open_folder(tmp_path / "data")
    add(store, "logmq", "orders", [b"one", b"two"])
    add(store, "logmq", "Plain", [b"p"], Durability("none"))
    add(store, "logmq", "timed", [b"t"], Durability.parse("interval:50ms"))
    store.namespace("logmq", Durability("always")).create("empty")
    add(store, "logmq", "gone", [b"x"])
    store.namespace("logmq", Durability("always")).delete("gone")
    store.commit_pending()
    log = store.namespace("logmq", Durability("always")).logs["orders"]
    snapshot = store.snapshot

    async def then_more() -> object:
        taken = await snapshot()
        add(store, "logmq", "orders", [b"after the moment"])
        return taken

    store.snapshot = then_more  # type: ignore[method-assign, assignment]
    await _live(store, tmp_path)
    assert log.visible > 14
    await store.close()
    kept = await trio.to_thread.run_sync(contents, tmp_path / "backup")
    assert kept == {
        ("logmq", "orders"): [b"one", b"two"],
        ("logmq", "Plain"): [b"p"],
        ("logmq", "timed"): [b"t"],
        ("logmq", "empty"): [],
    }


async def test_a_log_that_is_deleted_and_made_again_meanwhile_is_not_mixed_up(tmp_path: Path) -> None:
    store = await open_folder(tmp_path / "data")
    space = store.namespace("logmq", Durability("always"))
    add(store, "logmq", "a", [b"old"])
    add(store, "logmq", "b", [b"other"])
    snapshot = store.snapshot

    async def then_replaced() -> object:
        taken = await snapshot()
        space.delete("a")
        add(store, "logmq", "a", [b"new life"])
        return taken

    store.snapshot = then_replaced  # type: ignore[method-assign, assignment]
    await _live(store, tmp_path)
    await store.close()
    assert await trio.to_thread.run_sync(contents, tmp_path / "backup") == {("logmq", "b"): [b"other"]}


async def test_a_log_whose_deletion_is_asked_for_and_not_durable_is_in_the_backup(tmp_path: Path) -> None:
    store = await open_folder(tmp_path / "data")
    add(store, "logmq", "a", [b"here"])
    snapshot = store.snapshot

    async def then_asked() -> object:
        taken = await snapshot()
        store.namespace("logmq", Durability("always")).delete("a")  # the commit may fail, and it stays
        return taken

    store.snapshot = then_asked  # type: ignore[method-assign, assignment]
    await _live(store, tmp_path)
    await store.close()
    assert await trio.to_thread.run_sync(contents, tmp_path / "backup") == {("logmq", "a"): [b"here"]}


@pytest.mark.parametrize("kept", [4, 3], ids=["whole index entries", "half of an index entry"])
async def test_what_retention_dropped_stays_a_hole_and_offsets_stay(tmp_path: Path, kept: int) -> None:
    store = await open_folder(tmp_path / "data")
    for number in range(40):
        add(store, "logmq", "long", [b"%4d" % number * 8192])  # 32 KiB each
    log = store.namespace("logmq", Durability("always")).logs["long"]
    first = (40 - kept) * (32768 + 4)
    log.drop_below(first)
    store.commit_pending()
    await store.checkpoint()
    await store.retain()
    punched = (tmp_path / "data/logmq/long.log").stat().st_blocks * 512 < first
    await _live(store, tmp_path)
    await store.close()
    made = backup(tmp_path / "data", tmp_path / "second", now_ms=5)
    assert made.check.findings == ()
    for folder in (tmp_path / "backup", tmp_path / "second"):
        copy = folder / "logmq/long.log"
        assert copy.stat().st_size == 40 * (32768 + 4)
        if punched:
            assert copy.stat().st_blocks * 512 < 8 * 32768
        restored = tmp_path / f"restored {folder.name}"
        report = restore(folder, restored).check
        assert (report.findings, report.records) == ((), kept)
        held = await trio.to_thread.run_sync(contents, restored)
        assert held["logmq", "long"] == [b"%4d" % number * 8192 for number in range(40 - kept, 40)]


async def test_a_read_only_store_can_still_be_backed_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = await open_folder(tmp_path / "data")
    add(store, "logmq", "orders", [b"safe"])

    def fails(fd: int) -> None:
        raise OSError(5, "the disk is dying")

    with monkeypatch.context() as patch:
        patch.setattr(syscalls, "sync_data", fails)
        add(store, "logmq", "orders", [b"lost"])
    assert store.read_only is not None
    await _live(store, tmp_path)
    store.abandon()
    assert await trio.to_thread.run_sync(contents, tmp_path / "backup") == {("logmq", "orders"): [b"safe"]}
