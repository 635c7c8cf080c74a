"""Pub/sub as a process: what it prints, what outlives it, and its commands."""

import json
import select
import socket
import subprocess
from collections.abc import Callable
from pathlib import Path
from urllib.parse import quote

import pytest

from brokers.commands import control
from brokers.errors import ExitCode
from pubsub.wire import FRAME_BYTES, Command, Kind, datagram, encode_command, encode_id, take_frames
from tests.support.server import Server, begun, counter, run, run_here, until

NewServer = Callable[..., Server]


def subscribed(address: tuple[str, int], client_id: bytes, *commands: bytes) -> socket.socket:
    sock = socket.create_connection(address, timeout=60)
    sock.sendall(encode_id(client_id) + b"".join(commands))
    return sock


def publish(address: tuple[str, int], *topics: bytes) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        for topic in topics:
            sock.sendto(datagram(topic, Kind.STRING, topic), address)


def topics_of(sock: socket.socket, count: int) -> list[bytes]:
    """Of the next so many messages."""
    data = b""
    while len(data) < count * FRAME_BYTES:
        received = sock.recv(count * FRAME_BYTES - len(data))
        assert received, f"closed behind {len(data)} bytes"
        data += received
    return [message.topic for message in take_frames(data)[0]]


def heard(address: tuple[str, int], sock: socket.socket) -> None:
    """Return once the server has done what was sent on `sock` so far: messages to topics of its own.

    None of them comes later, however many it took.
    """
    sock.sendall(encode_command(Command.SUBSCRIBE, b"heard/+"))

    def is_heard() -> bool:
        publish(address, b"heard/again")
        return bool(select.select([sock], [], [], 0.05)[0])

    until(is_heard)
    publish(address, b"heard/last")
    while topics_of(sock, 1) != [b"heard/last"]:
        pass


def rows(server: Server) -> str:
    return str(run_here("pubsub", "sessions", "--topics", "--json", "--data-dir", str(server.data)).stdout)


def is_written(folder: Path, data: bytes) -> bool:
    return any(data in path.read_bytes() for path in folder.rglob("*") if path.is_file())


def test_what_subscribers_rely_on_outlives_kill_9_and_a_clean_stop(new_server: NewServer) -> None:
    server = new_server("--record", "pubsub", environ={"BROKERS_PUBSUB_RETAIN": '["k/+"]'}).start()
    address = server.address("pubsub")
    subscribed(address, b"away", encode_command(Command.KEEP, b"k/*")).close()
    commands = [encode_command(Command.SUBSCRIBE, b"a/%d/+" % number) for number in range(100)]
    with subscribed(address, b"A", *commands, encode_command(Command.UNSUBSCRIBE, b"a/7/+")):
        # Promised is what was subscribed to a second before; no second is waited, it is seen to be written.
        until(lambda: '"peer": null' in rows(server) and '"subscriptions": 99' in rows(server))
        until(lambda: is_written(server.data, b"a/99/+"))
        publish(address, *(b"k/%d" % (number % 5) for number in range(20)))
        until(lambda: '"kept": 20' in rows(server))
        until(lambda: counter(server.data, "recorded_messages_total") == 20)
        server.kill()

    address = server.start().address("pubsub")
    with subscribed(address, b"A") as again:
        heard(address, again)
        publish(address, b"a/7/x", b"a/8/x", b"a/99/x")
        assert topics_of(again, 2) == [b"a/8/x", b"a/99/x"]
        again.sendall(encode_command(Command.SUBSCRIBE, b"k/*"))
        assert sorted(topics_of(again, 5)) == [b"k/%d" % number for number in range(5)], "what is retained"
    port = "--port", str(address[1])
    past = run("pubsub", "subscribe", "--since", "10m", "k/*", "--max", "20", *port).stdout
    assert [line.split(" - ")[1] for line in past.splitlines()] == [f"k/{n % 5}" for n in range(20)]
    until(lambda: rows(server).count("peer") == 2)
    wrong = run_here("pubsub", "subscribe", "--since", "tomorrow", "k/*", *port)
    assert (wrong.returncode, "--since" in wrong.stderr) == (ExitCode.USAGE, True)
    assert server.stop() == 0

    with subscribed(server.start().address("pubsub"), b"away") as again:
        assert topics_of(again, 20) == [b"k/%d" % (number % 5) for number in range(20)]
        until(lambda: '"kept": 20' not in rows(server))
        server.kill()


