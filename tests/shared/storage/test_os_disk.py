"""The disk on real files, and the lock of a data folder."""

import ctypes
import errno
import os
import resource
import stat
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import trio
from structlog.testing import capture_logs
from trio._core import _thread_cache

from shared.errors import StoreInUse
from shared.process_limits import connections_within, log_files_beside
from shared.storage import syscalls
from shared.storage.disk import Disk
from shared.storage.files import LogFile, OpenFiles
from shared.storage.lock import LOCK_NAME, FolderLock
from shared.storage.os_disk import OsDisk
from shared.storage.threads import Threads
from tests.support.fake_disk import FakeDisk


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "deep" / "data"


@pytest.fixture
def disk(folder: Path) -> Iterator[OsDisk]:
    with OsDisk(folder) as opened:
        contract: Disk = opened
        assert contract is opened
        yield opened


def put(disk: OsDisk, path: str, data: bytes) -> None:
    fd = disk.open(path, create=True)
    assert disk.write(fd, data, 0) == len(data)
    disk.close(fd)


def test_folders_and_files_are_their_owners_alone(disk: OsDisk, folder: Path) -> None:
    disk.make_folder("logmq")
    put(disk, "logmq/orders.log", b"x")
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert stat.S_IMODE(folder.parent.stat().st_mode) == 0o700
    assert stat.S_IMODE((folder / "logmq").stat().st_mode) == 0o700
    assert stat.S_IMODE((folder / "logmq" / "orders.log").stat().st_mode) == 0o600


def test_no_handle_survives_an_exec(disk: OsDisk) -> None:
    fd = disk.open("a", create=True)
    assert not os.get_inheritable(fd)
    disk.close(fd)


def test_no_link_is_followed(disk: OsDisk, folder: Path, tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "secret").write_bytes(b"secret")
    (folder / "file").symlink_to(tmp_path / "outside" / "secret")
    (folder / "namespace").symlink_to(tmp_path / "outside")
    for attempt in (
        lambda: disk.open("file"),
        lambda: disk.open("file", create=True),
        lambda: disk.open("namespace/secret"),
        lambda: disk.make_folder("namespace"),
        lambda: disk.names("namespace"),
    ):
        with pytest.raises(OSError, match=r".") as caught:
            attempt()
        assert caught.value.errno in (errno.ELOOP, errno.ENOTDIR)
    assert (tmp_path / "outside" / "secret").read_bytes() == b"secret"


def test_an_error_names_the_file_with_its_folder(disk: OsDisk, folder: Path) -> None:
    """Two namespaces may have a log of the same name."""
    disk.make_folder("dms")
    (folder / "dms" / "orders.log").mkdir()
    for create in (False, True):
        with pytest.raises(OSError, match=r".") as caught:
            disk.open("dms/orders.log", create=create)
        assert caught.value.filename == "dms/orders.log"


@pytest.mark.parametrize("path", ["", "..", "a/..", "./a/", "../a", "a\0b"])
def test_a_path_cannot_leave_the_folder(disk: OsDisk, path: str) -> None:
    disk.make_folder("a")
    with pytest.raises((ValueError, FileNotFoundError)):
        disk.open(path, create=True)


def test_a_pipe_in_a_files_place_is_an_error_not_a_hang(disk: OsDisk, folder: Path) -> None:
    os.mkfifo(folder / "pipe")
    with pytest.raises(OSError, match="not a regular file"):
        disk.open("pipe")


def test_the_handle_outlives_a_rename_of_the_folder(disk: OsDisk, folder: Path) -> None:
    folder.rename(folder.with_name("moved"))
    put(disk, "a", b"here")
    assert (folder.with_name("moved") / "a").read_bytes() == b"here"


def test_reads_give_what_is_there_and_less_only_at_the_end(disk: OsDisk) -> None:
    put(disk, "a", b"0123456789")
    fd = disk.open("a")
    assert disk.read(fd, 4, 3) == b"3456"
    assert disk.read(fd, 100, 8) == b"89"
    assert disk.read(fd, 100, 10) == b""
    assert disk.size(fd) == 10
    disk.close(fd)


