"""The archive's folder on real files: its lock, and what makes a file of it durable."""

import os
from pathlib import Path

import pytest

from brokers.pipeline.archive import names
from brokers.pipeline.archive.files import LocalFiles, write_new
from brokers.pipeline.archive.folder import opened


def test_a_new_file_is_synced_and_never_takes_the_place_of_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[tuple[int, int]] = []
    monkeypatch.setattr(os, "fsync", lambda fd: synced.append((os.fstat(fd).st_ino, os.fstat(fd).st_size)))
    write_new(LocalFiles(tmp_path), "version", b"first")
    assert synced == [((tmp_path / "version").stat().st_ino, 5)]
    with pytest.raises(FileExistsError):
        write_new(LocalFiles(tmp_path), "version", b"second")
    assert (tmp_path / "version").read_bytes() == b"first"
    synced.clear()
    LocalFiles(tmp_path).sync_folder("")
    assert [inode for inode, _ in synced] == [tmp_path.stat().st_ino]


def test_the_lock_says_whose_it_is_whatever_it_said_before(tmp_path: Path) -> None:
    lock = tmp_path / names.LOCK
    lock.parent.mkdir()
    lock.write_text("123456789012\n")
    with opened(tmp_path, "logmq"):
        assert lock.read_text() == f"{os.getpid()}\n"
