"""What readers of an archive find, also while an archiver commits, and what is missing or double in it."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import attrs
import pytest

from brokers.errors import Failure
from brokers.pipeline import archive
from brokers.pipeline.archive import ArchiveFault, committed, faults
from brokers.pipeline.archiving import names
from brokers.pipeline.archiving.folder import ArchiveFolder, final_files, opened
from brokers.pipeline.archiving.manifest import ArchivedSpan, ByteRange
from brokers.pipeline.archiving.names import FileName
from brokers.pipeline.archiving.places import Files, FolderPlace, place_of
from shared.storage import format
from tests.pipeline.archive.model import ArchiveDisk, added, archived, glob, identity, write_fresh


@pytest.fixture
def folder() -> ArchiveFolder:
    """An archive of `orders`: of each of three days a file at its final place."""
    folder = ArchiveFolder(ArchiveDisk(), "logmq")
    folder.recover()
    for start in (0, 40, 80):
        folder.commit(added(folder, start, start + 40))
    return folder


def test_a_reader_finds_a_file_that_is_moved_while_it_looks(
    folder: ArchiveFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    following = added(folder, 120, 160)
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
    with opened(place_of(tmp_path), "logmq") as folder:
        folder.commit(added(folder, 0, 10))
        for topic in tmp_path.glob("topic=*"):
            shutil.rmtree(topic)
        folder.commit(added(folder, 10, 20))
        found = committed(folder.files)
        assert [(name.start, name.end) for name, _ in found.named()] == [(10, 20)]
        assert [fault.what for fault in faults(folder.files)] == ["removed"]


def test_gaps_are_nothing_that_is_missing_and_a_log_may_begin_later() -> None:
    folder = ArchiveFolder(ArchiveDisk(), "logmq")
    folder.recover()
    part = write_fresh(folder.files, "orders", 60, 80, "a")
    gaps = [ByteRange(40, 60), ByteRange(80, 90)]
    span = ArchivedSpan(identity("orders"), "orders", "orders", "", ByteRange(40, 90), [part], gaps)
    folder.commit(folder.manifest.advance([span], 0))
    assert faults(folder.files) == []
    folder.files.unlink(part.path)
    assert faults(folder.files) == [ArchiveFault("orders", "missing", ByteRange(60, 80))]


def test_fresh_files_that_an_older_release_has_left_are_read_and_brought_to_their_places(
    tmp_path: Path,
) -> None:
    with pytest.raises(Failure, match="nothing was archived here yet"):
        archive.paths(tmp_path)
    with opened(place_of(tmp_path), "logmq") as folder:
        folder.commit(added(folder, 0, 40))
        part = write_fresh(folder.files, "orders", 40, 80, "old")
        (log,) = folder.manifest.logs.values()
        head = {"archive": 1, "version": 2, "origin": "logmq", "written_ms": 1}
        old = attrs.asdict(attrs.evolve(log, end=80, records=8)) | {"settled": 40}
        lines = [head, {"log": old}, {"hot": attrs.asdict(part) | {"made_ms": 1}}]
        lines.append({"retired": {"path": "_archive/fresh/x", "until_ms": 2}})
        folder.files.write_new(names.manifest(2), format.pack_lines(lines))
    everything = {"orders": list(range(0, 80, 10))}
    assert archived(FolderPlace(tmp_path), relative(tmp_path)) == everything
    with opened(place_of(tmp_path), "logmq") as folder:
        assert archived(folder.files, relative(tmp_path)) == everything
        folder.commit(added(folder, 80, 90))
        assert archived(folder.files, glob(folder.files)) == {"orders": list(range(0, 90, 10))}
        assert faults(folder.files) == []


def relative(folder: Path) -> list[str]:
    return [str(Path(path).relative_to(folder)) for path in archive.paths(folder)]