def test_what_was_just_written_is_read_without_waiting(disk: OsDisk) -> None:
    data = os.urandom(300_000)
    put(disk, "a", data)
    fd = disk.open("a")
    assert disk.read_nowait(fd, 200_000, 50_000) in (data[50_000:250_000], None)
    assert disk.read_nowait(fd, 500_000, 250_000) in (data[250_000:], None)
    assert disk.read_nowait(fd, 10, 300_000) in (b"", None)
    disk.close(fd)


def test_a_read_that_would_wait_says_none(disk: OsDisk) -> None:
    data = os.urandom(1 << 20)
    put(disk, "a", data)
    fd = disk.open("a")
    disk.sync_data(fd)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    assert disk.read_nowait(fd, 1 << 20, 0) in (None, data)  # tmpfs has no disk to wait for
    assert disk.read(fd, 1 << 20, 0) == data
    disk.close(fd)


def test_exclusive_creation_refuses_what_is_there(disk: OsDisk) -> None:
    put(disk, "a", b"x")
    with pytest.raises(FileExistsError):
        disk.open("a", create=True, exclusive=True)
    with pytest.raises(FileNotFoundError):
        disk.open("b")


def test_syncs_take_files_folders_and_everything(disk: OsDisk, monkeypatch: pytest.MonkeyPatch) -> None:
    disk.make_folder("logmq")
    put(disk, "logmq/a", b"x")
    put(disk, "b", b"x")
    fd = disk.open("b")
    disk.sync_data(fd)
    disk.close(fd)
    disk.sync_folder("")
    disk.sync_folder("logmq")
    disk.sync_all()
    monkeypatch.setattr(syscalls, "syncfs", lambda fd: False)
    assert not disk.sync_all(), "each file is to be synced, where syncfs cannot be trusted"


def test_a_failed_sync_is_an_error_with_its_number(disk: OsDisk, monkeypatch: pytest.MonkeyPatch) -> None:
    fd = disk.open("a", create=True)
    disk.close(fd)
    with pytest.raises(OSError, match=r"\[Errno 9\]"):
        disk.sync_data(fd)
    with pytest.raises(OSError, match=r"\[Errno 9\]"):
        disk.allocate(fd, 4096)


def test_allocation_makes_the_file_long_and_a_hole_keeps_it_so(disk: OsDisk, folder: Path) -> None:
    fd = disk.open("a", create=True)
    disk.allocate(fd, 1 << 20)
    assert disk.size(fd) == 1 << 20
    disk.allocate(fd, 4096)
    assert disk.size(fd) == 1 << 20, "allocation never shortens"
    disk.write(fd, os.urandom(1 << 20), 0)
    disk.sync_data(fd)
    before = (folder / "a").stat().st_blocks
    tail = disk.read(fd, 4096, (1 << 20) - 4096)
    if disk.punch(fd, 0, 1 << 19):
        assert disk.read(fd, 1 << 19, 0) == bytes(1 << 19)
        assert (folder / "a").stat().st_blocks < before
    assert disk.size(fd) == 1 << 20
    assert disk.read(fd, 4096, (1 << 20) - 4096) == tail
    disk.truncate(fd, 10)
    assert disk.size(fd) == 10
    disk.close(fd)


