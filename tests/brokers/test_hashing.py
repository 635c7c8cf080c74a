"""A password that is not to delay anybody is hashed in a process; threads do it where there is none."""

import os
import signal
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
import structlog.testing
import trio
import trio.lowlevel

from brokers.access import hashing
from brokers.access.hashing import COMMAND, IN_THREADS_SECONDS, Hashing
from shared.access import Secret

PASSWORD = b"right\0\xff \n"
SECRET = Secret.make(PASSWORD, bytes(range(16)))


class Threads:
    """In place of threads. `used`: how many checks they did."""

    used = 0

    async def __call__(self, work: Callable[[bytes], bool], password: bytes) -> bool:
        self.used += 1
        return work(password)


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """The process runs behind all others, so on a busy machine its answer may take longer than users wait."""
    monkeypatch.setattr(hashing, "PATIENCE_SECONDS", 60.0)


@pytest.fixture
def threads() -> Threads:
    return Threads()


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[trio.Process]:
    """The processes that were started."""
    found: list[trio.Process] = []
    start = trio.lowlevel.open_process

    async def open_process(*arguments: Any, **options: Any) -> trio.Process:
        found.append(await start(*arguments, **options))
        return found[-1]

    monkeypatch.setattr(trio.lowlevel, "open_process", open_process)
    return found


@pytest.fixture
async def hashes(
    nursery: trio.Nursery, threads: Threads, started: list[trio.Process]
) -> AsyncIterator[Hashing]:
    found = Hashing(in_thread=threads)
    await nursery.start(found.run)
    yield found
    nursery.cancel_scope.cancel()


async def test_a_process_tells_the_right_password_from_wrong_ones(
    hashes: Hashing, threads: Threads, started: list[trio.Process]
) -> None:
    assert await hashes.fits(SECRET, PASSWORD, in_process=True)
    for wrong in (b"", b"right", PASSWORD + b" ", b"x" * 1024):
        assert not await hashes.fits(SECRET, wrong, in_process=True)
    assert len(started) == 1
    assert not threads.used


async def test_who_logs_in_as_usual_gets_a_thread(
    hashes: Hashing, threads: Threads, started: list[trio.Process]
) -> None:
    assert await hashes.fits(SECRET, PASSWORD)
    assert not await hashes.fits(SECRET, b"wrong")
    assert threads.used == 2
    assert not started


async def test_none_is_started_before_there_is_a_password(
    hashes: Hashing, started: list[trio.Process]
) -> None:
    await trio.testing.wait_all_tasks_blocked()
    assert not started


async def test_the_process_runs_behind_all_others_and_shows_no_password(
    hashes: Hashing, started: list[trio.Process]
) -> None:
    assert await hashes.fits(SECRET, PASSWORD, in_process=True)
    pid = started[0].pid
    assert os.sched_getscheduler(pid) == os.SCHED_IDLE
    # Linux weighs sessions before processes: in one of its own it would have as much as all of the server's.
    assert os.getsid(pid) == os.getsid(0)
    assert os.getpgid(pid) == pid  # a terminal's signals do not reach it
    place = trio.Path(f"/proc/{pid}")
    assert PASSWORD not in await (place / "cmdline").read_bytes() + await (place / "environ").read_bytes()


async def test_signals_for_a_whole_unit_do_not_end_it(hashes: Hashing, started: list[trio.Process]) -> None:
    assert await hashes.fits(SECRET, PASSWORD, in_process=True)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        started[0].send_signal(number)
    assert await hashes.fits(SECRET, PASSWORD, in_process=True)
    assert len(started) == 1


async def test_a_process_that_is_killed_in_a_check_is_one_warning_and_the_check_is_done(
    hashes: Hashing, threads: Threads, started: list[trio.Process], nursery: trio.Nursery
) -> None:
    assert await hashes.fits(SECRET, PASSWORD, in_process=True)
    started[0].send_signal(signal.SIGSTOP)
    found: list[bool] = []

    async def check(password: bytes) -> None:
        found.append(await hashes.fits(SECRET, password, in_process=True))

    with structlog.testing.capture_logs() as logs:
        async with trio.open_nursery() as checks:
            checks.start_soon(check, PASSWORD)
            await trio.testing.wait_all_tasks_blocked()
            started[0].kill()
        assert not await hashes.fits(SECRET, b"wrong", in_process=True)
    assert found == [True]
    assert threads.used == 2
    assert [(each["log_level"], each["reason"]) for each in logs] == [
        ("warning", "it has ended with status -9")
    ]


async def test_a_process_that_is_killed_while_idle_is_started_again(
    hashes: Hashing, threads: Threads, started: list[trio.Process]
) -> None:
    assert await hashes.fits(SECRET, PASSWORD, in_process=True)
    started[0].kill()
    await started[0].wait()
    await trio.testing.wait_all_tasks_blocked()
    assert await hashes.fits(SECRET, PASSWORD, in_process=True)
    assert len(started) == 2
    assert not threads.used


async def test_one_that_gets_no_processor_is_ended_and_the_check_is_done(
    hashes: Hashing, threads: Threads, started: list[trio.Process], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert await hashes.fits(SECRET, PASSWORD, in_process=True)
    monkeypatch.setattr(hashing, "PATIENCE_SECONDS", 0.01)
    started[0].send_signal(signal.SIGSTOP)
    assert await hashes.fits(SECRET, PASSWORD, in_process=True)
    assert threads.used == 1
    assert await started[0].wait() == -signal.SIGKILL


@pytest.mark.parametrize("command", [("/nowhere/python",), ("false",)], ids=["no program", "it fails"])
async def test_where_none_can_be_started_threads_do_it_and_it_is_tried_again_after_a_minute(
    nursery: trio.Nursery, threads: Threads, command: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = Hashing(command, threads)
    await nursery.start(found.run)
    with structlog.testing.capture_logs() as logs:
        assert await found.fits(SECRET, PASSWORD, in_process=True)
        assert not await found.fits(SECRET, b"wrong", in_process=True)
        assert len(logs) == 1
        now = trio.current_time() + IN_THREADS_SECONDS
        monkeypatch.setattr(trio, "current_time", lambda: now)
        assert await found.fits(SECRET, PASSWORD, in_process=True)
    assert len(logs) == 2
    assert threads.used == 3
    nursery.cancel_scope.cancel()


async def test_after_idle_minutes_the_process_is_ended(
    hashes: Hashing, threads: Threads, started: list[trio.Process], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hashing, "IDLE_SECONDS", 0.0)
    assert await hashes.fits(SECRET, PASSWORD, in_process=True)
    with trio.fail_after(10):
        await started[0].wait()
    assert await hashes.fits(SECRET, PASSWORD, in_process=True)
    assert len(started) == 2
    assert not threads.used


async def test_no_process_outlives_the_server(started: list[trio.Process]) -> None:
    async with trio.open_nursery() as nursery:
        found = Hashing()
        await nursery.start(found.run)
        await found.fits(SECRET, PASSWORD, in_process=True)
        nursery.cancel_scope.cancel()
    assert [process.returncode for process in started] == [-signal.SIGKILL]


async def test_a_process_ends_with_its_input_as_when_the_server_is_killed() -> None:
    ended = await trio.run_process(COMMAND, stdin=b"", capture_stdout=True)
    assert (ended.returncode, ended.stdout) == (0, b"")
