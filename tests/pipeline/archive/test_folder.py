"""The archive's folder on real files: its lock, and what makes a file of it durable."""

import os
from pathlib import Path
from urllib.parse import unquote

import pytest

from brokers.errors import Failure
from brokers.pipeline.archiving import names
from brokers.pipeline.archiving.folder import opened
from brokers.pipeline.archiving.places import FolderPlace, place_of


def test_a_new_file_is_synced_and_never_takes_the_place_of_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[tuple[int, int]] = []
    monkeypatch.setattr(os, "fsync", lambda fd: synced.append((os.fstat(fd).st_ino, os.fstat(fd).st_size)))
    FolderPlace(tmp_path).write_new("version", b"first")
    assert synced == [((tmp_path / "version").stat().st_ino, 5)]
    with pytest.raises(FileExistsError):
        FolderPlace(tmp_path).write_new("version", b"second")
    assert (tmp_path / "version").read_bytes() == b"first"
    synced.clear()
    FolderPlace(tmp_path).sync_folder("")
    assert [inode for inode, _ in synced] == [tmp_path.stat().st_ino]


def test_the_lock_says_whose_it_is_whatever_it_said_before(tmp_path: Path) -> None:
    lock = tmp_path / names.LOCK
    lock.parent.mkdir()
    lock.write_text("123456789012\n")
    with opened(place_of(tmp_path), "logmq"):
        assert lock.read_text() == f"{os.getpid()}\n"


def test_a_folder_is_named_as_spark_names_it_and_no_longer_than_a_file_system_takes() -> None:
    assert names.escape("a/b%ü") == "a%2Fb%25ü"  # as Spark names it
    controls = "".join(map(chr, [*range(0x20), 0x7F]))
    assert names.escape(controls) == "".join(f"%{ord(each):02X}" for each in controls)
    assert unquote(names.escape(controls)) == controls
    longest = "ä" * 124 + "x"
    assert len(names.folder(longest, "2026-01-31").partition("/")[0].encode()) == 255
    with pytest.raises(Failure, match="too long a name"):
        names.folder(longest + "x", "2026-01-31")
