"""The archive's folder cut between any two file operations, by kill -9 and by power cuts, then recovered."""

import itertools
from collections.abc import Iterator
from pathlib import PurePosixPath

import pytest

from brokers.errors import Failure
from brokers.pipeline.archiving import folder as folders
from brokers.pipeline.archiving import names
from brokers.pipeline.archiving.folder import ArchiveFolder
from shared.storage import format
from tests.pipeline.archive.model import (
    ArchiveDisk,
    Archiver,
    added,
    check_done,
    check_readers,
    glob,
    write_fresh,
)
from tests.support.explore import sampled_states
from tests.support.fake_disk import Operation


class Cut(Exception):
    """The process dies here."""


def cut_at(disk: ArchiveDisk, number: int) -> None:
    def before(operation: Operation) -> None:
        if operation.number >= number:
            raise Cut

    disk.before = before


def with_two_parts(disk: ArchiveDisk) -> ArchiveFolder:
    """A folder with the records from 0 to 20 in two commits."""
    folder = ArchiveFolder(disk, "logmq")
    folder.recover()
    for at in (0, 10):
        folder.commit(added(folder, at, at + 10))
    return folder


def killed_everywhere(disk: ArchiveDisk) -> Iterator[tuple[ArchiveDisk, Archiver]]:
    """The machine after an archiver was killed before each of its operations, in turn."""
    for number in itertools.count():
        copy = disk.kill()
        cut_at(copy, number)
        archiver = Archiver(copy, run=1)
        try:
            archiver.go()
        except Cut:
            copy.before = None
            yield copy, archiver
        else:
            return


def check_and_finish(disk: ArchiveDisk, died: Archiver, run: int) -> None:
    try:
        check_readers(disk, died.acknowledged, died.attempted)
    except Failure:
        assert died.acknowledged == 0  # nothing was committed
    Archiver(disk, run=run).go()
    check_done(disk)


def test_killed_between_any_two_operations_it_ends_with_each_record_once() -> None:
    cuts = 0
    for disk, died in killed_everywhere(ArchiveDisk()):
        cuts += 1
        check_and_finish(disk, died, run=2)
    assert cuts > 150


def test_a_recovery_that_is_killed_is_recovered_from() -> None:
    for disk, died in itertools.islice(killed_everywhere(ArchiveDisk()), 0, None, 19):
        for number in range(0, 40, 5):
            copy = disk.kill()
            copy.before = None
            cut_at(copy, number)
            folder = ArchiveFolder(copy, "logmq")
            try:
                folder.recover()
            except Cut:
                pass
            copy.before = None
            check_and_finish(copy.kill(), died, run=3)


def test_after_a_power_cut_before_any_sync_it_ends_with_each_record_once() -> None:
    disk = ArchiveDisk()
    archiver = Archiver(disk, run=1)
    checked = 0

    def before(operation: Operation) -> None:
        nonlocal checked
        if operation.kind not in ("sync", "sync_folder"):
            return
        for machine in sampled_states(disk.power_cut(), seed=operation.number, runs=2):
            died = Archiver(machine, 1, archiver.acknowledged, archiver.attempted)
            check_and_finish(machine, died, run=2)
            checked += 1

    disk.before = before
    archiver.go()
    check_done(disk)
    assert checked > 150


@pytest.mark.parametrize("omitted", ["_sync_folders", "_move"])
def test_the_trial_of_power_cuts_finds_a_missing_sync(omitted: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ArchiveFolder, omitted, lambda self, *arguments: None)
    with pytest.raises((AssertionError, Failure, OSError)):
        test_after_a_power_cut_before_any_sync_it_ends_with_each_record_once()


def test_a_move_before_its_commit_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The judge itself: were files moved before the manifest is written, some cut would show it."""
    write_new = ArchiveDisk.write_new

    def write_late(files: ArchiveDisk, path: str, data: bytes) -> None:
        following = folders.manifests.unpack(data)
        for part in following.moves if following is not None else ():
            for folder in reversed(PurePosixPath(part.path).parents[:-1]):
                files.make_folder(str(folder))
            files.rename(part.fresh_path, part.path)
        write_new(files, path, data)

    monkeypatch.setattr(ArchiveDisk, "write_new", write_late)
    with pytest.raises((AssertionError, Failure)):
        test_killed_between_any_two_operations_it_ends_with_each_record_once()


def test_both_folders_of_a_move_are_synced_before_the_next_commit() -> None:
    """Either is enough where a rename is one change of the file system's, as on the fake disk."""
    disk = ArchiveDisk()
    open_folders: set[str] = set()
    moves = 0

    def before(operation: Operation) -> None:
        nonlocal moves
        folder = operation.path.rpartition("/")[0]
        if operation.kind == "rename":
            moves += 1
            open_folders.update((folder, f"{names.FRESH}/{folder}"))
        elif operation.kind == "sync_folder":
            open_folders.discard(operation.path)
        elif folder == names.MANIFESTS:
            assert not open_folders

    disk.before = before
    Archiver(disk, run=1).go()
    assert moves > 5


