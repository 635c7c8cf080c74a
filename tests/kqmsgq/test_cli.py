"""`brokers kqmsgq ...` against the real process: what each command says, and how it ends."""

import json
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from brokers.errors import ExitCode
from kqmsgq.wire import message, subscribe
from tests.support.server import Begun, Command, Server, run, run_here, speak, until


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Server(tmp_path_factory.mktemp("kqmsgq"), "0", command=("kqmsgq", "serve")) as server:
        yield server


@pytest.fixture
def kqmsgq(server: Server, commands: Callable[[Server, str], Command]) -> Command:
    return commands(server, "kqmsgq")


class Consuming(Begun):
    """`brokers kqmsgq consume`, subscribed."""

    def __init__(self, server: Server, *arguments: str, subscriptions: int = 1) -> None:
        before = _subscriptions(server)
        port = str(server.address("kqmsgq")[1])
        super().__init__("kqmsgq", "consume", *arguments, "--port", port)
        until(lambda: _subscriptions(server) == before + subscriptions or self.process.poll() is not None)


def _subscriptions(server: Server) -> int:
    found: Any = run_here("kqmsgq", "consumers", "--json", "--data-dir", str(server.data))
    return sum(json.loads(line)["subscriptions"] for line in found.stdout.splitlines())


def test_messages_given_as_arguments_arrive_one_a_line(kqmsgq: Command, server: Server) -> None:
    consumer = Consuming(server, "-q", "args", "-q", "more", "--max", "3", subscriptions=2)
    assert kqmsgq("produce", "-q", "args", "-m", "hello", "-m", "a second one") == (
        0,
        "queue     args\nmessages  2\n",
        "",
    )
    assert kqmsgq("produce", "--queue", "more", "--message", "", "--json")[1] == (
        '{"queue": "more", "messages": 1}\n'
    )
    assert consumer.end() == b"hello\na second one\n\n"


def test_each_line_of_standard_input_is_a_message(server: Server) -> None:
    lines = b"".join(b"line %d\r\n" % number for number in range(5000)) + b"\nno end"
    consumer = Consuming(server, "--queue", "lines", "--max", "5002")
    port = str(server.address("kqmsgq")[1])
    done = run("kqmsgq", "produce", "-q", "lines", "--json", "--port", port, stdin=lines)
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout) == {"queue": "lines", "messages": 5002}
    assert consumer.end() == lines.replace(b"\r", b"") + b"\n"


def test_json_has_the_queue_beside_each_message_and_raw_has_the_bytes_alone(
    kqmsgq: Command, server: Server
) -> None:
    shown = Consuming(server, "--all", "--json", "--max", "2")
    raw = Consuming(server, "--all", "--raw", "--max", "2")
    address = server.address("kqmsgq")
    assert speak(address, b"produce" + message(b"a", b"text") + message(b"", b"\xff\n\0")) == b""
    assert [json.loads(line) for line in shown.end().splitlines()] == [
        {"queue": "a", "message": "text"},
        {"queue": "", "message": {"base64": "/woA"}},
    ]
    assert raw.end() == b"text\xff\n\0"


def test_all_of_standard_input_may_be_one_message(server: Server) -> None:
    consumer = Consuming(server, "-q", "files", "--raw", "--max", "1")
    picture = bytes(range(256)) * 1000
    port = str(server.address("kqmsgq")[1])
    done = run("kqmsgq", "produce", "-q", "files", "--whole", "--port", port, stdin=picture)
    assert done.returncode == 0
    assert consumer.end() == picture


def test_consumers_are_listed_over_the_control_socket(kqmsgq: Command, server: Server) -> None:
    with socket.create_connection(server.address("kqmsgq")) as consumer:
        consumer.sendall(b"consume" + subscribe(b"a") + subscribe())
        peer = "{}:{}".format(*consumer.getsockname())
        folder = ("--data-dir", str(server.data))

        def subscriptions() -> dict[str, int]:
            rows = map(json.loads, _listed(kqmsgq, *folder))
            return {row["peer"]: row["subscriptions"] for row in rows}

        until(lambda: subscriptions().get(peer) == 2)
        assert _listed(kqmsgq, "--dropped", *folder) == []


def _listed(kqmsgq: Command, *arguments: str) -> list[str]:
    code, out, _ = kqmsgq("consumers", "--json", *arguments)
    assert code == 0
    return out.splitlines()


def test_consuming_nothing_or_two_ways_at_once_is_refused(kqmsgq: Command) -> None:
    assert kqmsgq("consume")[0] == ExitCode.USAGE
    code, _, err = kqmsgq("consume", "--all", "--raw", "--json")
    assert (code, "--raw" in err) == (ExitCode.USAGE, True)
    code, _, err = kqmsgq("consume", "--all", "--max", "-1")
    assert (code, "--max" in err) == (ExitCode.USAGE, True)


def test_a_server_that_is_not_there_or_goes_is_said_in_a_line(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
    for arguments in (("produce", "-q", "x", "-m", "y"), ("consume", "-q", "x")):
        done = run("kqmsgq", *arguments, "--port", port)
        assert done.returncode == ExitCode.UNAVAILABLE
        assert "no KqueueMsgQ server answers" in done.stderr
    with Server(tmp_path, "0", command=("kqmsgq", "serve")) as server:
        consumer = Consuming(server, "--all")
        assert server.stop() == 0
        _, err = consumer.process.communicate(timeout=60)
        assert consumer.process.returncode == ExitCode.UNAVAILABLE
        assert b"the server closed the connection" in err


def test_an_interrupt_ends_a_producer_that_waits_for_standard_input(server: Server) -> None:
    consumer = Consuming(server, "-q", "waited", "--max", "1")
    words = ("kqmsgq", "produce", "-q", "waited", "--port", str(server.address("kqmsgq")[1]))
    pipes = dict.fromkeys(("stdin", "stderr"), subprocess.PIPE)
    with subprocess.Popen((sys.executable, "-m", "brokers", *words), **pipes) as producer:
        assert producer.stdin
        assert producer.stderr
        try:
            producer.stdin.write(b"one\n")
            producer.stdin.flush()
            assert consumer.end() == b"one\n"
            producer.send_signal(signal.SIGINT)
            assert producer.wait(20) == ExitCode.INTERRUPTED
            assert producer.stderr.read() == b""
        finally:
            producer.kill()