def test_a_file_system_that_cannot_reserve_gets_the_length(
    disk: OsDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuses(*_: object) -> int:
        ctypes.set_errno(errno.EOPNOTSUPP)
        return -1

    monkeypatch.setattr(syscalls, "fallocate", refuses)
    fd = disk.open("a", create=True)
    disk.allocate(fd, 8192)
    assert disk.size(fd) == 8192
    disk.allocate(fd, 100)
    assert disk.size(fd) == 8192
    assert disk.punch(fd, 0, 4096) is False
    disk.close(fd)


def test_a_read_only_disk_changes_nothing(disk: OsDisk, folder: Path) -> None:
    put(disk, "a", b"x")
    with OsDisk(folder, read_only=True) as reader:
        fd = reader.open("a")
        assert reader.read(fd, 10, 0) == b"x"
        for attempt in (
            lambda: reader.write(fd, b"y", 0),
            lambda: reader.truncate(fd, 0),
            lambda: reader.unlink("a"),
            lambda: reader.rename("a", "b"),
            lambda: reader.make_folder("c"),
            lambda: reader.open("d", create=True),
        ):
            with pytest.raises(OSError, match=r"."):
                attempt()
        reader.close(fd)
    assert (folder / "a").read_bytes() == b"x"
    with pytest.raises(FileNotFoundError):
        OsDisk(folder / "missing", read_only=True)


def test_a_file_system_that_becomes_read_only_is_still_read(
    disk: OsDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As ext4 does after an error: what is open stays so, what is opened from then on can only be read."""
    put(disk, "a", b"x")
    opened = os.open

    def refuse(path: object, flags: int, *args: Any, **kwargs: Any) -> int:
        if flags & (os.O_RDWR | os.O_CREAT):
            raise OSError(errno.EROFS, os.strerror(errno.EROFS))
        return opened(path, flags, *args, **kwargs)  # type: ignore[arg-type]

    monkeypatch.setattr(os, "open", refuse)
    assert not disk.read_only
    fd = disk.open("a")
    assert disk.read_only
    assert disk.read(fd, 10, 0) == b"x"
    for attempt in (lambda: disk.sync_data(fd), lambda: disk.write(fd, b"y", 0), lambda: disk.unlink("a")):
        with pytest.raises(OSError, match=r"."):
            attempt()
    with pytest.raises(OSError, match="Read-only"):
        disk.open("b", create=True)
    disk.close(fd)


def test_a_second_process_is_refused_and_told_who_holds_it(tmp_path: Path) -> None:
    with FolderLock.take(tmp_path):
        assert (tmp_path / LOCK_NAME).read_text() == f"{os.getpid()}\n"
        with pytest.raises(StoreInUse, match=f"process {os.getpid()}"):
            FolderLock.take(tmp_path)
    FolderLock.take(tmp_path).release()


def test_the_lock_goes_with_its_process_however_it_ends(tmp_path: Path) -> None:
    script = (
        "import os, sys; from pathlib import Path; from shared.storage.lock import FolderLock\n"
        "held = FolderLock.take(Path(sys.argv[1])); print('held', flush=True); sys.stdin.read()"
    )
    root = Path(__file__).parents[3]
    with subprocess.Popen(
        [sys.executable, "-c", script, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=root,
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(StoreInUse, match=f"process {holder.pid}"):
            FolderLock.take(tmp_path)
        holder.kill()
        holder.wait()
    FolderLock.take(tmp_path).release()


def test_a_link_in_the_locks_place_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "target").write_text("keep me")
    (tmp_path / LOCK_NAME).symlink_to(tmp_path / "target")
    with pytest.raises(OSError, match=r"."):
        FolderLock.take(tmp_path)
    assert (tmp_path / "target").read_text() == "keep me"


# -- threads


@pytest.fixture
def no_threads(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Called, no thread can be started any more."""

    def refuse(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    def begin() -> None:
        monkeypatch.setattr(_thread_cache, "THREAD_CACHE", _thread_cache.ThreadCache())
        monkeypatch.setattr(threading.Thread, "start", refuse)

    return begin


async def test_without_a_thread_the_work_is_done_all_the_same(no_threads: Callable[[], None]) -> None:
    threads = Threads()
    limiter = trio.CapacityLimiter(1)
    assert await threads(threading.get_ident, limiter=limiter) != threading.get_ident()
    no_threads()
    with capture_logs() as logged:
        for _ in range(2):
            assert await threads(threading.get_ident, limiter=limiter) == threading.get_ident()
            assert await threads(divmod, 7, 2) == (3, 1)
    assert [line["log_level"] for line in logged] == ["warning"], "told once"
    assert limiter.borrowed_tokens == 0


async def test_work_that_fails_is_not_done_twice() -> None:
    done = []

    def work() -> Any:
        done.append(1)
        raise RuntimeError("of its own")

    with pytest.raises(RuntimeError, match="of its own"):
        await Threads()(work)
    assert done == [1]


# -- handles of logs' files


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
