"""`brokers queues` and the like: what the API lists, narrowed, sorted and paged; and `brokers kick`."""

import io
import json
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pika
import pika.exceptions
import pytest

from brokers.commands import control, objects, render
from brokers.commands.catalog import OBJECT_KINDS
from brokers.errors import ExitCode
from shared.objects import KINDS
from tests.brokers.conftest import Run
from tests.support.server import Server, speak, until

Rows = Callable[..., list[dict[str, Any]]]


@pytest.fixture(scope="module")
def topics(shared_server: Server) -> list[str]:
    """Names of topics, of which the first has most in it."""
    names = [f"listed.{number}" for number in range(7)]
    said = b"".join(b"PRODUCE %s %s\n" % (name.encode(), b"x" * (50 - at)) for at, name in enumerate(names))
    speak(shared_server.address("logmq"), said)
    return names


@pytest.fixture
def rows(command: Run, shared_server: Server) -> Rows:
    def listed(*words: str) -> list[dict[str, Any]]:
        code, out, said = command(*words, "--json", "--data-dir", str(shared_server.data))
        assert code == ExitCode.OK, said
        return [json.loads(line) for line in out.splitlines()]

    return listed


def test_there_is_a_command_for_what_is_listed() -> None:
    assert set(OBJECT_KINDS) <= set(KINDS)


@pytest.mark.parametrize("kind", OBJECT_KINDS)
def test_a_list_is_that_of_the_api(rows: Rows, shared_server: Server, topics: list[str], kind: str) -> None:
    told = control.request(shared_server.data, "GET", f"/api/v1/{kind}?limit=1000")["items"]
    assert [list(row) for row in rows(kind)] == [list(row) for row in told]


def test_charts_are_those_of_the_api(rows: Rows, shared_server: Server, topics: list[str]) -> None:
    (one, two) = rows("chart", "topics", "listed.*", "--sort", "bytes", "-n", "1", "--span", "3h")
    told = control.request(shared_server.data, "GET", f"/api/v1/topics/{topics[0]}/history?span=3h")
    assert [(row["name"], row["chart"]) for row in (one, two)] == [
        (topics[0], "in_rate"),
        (topics[0], "bytes"),
    ]
    assert two["seconds"] == told["seconds"] == 60
    assert two["values"] == told["lines"]["bytes"][""]


@pytest.mark.parametrize("page", [1, 3, 1000])
def test_a_list_has_all_pages_or_as_many_rows_as_are_asked_for(
    rows: Rows, topics: list[str], monkeypatch: pytest.MonkeyPatch, page: int
) -> None:
    monkeypatch.setattr(control, "PAGE", page)
    monkeypatch.setattr(objects, "PAGE", page)

    def names(*words: str) -> list[str]:
        return [row["name"] for row in rows("topics", "listed.*", *words)]

    assert names() == topics
    assert names("--limit", "4") == topics[:4]
    assert names("--limit", "4", "--after", topics[1]) == topics[2:6]
    assert names("--sort", "bytes") == topics
    assert names("--sort", "bytes", "-n", "2") == topics[:2]
    assert names("--sort", "bytes", "--reverse", "-n", "5") == topics[:1:-1]
    assert names("--sort", "name", "--reverse") == topics[::-1]
    assert len(names("--sort", "records", "-n", "2")) == 2, "a column by which the API does not sort"