def test_a_subscription_that_is_no_utf_8_is_found_by_the_name_that_the_list_shows(server: Server) -> None:
    with subscribed(server.address("pubsub"), b"A", encode_command(Command.SUBSCRIBE, b"\xff/+")):
        until(lambda: '"subscriptions": 1' in rows(server))
        (row,) = control.request(server.data, "GET", "/api/v1/subscriptions")["items"]
        path = f"/api/v1/subscriptions/A/{quote(row['pattern'], safe='')}"
        assert control.request(server.data, "GET", path) == row


def test_standard_output_has_the_three_lines_and_nothing_else(tmp_path: Path) -> None:
    ready = tmp_path / "ready.json"
    words = ("serve", "0", "--data-dir", str(tmp_path / "data"), "--ready-file", str(ready))
    with begun("pubsub", *words, stderr=subprocess.DEVNULL) as process:
        assert process.stdin
        assert process.stdout
        try:
            until(ready.exists)
            server = Server(tmp_path)
            server.ready = json.loads(ready.read_text())
            tcp, udp = server.address("pubsub", "pubsub"), server.address("pubsub", "pubsub-udp")
            assert tcp == udp, "one port number for both"
            with subscribed(tcp, b"C 1") as first:
                port = first.getsockname()[1]
                line = process.stdout.readline()
                assert line == b"New client C 1 connected from 127.0.0.1:%d.\n" % port
                with subscribed(tcp, b"C 1") as second:
                    assert second.recv(1) == b"", "closed at once"
                assert process.stdout.readline() == b"Client C 1 already connected.\n"
                process.stdin.write(b"exit\n")
                process.stdin.flush()
                assert first.recv(1) == b""
            assert process.stdout.read() == b"Client C 1 disconnected.\n"
            assert process.wait(60) == 0
        finally:
            process.kill()


def test_the_subscriber_and_the_publisher_of_the_command_line(server: Server, tmp_path: Path) -> None:
    host, port = server.address("pubsub")
    with begun("pubsub", "subscriber", "A", host, str(port)) as process:
        assert process.stdin
        assert process.stdout
        try:
            process.stdin.write(b"subscribe a/+\n")
            process.stdin.flush()
            assert process.stdout.readline() == b"Subscribed to topic a/+\n"
            until(lambda: '"subscriptions": 1' in rows(server))
            file = tmp_path / "messages.jsonl"
            file.write_text(
                '{"topic": "a/1", "type": "INT", "value": -7}\n'
                '{"topic": "a/2", "type": "SHORT_REAL", "value": "3.5"}\n\n'
                '{"topic": "a/3", "type": "FLOAT", "value": "-0.00"}\n'
                '{"topic": "a/4", "type": "STRING", "value": "three words, \\u00e9"}\n'
            )
            sent = run("pubsub", "publish", "--from", str(file), "--rate", "1000", "--port", str(port))
            assert (sent.returncode, sent.stdout.split()[1]) == (0, "4")
            twice = run("pubsub", "subscriber", "A", host, str(port))
            assert (twice.returncode, twice.stdout) == (ExitCode.UNAVAILABLE, "")
            assert (
                "it closed the connection: it stops, or has a client A already, or refuses the login"
                in twice.stderr
            )
            seen = [process.stdout.readline().decode().rstrip("\n") for _ in range(4)]
            assert [line.partition(" - ")[2] for line in seen] == [
                "a/1 - INT - -7",
                "a/2 - SHORT_REAL - 3.50",
                "a/3 - FLOAT - 0.00",
                "a/4 - STRING - three words, é",
            ]
            assert all(line.startswith("127.0.0.1:") for line in seen)
            process.stdin.write(b"unsubscribe a/+\nexit\n")
            process.stdin.flush()
            assert process.stdout.read() == b"Unsubscribed from topic a/+\n"
            assert process.wait(60) == 0
        finally:
            process.kill()


def test_one_line_subscribes_shows_what_comes_and_leaves_no_session(server: Server) -> None:
    _, port = server.address("pubsub")
    words = "a/+", "b", "--max", "2", "--port", str(port)
    before = rows(server)
    with (
        begun("pubsub", "subscribe", *words) as shown,
        begun("pubsub", "subscribe", *words, "--json") as json_,
    ):
        until(lambda: rows(server).count('"subscriptions": 2') == 2)
        for topic, text in (("a/1", "21.50"), ("b", "-0.5")):
            assert run("pubsub", "publish", topic, "--float", text, "--port", str(port)).returncode == 0
        out, err = shown.communicate(timeout=60)
        assert [line.partition(b" - ")[2] for line in out.splitlines()] == [
            b"a/1 - FLOAT - 21.50",
            b"b - FLOAT - -0.5",
        ]
        assert (shown.returncode, err) == (0, b"")
        out, err = json_.communicate(timeout=60)
        (first, second) = map(json.loads, out.splitlines())
        assert first.pop("sender").startswith("127.0.0.1:")
        assert first == {"topic": "a/1", "type": "FLOAT", "value": "21.50"}
        assert (second["topic"], json_.returncode, err) == ("b", 0, b"")
    until(lambda: rows(server) == before)


