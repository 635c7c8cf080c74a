"""What a server tells while it starts."""

import io
import json
import re
import socket
import sys
from contextlib import suppress
from pathlib import Path

import pytest
import trio
from structlog.stdlib import get_logger
from structlog.testing import capture_logs
from trio.testing import MockClock

from brokers.errors import ExitCode, Failure
from brokers.host import announcing
from brokers.host.service import Bound
from brokers.settings.config import load
from tests.support.server import Server, speak


async def test_a_long_start_is_told_again_and_again_and_systemd_waits_on(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch, near_path: Path
) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", str(near_path / "notify"))
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd, capture_logs() as told:
        systemd.bind(str(near_path / "notify"))
        systemd.setblocking(False)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(announcing.still_starting, starting := trio.CancelScope(), get_logger())
            await trio.sleep(12)
            starting.cancel()
        assert [(line["event"], line["seconds"]) for line in told] == [
            (announcing.STILL_STARTING, 5),
            (announcing.STILL_STARTING, 10),
        ]
        # Long enough that one of them may be late.
        assert [systemd.recv(100) for _ in told] == [b"EXTEND_TIMEOUT_USEC=15000000"] * 2


@pytest.mark.parametrize("path", [".", "/", ".."])
def test_what_can_be_no_file_is_no_ready_file(path: str) -> None:
    with pytest.raises(Failure, match=f"--ready-file {re.escape(path)}: Not a regular file") as refused:
        announcing.remove_stale(Path(path))
    assert refused.value.code == ExitCode.USAGE


def test_an_earlier_runs_ready_file_goes_before_anything_is_ready(tmp_path: Path) -> None:
    file = tmp_path / "ready"
    file.write_text("{}")
    announcing.remove_stale(file)
    assert list(tmp_path.iterdir()) == []


def test_who_finds_the_ready_file_finds_all_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, seen = tmp_path / "ready", []
    replace = Path.replace

    def into_place(self: Path, target: Path) -> Path:
        seen.append((file.exists(), json.loads(self.read_text())))
        return replace(self, target)

    monkeypatch.setattr(Path, "replace", into_place)
    bound = [Bound("echo", "echo", "tcp", "127.0.0.1", port, tls=False) for port in (1, 2)]
    config = load([], file=None, environ={"BROKERS_SERVE_DATA_DIR": "here"})
    with capture_logs():
        announcing.ready(bound, config, file)
    assert seen == [(False, json.loads(file.read_text()))]
    assert [each["port"] for each in seen[0][1]["addresses"]] == [1, 2]
    assert seen[0][1]["data_dir"] == str(Path("here").absolute())
    assert list(tmp_path.iterdir()) == [file]


async def test_the_loop_feeds_the_watchdog_where_there_is_one(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch, near_path: Path
) -> None:
    await announcing.feed_watchdog()  # nobody asked
    monkeypatch.setenv("NOTIFY_SOCKET", str(near_path / "notify"))
    monkeypatch.setenv("WATCHDOG_USEC", "60000000")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(str(near_path / "notify"))
        systemd.setblocking(False)
        with trio.move_on_after(70):
            await announcing.feed_watchdog()
        assert [systemd.recv(100) for _ in range(3)] == [b"WATCHDOG=1"] * 3  # after 0, 30 and 60 s
        with pytest.raises(BlockingIOError):
            systemd.recv(100)


async def test_a_watchdog_that_nobody_reads_does_not_hold_the_loop(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch, near_path: Path
) -> None:
    name = str(near_path / "notify")
    monkeypatch.setenv("NOTIFY_SOCKET", name)
    monkeypatch.setenv("WATCHDOG_USEC", "60000000")
    with (
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd,
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as others,
    ):
        systemd.bind(name)
        others.setblocking(False)
        with suppress(BlockingIOError):
            while True:
                others.sendto(b"x", name)
        with trio.move_on_after(70) as fed:
            await announcing.feed_watchdog()
        assert fed.cancelled_caught


@pytest.mark.parametrize("terminal", [True, False])
def test_the_page_is_named_with_its_token_on_a_terminal_alone(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, terminal: bool
) -> None:
    errors = io.StringIO()
    monkeypatch.setattr(errors, "isatty", lambda: terminal)
    monkeypatch.setattr("sys.stderr", errors)
    with capture_logs() as told:
        announcing.ready(
            (), load((), file=None, environ={}), tmp_path / "ready", "http://127.0.0.1:1/", "secret"
        )
    assert told[-1]["page"] == "http://127.0.0.1:1/"
    assert "secret" not in str(told) + (tmp_path / "ready").read_text()
    assert errors.getvalue() == ("open http://127.0.0.1:1/?token=secret\n" if terminal else "")


HANDING_OVER = """
import os, socket, sys
sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(2)]
for number, sock in enumerate(sockets):
    os.dup2(sock.fileno(), 10 + number)
for number in range(2):
    os.dup2(10 + number, 3 + number)
os.environ["LISTEN_PID"], os.environ["LISTEN_FDS"] = str(os.getpid()), "2"
os.environ["BROKERS_LOGMQ_PORT"] = str(sockets[0].getsockname()[1])
os.execv(sys.argv[1], sys.argv[1:])
"""


def test_a_server_takes_the_sockets_that_systemd_hands_over_and_tells_of_one_that_nothing_serves(
    tmp_path: Path,
) -> None:
    """The sockets stay bound to their ports, so a server that bound its own could not start."""
    prefix = sys.executable, "-c", HANDING_OVER
    with Server(tmp_path, "--enable", "logmq", prefix=prefix) as server:
        assert speak(server.address("logmq"), b"PRODUCE orders hello\n") == b"OK 0\n"
        assert server.said.count("systemd handed over a socket that nothing here serves") == 1