def test_a_list_is_narrowed_by_a_name_or_by_a_column(rows: Rows, topics: list[str]) -> None:
    assert [row["name"] for row in rows("topics", "STED.3")] == [topics[3]]
    assert rows("topics", "protocol=dms") == []
    assert len(rows("topics", "protocol=logmq", "match=listed.?")) == len(topics)
    assert rows("topics", "match=[l]isted.*") == [], "a bracket is a bracket"


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["chart", "users"], ExitCode.USAGE, 'Choose from: "connections", '),
        (["topics", "colour=red"], ExitCode.USAGE, "colour: no parameter of this list"),
        (["topics", "--sort", "colour"], ExitCode.USAGE, "not sorted by colour; but by name, "),
        (["queues", "--sort", "settings"], ExitCode.USAGE, "not sorted by settings; but by protocol, "),
        (["queues", "nix", "--columns", "nmae"], ExitCode.USAGE, "no column nmae; did you mean name?"),
        (["logs", "dms-1", "dms-2"], ExitCode.USAGE, "dms-1 dms-2: nothing is expected there"),
        (["topics", "limit=3"], ExitCode.USAGE, "limit is a flag: --limit"),
        (["topics", "--reverse"], ExitCode.USAGE, "needs --sort"),
        (["topics", "--sort", "name", "--after", "a"], ExitCode.USAGE, "not with --sort"),
        (["topics", "--limit", "0"], ExitCode.USAGE, "1 at least"),
        (["topics", "a", "b"], ExitCode.USAGE, "match is given twice"),
        (["kick", "nix-1"], ExitCode.MISSING, ""),
    ],
)
def test_what_cannot_be_listed_is_a_line(
    command: Run, shared_server: Server, words: list[str], code: ExitCode, said: str
) -> None:
    got, _, line = command(*words, "--data-dir", str(shared_server.data))
    assert got == code
    assert said in line


def test_another_port_than_the_admin_port_is_called_so(
    command: Run, shared_server: Server, tmp_path: Path
) -> None:
    (tmp_path / "token").write_text("secret")
    url = "http://{}:{}".format(*shared_server.address("logmq"))
    code, _, line = command("queues", "--url", url, "--token-file", str(tmp_path / "token"))
    assert (code, line.endswith("(it speaks no HTTP, so it is no admin port)\n")) == (69, True)


def test_a_connection_is_kicked_and_others_that_are_not_there_are_told(
    command: Run, rows: Rows, shared_server: Server
) -> None:
    with socket.create_connection(shared_server.address("logmq"), timeout=10) as client:
        client.sendall(b"PING\n")
        assert client.recv(100) == b"PONG\n"
        peer = "{}:{}".format(*client.getsockname())
        (name,) = [row["id"] for row in rows("connections", "protocol=logmq") if row["peer"] == peer]
        code, out, _ = command("kick", "nix-1", name, "--json", "--data-dir", str(shared_server.data))
        assert code == ExitCode.MISSING
        told = [json.loads(line) for line in out.splitlines()]
        assert told == [{"connection": "nix-1", "closed": 0}, {"connection": name, "closed": 1}]
        assert client.recv(100) == b""
    until(lambda: all(row["id"] != name for row in rows("connections")))


def test_a_kicked_client_of_amqp_is_finishing_until_it_agrees(
    command: Run, rows: Rows, shared_server: Server
) -> None:
    host, port = shared_server.address("dmp")
    client = pika.BlockingConnection(pika.ConnectionParameters(host, port))
    (row,) = rows("connections", "protocol=dmp")
    assert row["state"] == "open"
    assert command("kick", row["id"], "--data-dir", str(shared_server.data))[0] == ExitCode.OK
    assert [each["state"] for each in rows("connections", "protocol=dmp")] == ["finishing"]
    with pytest.raises(pika.exceptions.ConnectionClosedByBroker):
        client.process_data_events(10)
    until(lambda: rows("connections", "protocol=dmp") == [])