def test_a_subscription_ends_with_the_reader_of_its_output(server: Server) -> None:
    before = rows(server)
    with begun("pubsub", "subscribe", "quiet", "--port", str(server.address("pubsub")[1])) as shown:
        until(lambda: rows(server).count('"subscriptions": 1') == 1)
        shown.stdout.close()
        assert (shown.wait(60), shown.stderr.read()) == (128 + 13, b"")
    until(lambda: rows(server) == before)


def test_a_subscription_that_gets_nothing_says_so_by_its_exit_code(server: Server) -> None:
    here, other = ("--port", str(server.address("pubsub")[1])), ("--port", str(server.address("logmq")[1]))
    for words, code, says in (
        (("a", "--timeout", "0.01", "--max", "2", *here), ExitCode.TEMPORARY, "2 more were asked for"),
        (("a", "--timeout", "0.01", *here), ExitCode.OK, ""),
        (here, ExitCode.USAGE, "TOPIC: name at least one"),
        (("a" * 51, *here), ExitCode.USAGE, "a topic has at most 50 bytes"),
        (("a", "--port", "1"), ExitCode.UNAVAILABLE, "no pub/sub server answers"),
        (("a", *other), ExitCode.UNAVAILABLE, "no pub/sub server answers (it says"),
    ):
        done = run_here("pubsub", "subscribe", *words)
        assert (done.returncode, done.stdout) == (code, ""), words
        assert says in done.stderr
    assert rows(server) == ""


@pytest.mark.parametrize(
    ("named", "arguments"),
    [
        ("TOPIC", ()),
        ("TOPIC", ("t",)),
        ("TOPIC", ("t", "--int", "1", "--string", "x")),
        ("TOPIC", ("t" * 51, "--int", "1")),
        ("--int", ("t", "--int", "4294967296")),
        ("--short-real", ("t", "--short-real", "1.234")),
    ],
)
def test_what_cannot_be_published_is_refused_in_one_line(named: str, arguments: tuple[str, ...]) -> None:
    refused = run_here("pubsub", "publish", *arguments)
    assert refused.returncode == 2
    assert refused.stderr.startswith(f"brokers: {named}: ")
    assert len(refused.stderr.splitlines()) == 1


def test_messages_to_publish_may_come_from_standard_input() -> None:
    refused = run("pubsub", "publish", "--from", "-", stdin=b"{}\n")
    assert (refused.returncode, refused.stderr) == (
        2,
        "brokers: --from: line 1: no topic, type or value: 'type'\n",
    )


@pytest.mark.parametrize("value", ["null", "true", '["a", 1]', "{}", "[" * 100_000])
def test_a_message_to_publish_whose_value_is_no_text_and_no_number_is_refused(value: str) -> None:
    line = f'{{"topic": "t", "type": "STRING", "value": {value}}}\n'
    refused = run("pubsub", "publish", "--from", "-", stdin=line.encode())
    assert (refused.returncode, refused.stderr.count("\n")) == (2, 1)
    assert refused.stderr.startswith("brokers: --from: line 1: ")


def test_a_file_of_a_certificate_that_cannot_be_read_is_named() -> None:
    refused = run_here("pubsub", "subscriber", "A", "127.0.0.1", "1", "--ca", "/nowhere")
    assert (refused.returncode, refused.stderr) == (
        2,
        "brokers: --ca: cannot read /nowhere: No such file or directory\n",
    )


def test_an_id_that_is_none_is_a_mistake_on_the_command_line() -> None:
    refused = run_here("pubsub", "subscriber", "more than ten", "127.0.0.1", "1")
    assert (refused.returncode, len(refused.stderr.splitlines())) == (2, 1)


def test_beyond_loopback_who_may_publish_has_to_be_named(new_server: NewServer, tmp_path: Path) -> None:
    data = str(tmp_path / "d")
    refused = run("pubsub", "serve", "0", "--host", "0.0.0.0", "--insecure", "--data-dir", data)
    assert refused.returncode == 78
    assert refused.stderr.splitlines()[-1].startswith("brokers: pubsub.allow: 0.0.0.0 can be reached")
