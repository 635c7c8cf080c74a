"""Handles of logs' files stay few, and never lead to another log's bytes."""

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