def test_messages_are_read_through_the_api_where_only_that_is_reached(
    command: Run, shared_server: Server
) -> None:
    big = b"x" * 300_000
    speak(shared_server.address("logmq"), b"PRODUCE far one\nAPPEND far 3\n\xff\n2PRODUCE far three\n")
    speak(shared_server.address("logmq"), b"COMMIT g far 14\nPRODUCE huge " + big + b"\n")

    def consumed(*words: str) -> tuple[int, str, str]:
        return command("logmq", "consume", *words, "--data-dir", str(shared_server.data))

    assert consumed("far", "--offsets", "--max", "1") == (0, "0  one\n", "")
    assert [json.loads(line)["offset"] for line in consumed("far", "--json")[1].splitlines()] == [0, 7, 14]
    for said in (["--from", "last:1"], ["--from", "14"], ["--group", "g"]):
        assert consumed("far", *said)[1] == "three\n"
    assert consumed("far", "--from", "end")[1] == ""
    assert consumed("far", "--from", "1h", "--max", "1")[1] == "one\n"
    for words, code, why in (
        (["nix"], ExitCode.MISSING, "nix"),
        (["huge"], ExitCode.FAILED, "more than the API shows"),
    ):
        got, _, line = consumed(*words)
        assert got == code
        assert why in line


def test_what_only_the_protocol_can_do_goes_to_the_same_server_as_the_rest(
    command: Run, shared_server: Server
) -> None:
    speak(shared_server.address("logmq"), b"PRODUCE near one\nPRODUCE near two\n")
    named = ("--data-dir", str(shared_server.data))
    assert command("logmq", "consume", "near", "--follow", "--max", "1", *named)[:2] == (0, "one\n")
    group = ("--group", "h", "--commit", "--max", "1")
    for message in ("one", "two"):
        assert command("logmq", "consume", "near", *group, *named)[:2] == (0, f"{message}\n")


def test_a_watched_list_is_shown_anew_until_it_is_interrupted(
    rows: Rows, topics: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    rests: list[float] = []

    def rest(seconds: float) -> None:
        rests.append(seconds)
        if len(rests) == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr(render, "sleep", rest)
    output = io.StringIO()
    listing = objects.list_app(KINDS["topics"])
    watched = render.Watched(lambda: render.Listing([{"name": topics[0]}], {"name": ""}))
    with pytest.raises(KeyboardInterrupt):
        render.Output(output).show(watched)
    assert output.getvalue().split() == ["name", topics[0]] * 3
    assert min(rests) >= render.WATCH_SECONDS
    assert "--watch" in str([argument.names for argument in listing.assemble_argument_collection()])


def test_a_queue_and_a_topic_are_made_and_changed_as_the_page_does(
    rows: Rows, command: Run, shared_server: Server
) -> None:
    folder = ("--data-dir", str(shared_server.data))
    api = control.socket_client(shared_server.data)
    api.post("queues", protocol="dms", name="changed.queue")
    usual = api.get("queues", "dms", "changed.queue")["settings"]

    def settings() -> Any:
        return api.get("queues", "dms", "changed.queue")["settings"]

    (told,) = rows("dms", "change", "changed.queue", "--ttl-ms", "60000", "--dry-run")
    assert settings() == usual, told
    assert rows("dms", "change", "changed.queue", "--ttl-ms", "60000") == [
        {"queue": "changed.queue", "changed": 1}
    ]
    assert settings() == {**usual, "ttl_ms": 60000}
    rows("dms", "change", "changed.queue", "--unset", "ttl-ms")
    assert settings() == usual
    assert rows("logmq", "create", "changed.topic", "--retention-seconds", "60") == [
        {"topic": "changed.topic", "created": 1}
    ]
    assert api.get("topics", "changed.topic")["retention_seconds"] == 60
    rows("logmq", "change", "changed.topic", "--unset", "retention-seconds", "--retention-bytes", "5000")
    topic = api.get("topics", "changed.topic")
    assert (topic["retention_seconds"], topic["retention_bytes"]) == (None, 5000)
    code, _, said = command("dms", "change", "changed.queue", "--unset", "colour", *folder)
    assert (code, "is none of depth-limit" in said) == (ExitCode.USAGE, True)
    assert command("logmq", "create", "changed.topic", *folder)[0] == ExitCode.FAILED
