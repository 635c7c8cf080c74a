"""Handles of logs' files stay few, and never lead to another log's bytes."""

import resource

import pytest

from shared.descriptors import connections_within, log_files_beside
from shared.storage.files import LogFile, OpenFiles
from tests.support.fake_disk import FakeDisk


def made(disk: FakeDisk, *names: str) -> list[LogFile]:
    for name in names:
        fd = disk.open(name, create=True)
        disk.write(fd, name.encode(), 0)
        disk.close(fd)
    return [LogFile(name) for name in names]


def test_a_file_that_is_pinned_is_open_though_more_are_pinned_than_may_be() -> None:
    disk = FakeDisk()
    files = OpenFiles(disk, 2)
    logs = made(disk, "a", "b", "c", "d")
    handles = [files.pin_open(log) for log in logs]
    assert [disk.read(fd, 9, 0) for fd in handles] == [b"a", b"b", b"c", b"d"]
    for log in logs:
        files.unpin(log)
    assert len(files) == 2
    assert [log.fd >= 0 for log in logs].count(True) == 2


def test_a_handle_in_use_outlives_its_log_and_no_longer() -> None:
    disk = FakeDisk()
    files = OpenFiles(disk, 2)
    (log,) = made(disk, "a")
    fd = files.pin_open(log)
    files.remove(log)
    files.forget(log)
    assert disk.read(fd, 9, 0) == b"a"
    files.unpin(log)
    assert log.fd == -1
    assert len(files) == 0


def test_connections_are_made_way_for_and_what_is_pinned_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda which: (1400, 1400))
    disk = FakeDisk()
    files = OpenFiles(disk)
    logs = made(disk, *(f"log {n}" for n in range(650)))
    for log in logs:
        files.pin_open(log)
    for log in logs[5:]:
        files.unpin(log)
    assert len(files) == 650
    files.reserve_descriptors(300)
    assert len(files) == 500
    assert all(log.fd >= 0 for log in logs[:5])
    files.reserve_descriptors(800)
    assert len(files) == 400, "never fewer"
    files.reserve_descriptors(0)
    for log in logs:
        files.pin_open(log)
        files.unpin(log)
    assert len(files) == 650


@pytest.mark.parametrize("limit", [256, 300, 512, 999, 1000, 1400, 4096, 65536])
def test_at_any_limit_some_are_left_beside_all_connections_and_all_files(
    limit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda which: (limit, limit))
    for connections in 0, connections_within(limit) // 2, connections_within(limit):
        assert 28 <= log_files_beside(connections) <= limit - connections - 100


def test_a_number_that_was_set_is_kept_to() -> None:
    disk = FakeDisk()
    files = OpenFiles(disk, 2)
    files.reserve_descriptors(0)
    for log in made(disk, "a", "b", "c"):
        files.pin_open(log)
        files.unpin(log)
    assert len(files) == 2
