"""What readers of an archive find, also while an archiver commits, and what is missing or double in it."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from brokers.errors import Failure
from brokers.pipeline import archive
from brokers.pipeline.archive import ArchiveFault, committed, faults
from brokers.pipeline.archiving.files import Files
from brokers.pipeline.archiving.folder import ArchiveFolder, final_files, opened
from brokers.pipeline.archiving.manifest import ArchivedSpan, ByteRange, Settlement
from brokers.pipeline.archiving.names import FileName
from tests.pipeline.archive.model import added, archived, identity, write_fresh
from tests.support.fake_disk import FakeDisk


@pytest.fixture
def folder() -> ArchiveFolder:
    """An archive of `orders`: of each of three days a file at its final place."""
    folder = ArchiveFolder(FakeDisk(), "logmq")
    folder.recover()
    for start in (0, 40, 80):
        folder.commit(added(folder, start, start + 40, direct_bytes=1))
    return folder


def test_a_reader_sees_each_record_once_though_files_are_settled_meanwhile(
    folder: ArchiveFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    for start in (120, 130):
        folder.commit(added(folder, start, start + 10, direct_bytes=1 << 30))
    before = folder.manifest
    monkeypatch.setattr(archive, "newest", lambda files: before)
    merged = write_fresh(folder.files, "orders", 120, 140, "b")
    folder.commit(before.settle([Settlement([merged], before.hot)], 0, kept_ms=1000))
    found = committed(folder.files)
    assert archived(folder.files, [*found.settled, *found.fresh]) == {"orders": list(range(0, 140, 10))}


def test_a_reader_finds_a_file_that_is_moved_while_it_looks(
    folder: ArchiveFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    following = added(folder, 120, 160, direct_bytes=1)
    monkeypatch.setattr(archive, "newest", lambda files: following)

    def overtaken(files: Files) -> Iterator[tuple[str, FileName]]:
        found = list(final_files(files))
        folder.commit(following)
        return iter(found)

    monkeypatch.setattr(archive, "final_files", overtaken)
    found = committed(folder.files)
    assert archived(folder.files, [*found.settled, *found.fresh]) == {"orders": list(range(0, 160, 10))}


def test_what_is_missing_or_double_is_told_where_it_is(folder: ArchiveFolder) -> None:
    def double(start: int, end: int) -> str:
        part = write_fresh(folder.files, "orders", start, end, "b")
        folder.files.rename(part.fresh_path, part.path)
        return part.path

    assert faults(folder.files) == []
    extra = double(50, 60)
    assert faults(folder.files) == [ArchiveFault("orders", "double", ByteRange(50, 60))]
    folder.files.unlink(extra)
    first, middle, last = (path for path, _ in final_files(folder.files))
    for path, what, missing in (
        (middle, "missing", ByteRange(40, 80)),
        (last, "missing", ByteRange(40, 120)),
        (first, "removed", ByteRange(0, 120)),
    ):
        folder.files.unlink(path)
        assert faults(folder.files) == [ArchiveFault("orders", what, missing)]


def test_a_day_may_be_removed_under_an_archive_that_goes_on_writing_it(tmp_path: Path) -> None:
    with opened(tmp_path, "logmq") as folder:
        folder.commit(added(folder, 0, 10, direct_bytes=1))
        for topic in tmp_path.glob("topic=*"):
            shutil.rmtree(topic)
        folder.commit(added(folder, 10, 20, direct_bytes=1))
        found = committed(folder.files)
        assert [(name.start, name.end) for name, _ in found.named()] == [(10, 20)]
        assert [fault.what for fault in faults(folder.files)] == ["removed"]


def test_gaps_are_nothing_that_is_missing_and_a_log_may_begin_later() -> None:
    folder = ArchiveFolder(FakeDisk(), "logmq")
    folder.recover()
    part = write_fresh(folder.files, "orders", 60, 80, "a")
    gaps = [ByteRange(40, 60), ByteRange(80, 90)]
    span = ArchivedSpan(identity("orders"), "orders", "orders", "", ByteRange(40, 90), [part], gaps)
    folder.commit(folder.manifest.advance([span], 0, direct_bytes=1))
    assert faults(folder.files) == []
    folder.files.unlink(part.path)
    assert faults(folder.files) == [ArchiveFault("orders", "missing", ByteRange(60, 80))]


def test_paths_are_of_all_that_is_committed_fresh_or_settled(tmp_path: Path) -> None:
    with pytest.raises(Failure, match="nothing was archived here yet"):
        archive.paths(tmp_path)
    with opened(tmp_path, "logmq") as folder:
        for start in (0, 40):
            folder.commit(added(folder, start, start + 40, direct_bytes=1 if start == 0 else 1 << 30))
    (settled,), (fresh,) = (tmp_path.glob("topic=*/*/*")), (tmp_path.glob("_archive/fresh/*/*/*"))
    assert archive.paths(tmp_path) == [str(settled), str(fresh)]
    assert [(log.end, log.settled) for log in archive.position(tmp_path)] == [(80, 40)]