def test_a_committed_file_that_is_at_neither_place_is_damage() -> None:
    disk = ArchiveDisk()
    folder = ArchiveFolder(disk, "logmq")
    folder.recover()
    folder.commit(added(folder, 0, 10))
    disk.unlink(folder.manifest.moves[0].path)
    with pytest.raises(folders.ArchiveDamaged, match="was committed, and is not there"):
        ArchiveFolder(disk, "logmq").recover()


def test_a_second_archiver_that_slipped_past_the_lock_stops_at_its_first_commit() -> None:
    disk = ArchiveDisk()
    Archiver(disk, run=1).go()
    slow = ArchiveFolder(disk, "logmq")
    quick = ArchiveFolder(disk, "logmq")
    slow.recover()
    quick.recover()
    before = glob(disk)
    quick.commit(quick.manifest.advance((), 0))
    with pytest.raises(folders.ArchiveInUse):
        slow.commit(slow.manifest.advance((), 0))
    for _ in range(3):  # also when what it lost to is pruned already
        quick.commit(quick.manifest.advance((), 0))
    with pytest.raises(folders.ArchiveInUse):
        slow.commit(slow.manifest.advance((), 0))
    assert glob(disk) == before


def test_a_damaged_manifest_is_no_reason_to_archive_anything_twice() -> None:
    disk = ArchiveDisk()
    archiver = Archiver(disk, run=1)
    archiver.go()
    for version in range(archiver.acknowledged - 1, archiver.acknowledged + 1):
        disk.flip(names.manifest(version), 100)
    before = disk.contents()
    with pytest.raises(folders.ArchiveDamaged, match="newer than the newest manifest"):
        ArchiveFolder(disk, "logmq").recover()
    assert disk.contents() == before


def test_a_manifest_that_ends_where_a_committed_file_begins_is_an_old_one() -> None:
    disk = ArchiveDisk()
    folder = with_two_parts(disk)
    disk.flip(names.manifest(folder.manifest.version), 100)
    with pytest.raises(folders.ArchiveDamaged, match="newer than the newest manifest"):
        ArchiveFolder(disk, "logmq").recover()


def test_a_damaged_newest_manifest_is_set_aside_with_its_files_and_nothing_is_removed() -> None:
    disk = ArchiveDisk()
    folder = with_two_parts(disk)

    def before(operation: Operation) -> None:
        if operation.kind == "rename":  # it is committed, and its files are not at their places yet
            raise Cut

    disk.before = before
    with pytest.raises(Cut):
        folder.commit(added(folder, 20, 30))
    disk.before = None
    disk.flip(names.manifest(3), 100)
    contents = sorted(disk.contents().values())
    again = ArchiveFolder(disk, "logmq")
    again.recover()
    assert again.manifest.version == 2
    assert sorted(disk.contents().values()) == contents
    assert len(disk.names(names.damaged(3))) == 2
    again.commit(added(again, 20, 30, token="b"))
    ArchiveFolder(disk, "logmq").recover()


def test_a_recovery_leaves_nothing_that_was_not_committed() -> None:
    disk = ArchiveDisk()
    folder = ArchiveFolder(disk, "logmq")
    folder.recover()
    write_fresh(disk, "orders", 0, 10, "a")
    ArchiveFolder(disk, "logmq").recover()
    assert [path for path in disk.contents() if path.startswith(names.FRESH)] == []


def test_a_reader_that_is_overtaken_by_commits_looks_again() -> None:
    disk = ArchiveDisk()
    Archiver(disk, run=1).go()
    folder = ArchiveFolder(disk, "logmq")
    folder.recover()
    before = folder.manifest.version

    def overtake(operation: Operation) -> None:
        disk.before = None
        for _ in range(3):
            folder.commit(folder.manifest.advance((), 0))
        raise FileNotFoundError(operation.path)

    disk.before = overtake
    found = folders.newest(disk)
    assert found is not None
    assert found.version == before + 3


def test_an_archive_of_another_namespace_or_of_a_later_format_is_refused() -> None:
    disk = ArchiveDisk()
    archiver = Archiver(disk, run=1)
    archiver.go()
    with pytest.raises(Failure, match="has logs of logmq, not of dms"):
        ArchiveFolder(disk, "dms").recover()
    disk.write_new(names.manifest(99), format.pack_lines([{"archive": 2}]))
    with pytest.raises(folders.ArchiveDamaged, match="format 2"):
        ArchiveFolder(disk, "logmq").recover()
