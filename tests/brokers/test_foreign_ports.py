"""A command that is sent to another protocol's port says so soon; it used to wait for a word for ever."""

import os
import sys
from collections.abc import Iterator

import pytest

from brokers.commands.control import address_in
from brokers.errors import ExitCode
from pubsub import terminal
from tests.brokers.conftest import Run
from tests.support.server import Server, run_here


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Server(tmp_path_factory.mktemp("foreign")) as server:
        yield server


@pytest.mark.parametrize("protocol", ["dms", "logmq", "pubsub", "dmp", "admin"])
@pytest.mark.parametrize("words", [("consume", "news"), ("produce", "news", "hello")])
def test_a_command_without_answers_at_another_protocols_port_says_so(
    words: tuple[str, ...], protocol: str, command: Run, server: Server
) -> None:
    host, port = server.address(protocol) if protocol != "admin" else address_in(server.ready["page"])[:2]
    code, out, err = command("kqmsgq", *words, "--port", str(port))
    assert (code, out) == (ExitCode.UNAVAILABLE, "")
    assert err.startswith(f"brokers: {host}:{port}: no KqueueMsgQ server answers (")


@pytest.mark.parametrize(
    ("protocol", "says"),
    [("dms", r"it says b'\xde\xad"), ("logmq", 'it says b"ERR '), ("kqmsgq", "it closed the connection")],
)
def test_a_subscriber_at_another_protocols_port_says_so(
    protocol: str, says: str, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(terminal, "FRAME_SECONDS", 0.2)  # it is known by then that no more comes
    host, port = server.address(protocol)
    reader, writer = os.pipe()
    os.write(writer, b"subscribe a\n")  # which is not confirmed, as it goes nowhere
    with open(reader) as commands, open(writer, "w"):
        monkeypatch.setattr(sys, "stdin", commands)
        ended = run_here("pubsub", "subscriber", "A", host, str(port))
    assert (ended.returncode, ended.stdout) == (ExitCode.UNAVAILABLE, "")
    assert ended.stderr.startswith(f"brokers: {host}:{port}: no pub/sub server answers ({says}")


def test_a_publisher_to_whom_nobody_listens_is_told_where_and_by_the_exit_code(command: Run) -> None:
    code, _, err = command("pubsub", "publish", "a", "--int", "1", "--host", "a..b", "--port", "1")
    assert code == ExitCode.UNAVAILABLE
    assert err.startswith("brokers: a..b:1: no pub/sub server listens (")
    code, _, err = command("pubsub", "publish", "a", "--int", "1", "--port", "1")
    assert (code, err) == (
        ExitCode.UNAVAILABLE,
        "brokers: 127.0.0.1:1: no pub/sub server listens (Connection refused)\n",
    )
    assert command("pubsub", "publish", "--from", "nowhere.jsonl", "--port", "1")[0] == ExitCode.MISSING


def test_what_a_server_would_close_on_is_refused_here_with_the_limit(command: Run) -> None:
    long = "n" * 5000
    for words in (("produce", long, "hello"), ("consume", long)):
        code, _, err = command("kqmsgq", *words, "--port", "1")
        assert (code, err) == (
            ExitCode.USAGE,
            "brokers: --queue: a name of 5000 bytes: 4096 at most (kqmsgq.name_bytes_max)\n",
        )
