"""`brokers top`: what it shows, what keys do, and that the terminal is as it was, however it ends."""

import json
import os
import pty
import select
import signal
import subprocess
import sys
import termios
import time
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from brokers.errors import ExitCode, Failure
from brokers.listing import ListQuery
from brokers.top import Board, Sight
from tests.brokers.conftest import Run
from tests.support.server import Server


def seen(at: float = 0.0, *, delivered: int = 0, queues: int = 3, bytes_in: int = 0, **store: Any) -> Sight:
    """An answer of a server with one protocol."""
    overview: Mapping[str, Any] = {
        "version": "1.2.3",
        "state": "ready",
        "reason": None,
        "uptime_seconds": 61.2,
        "protocols": [
            {
                "protocol": "dms",
                "state": "serving",
                "connections": 2,
                "restarts": 0,
                "addresses": ["127.0.0.1:9090"],
            }
        ],
        "store": {"sync_seconds_median": 0.001, "sync_seconds_p99": 0.01, "free_bytes": 1 << 30, **store},
        "rates": {"": {"dms_messages_delivered": 7.0}},
        "totals": {"": {"dms_messages_delivered": delivered}, "dms": {}},
    }
    rows: Mapping[str, Sequence[Mapping[str, Any]]] = {
        "queues": [
            {"protocol": "dms", "name": f"jobs {number}", "ready": number} for number in range(queues)
        ],
        "topics": [],
        "connections": [{"id": "dms-1", "bytes_in": bytes_in, "bytes_out": None}],
    }
    return Sight(overview, rows, at)


def texts(board: Board, width: int = 120, height: int = 40) -> list[str]:
    return [text for _, text in board.lines(width, height)]


@pytest.mark.parametrize("width", [1, 20, 80, 200])
@pytest.mark.parametrize("height", [1, 5, 16, 24, 60])
def test_the_screen_is_filled_and_nothing_is_wider(width: int, height: int) -> None:
    board = Board("the server on x")
    assert all(len(text) <= width for text in texts(board, width, height))
    board.take(seen(queues=300, read_only=True))
    for key in ("", "z", "/"):
        board.key(key)
        lines = texts(board, width, height)
        assert len(lines) == height
        if width > 20:  # a table shows one column at least
            assert max(map(len, lines)) <= width


def test_rates_are_those_of_the_last_minute_first_and_then_since_the_look_before() -> None:
    board = Board("x")
    board.take(seen(10.0, delivered=100, bytes_in=50))
    assert "7/s" in texts(board)[4]
    board.take(seen(12.0, delivered=300, bytes_in=2098))
    assert "100/s" in texts(board)[4]
    (line,) = [text for text in texts(board) if text.startswith("dms-1")]
    assert "1 KiB/s" in line.replace("\u00a0", " ")


def test_keys_choose_the_table_its_order_and_a_filter() -> None:
    board = Board("x")
    board.take(seen())
    assert board.queries["queues"]["sort"] == "-in_rate"
    board.key("s")
    assert board.queries["queues"]["sort"] == "-out_rate"
    board.key("S")
    board.key("r")
    assert board.queries["queues"]["sort"] == "in_rate"
    for key in "\t/a*q\x7f\r":  # while a filter is typed letters are letters
        assert board.key(key)
    assert board.queries["topics"] == {"sort": "-in_rate", "limit": "200", "match": "a*"}
    board.key("z")
    assert list(board.queries) == ["topics"]
    board.key("\x1b")
    assert "match" not in board.queries["queues"]
    assert not board.key("q")


def test_keys_sort_by_no_column_by_which_the_server_does_not() -> None:
    board = Board("x")
    for table in board.tables:
        asked = set()
        for _ in table.columns:
            board.key("s")
            asked.add(board.queries[table.kind.name]["sort"])
            ListQuery.parse(table.kind, [], {"sort": table.sort}, ())
        assert len(asked) > 3
        board.key("\t")


def test_a_server_that_has_gone_is_told_and_what_was_seen_stays() -> None:
    board = Board("x")
    board.take(seen(full=True))
    board.take(Failure("x cannot be reached"))
    lines = texts(board)
    assert "x cannot be reached; trying again" in lines
    assert any(text.startswith("store: full") for text in lines)
    assert any("jobs\u00a02" in text for text in lines)
    board.take(seen())
    assert "x cannot be reached; trying again" not in texts(board)


def test_without_a_terminal_it_is_shown_once(command: Run, shared_server: Server) -> None:
    where = ("--data-dir", str(shared_server.data))
    code, out, _ = command("top", *where)
    assert code == ExitCode.OK
    assert out.startswith("protocol ")
    code, out, _ = command("top", "--json", *where)
    assert {"overview", "queues", "topics", "connections"} == set(json.loads(out))
    assert command("top", "--every", "1ms", *where)[0] == ExitCode.USAGE


@pytest.mark.parametrize(("ends", "code"), [(b"q", 0), (b"\x03", 130), (signal.SIGTERM, 143)])
def test_the_terminal_is_as_it_was_however_it_ends(
    shared_server: Server, ends: bytes | signal.Signals, code: int
) -> None:
    ours, theirs = pty.openpty()
    try:
        before = termios.tcgetattr(theirs)
        process = subprocess.Popen(
            [sys.executable, "-m", "brokers", "top", "--data-dir", str(shared_server.data)],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            env={**os.environ, "TERM": "xterm", "COLUMNS": "100", "LINES": "30"},
            start_new_session=True,
            preexec_fn=lambda: os.close(os.open(os.ttyname(0), os.O_RDWR)),  # its terminal, for Ctrl-C
        )
        said = b""
        give_up = time.monotonic() + 60
        while b"q quit" not in said or termios.tcgetattr(theirs) == before:
            assert time.monotonic() < give_up, said
            if select.select([ours], [], [], 1)[0]:
                said += os.read(ours, 65536)
        if isinstance(ends, bytes):
            os.write(ours, ends)
        else:
            process.send_signal(ends)
        while process.poll() is None:
            assert time.monotonic() < give_up, said
            if select.select([ours], [], [], 0.05)[0]:
                said += os.read(ours, 65536)
        while select.select([ours], [], [], 0)[0]:
            said += os.read(ours, 65536)
        assert process.returncode == code
        assert said.rfind(b"\x1b[?1049l") > said.rfind(b"\x1b[?1049h") >= 0
        assert termios.tcgetattr(theirs) == before
    finally:
        os.close(ours)
        os.close(theirs)
