"""`brokers logmq ...` against the real process: what each command says, and how it ends."""

import json
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from brokers.errors import ExitCode
from tests.support.leaving import run_and_leave
from tests.support.server import SHORT_LINGER, Command, Server, begun, run, run_here, speak


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Server(tmp_path_factory.mktemp("logmq")) as server:
        yield server


@pytest.fixture
def logmq(server: Server, commands: Callable[[Server, str], Command]) -> Command:
    return commands(server, "logmq")


def rows(text: str) -> list[dict[str, object]]:
    return [json.loads(line) for line in text.splitlines()]


def test_messages_given_as_arguments_show_their_offsets(logmq: Command) -> None:
    assert logmq("produce", "args", "hello", "a second one") == (
        0,
        "topic  offset\nargs        0\nargs        9\n",
        "",
    )
    code, out, _ = logmq("produce", "args", "x", "--json")
    assert (code, rows(out)) == (0, [{"topic": "args", "offset": 25}])
    assert logmq("consume", "args")[1] == "hello\na second one\nx\n"


def test_each_line_of_standard_input_is_a_message(server: Server) -> None:
    lines = b"".join(b"line %d\r\n" % number for number in range(5000)) + b"\nno end"
    address = ("--port", str(server.address("logmq")[1]))
    done = run("logmq", "produce", "stdin", "--json", *address, stdin=lines)
    assert (done.returncode, done.stderr) == (0, "")
    (row,) = rows(done.stdout)
    assert (row["messages"], row["first"]) == (5002, 0)
    shown = run("logmq", "consume", "stdin", *address)
    assert shown.stdout.encode() == lines.replace(b"\r", b"") + b"\n"


def test_consume_begins_and_ends_where_it_is_told(logmq: Command) -> None:
    logmq("produce", "range", "one", "two", "three")
    assert logmq("consume", "range", "--from", "7")[1] == "two\nthree\n"
    assert logmq("consume", "range", "--from", "7", "--max", "1")[1] == "two\n"
    assert logmq("consume", "range", "--from", "end")[1] == ""
    assert logmq("consume", "range", "--from", "first", "--max", "0")[1] == ""
    assert logmq("consume", "range", "--max", "1", "--offsets")[1] == "0  one\n"
    assert rows(logmq("consume", "range", "--max", "2", "--json")[1]) == [
        {"offset": 0, "message": "one"},
        {"offset": 7, "message": "two"},
    ]


def test_a_group_goes_on_where_it_has_committed(logmq: Command, server: Server) -> None:
    logmq("produce", "grouped", "one", "two", "three")
    group = ("--group", "billing", "--commit")
    assert logmq("consume", "grouped", *group, "--max", "2")[1] == "one\ntwo\n"
    assert logmq("consume", "grouped", "--group", "billing")[1] == "three\n"
    folder = ("--data-dir", str(server.data))
    shown = {"group": "billing", "topic": "grouped", "offset": 14, "end": 23, "lag_bytes": 9}
    (row,) = rows(logmq("groups", "--topic", "grouped", "--json", *folder)[1])
    assert row == {**row, **shown}
    assert logmq("groups", "--group", "nobody", "--json", *folder)[1] == ""
    assert logmq("consume", "grouped", *group)[1] == "three\n"
    assert logmq("consume", "grouped", *group) == (0, "", "")


@pytest.mark.parametrize("more", [(), ("--json",)])
def test_a_group_goes_on_behind_what_a_reader_that_left_early_has_read(
    logmq: Command, more: tuple[str, ...]
) -> None:
    topic = "-".join(["cut", *more])
    logmq("produce", topic, *(f"<{number}>" for number in range(9)))
    code, read = run_and_leave(3, "logmq", "consume", topic, "--group", "g", "--commit", *more)
    assert code == 128 + signal.SIGPIPE
    assert [text.count(b"<%d>" % number) for number, text in enumerate(read)] == [1, 1, 1]
    assert logmq("consume", topic, "--group", "g")[1] == "".join(f"<{n}>\n" for n in range(3, 9))


IGNORING = (
    "import os, signal, sys\n"
    "signal.signal(signal.SIGINT, signal.SIG_IGN)\n"
    "os.execv(sys.executable, [sys.executable, '-m', 'brokers', *sys.argv[1:]])"
)
"""A shell lets what a script starts in the background ignore SIGINT."""


@pytest.mark.parametrize(
    ("told", "code", "ignoring"),
    [
        (signal.SIGINT, ExitCode.INTERRUPTED, False),
        (signal.SIGTERM, -signal.SIGTERM, False),
        (signal.SIGTERM, -signal.SIGTERM, True),
    ],
)
def test_a_group_has_committed_what_its_reader_has_taken_however_its_consumer_was_told_to_end(
    server: Server, logmq: Command, told: signal.Signals, code: int, ignoring: bool
) -> None:
    topic, port = f"told-{told.name}-{ignoring}", str(server.address("logmq")[1])
    logmq("produce", topic, *(f"{number:06}" for number in range(2000)))
    words = ("logmq", "consume", topic, "--group", "g", "--commit", "--follow", "--port", port)
    pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with (
        subprocess.Popen([sys.executable, "-c", IGNORING, *words], **pipes) if ignoring else begun(*words)
    ) as consumer:
        taken = b"".join(consumer.stdout.read(7) for _ in range(50))
        if ignoring:
            consumer.send_signal(signal.SIGINT)
            taken += b"".join(consumer.stdout.read(7) for _ in range(50))
        consumer.send_signal(told)
        taken += consumer.stdout.read()
        assert consumer.stderr.read() == b""
    assert consumer.returncode == code
    lines = taken.decode().splitlines()
    assert lines == [f"{number:06}" for number in range(len(lines))]
    first = logmq("consume", topic, "--group", "g", "--max", "1")[1]
    assert len(lines) - 1 <= int(first) <= len(lines), "all but what the pipe held may be shown again"


def test_a_commit_without_a_group_is_refused(logmq: Command) -> None:
    code, _, err = logmq("consume", "x", "--commit")
    assert code == ExitCode.USAGE
    assert "--group" in err


def test_tail_shows_what_is_there_and_what_comes(logmq: Command, server: Server) -> None:
    logmq("produce", "tailed", "one", "two")
    assert logmq("tail", "tailed", "--from", "first", "--max", "2")[1] == "one\ntwo\n"
    assert rows(logmq("tail", "tailed", "--from", "7", "--max", "1", "--json")[1]) == [
        {"offset": 7, "message": "two"}
    ]


def test_topics_offsets_seek_and_delete(logmq: Command) -> None:
    logmq("produce", "life", "one", "two")
    row = {"topic": "life", "first": 0, "end": 14, "bytes": 14}
    assert row in rows(logmq("topics", "--json")[1])
    assert rows(logmq("offsets", "life", "--json")[1]) == [{"topic": "life", "first": 0, "end": 14}]
    assert rows(logmq("seek", "life", "0", "--json")[1]) == [{"topic": "life", "offset": 0}]
    assert rows(logmq("seek", "life", "2001-01-01T12:00", "--json")[1]) == [{"topic": "life", "offset": 0}]
    assert rows(logmq("seek", "life", "1h", "--json")[1]) == [{"topic": "life", "offset": 0}]
    assert logmq("consume", "life", "--from", "30m ago")[1] == "one\ntwo\n"
    assert rows(logmq("delete", "life", "--json")[1])[0]["deleted"]
    code, out, err = logmq("offsets", "life")
    assert (code, out) == (ExitCode.MISSING, "")
    assert err == "brokers: NO_TOPIC: life does not exist; the first write makes it\n"


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("produce", ".bad", "x"), ExitCode.FAILED),
        (("consume", "nix"), ExitCode.MISSING),
        (("consume", "nix", "--from", "soon"), ExitCode.USAGE),
        (("seek", "nix", "soon"), ExitCode.USAGE),
        (("delete", "nix"), ExitCode.MISSING),
        (("offsets",), ExitCode.USAGE),
        (("topics", "--port", "1"), ExitCode.UNAVAILABLE),
        (("produce", "t", "x", "--port", "1"), ExitCode.UNAVAILABLE),
        (("tail", "t", "--port", "1"), ExitCode.UNAVAILABLE),
    ],
)
def test_a_command_that_fails_says_why_in_one_line(
    logmq: Command, arguments: tuple[str, ...], code: ExitCode
) -> None:
    got, out, err = logmq(*arguments)
    assert (got, out) == (code, "")
    assert err.startswith("brokers: ")
    assert err.count("\n") == 1


def test_the_stand_alone_form_serves_logmq_alone_and_drains_well(tmp_path: Path) -> None:
    with Server(tmp_path, "--port", "0", command=("logmq", "serve"), environ=SHORT_LINGER) as alone:
        assert {bound["protocol"] for bound in alone.ready["addresses"]} == {"logmq"}
        with socket.create_connection(alone.address("logmq")) as waiting:
            waiting.sendall(b"PRODUCE t one\nFETCH t 7 100 60000\nPING\n")
            while not waiting.recv(100).endswith(b"OK 0\n"):
                pass
            assert alone.stop() == 0
            assert b"".join(iter(lambda: waiting.recv(100), b"")) == b"EOF\nPONG\n"


def counted(server: Server) -> dict[tuple[str, ...], float]:
    text = run_here("metrics", "--data-dir", str(server.data)).stdout
    return {
        (sample.name.removeprefix("brokers_logmq_"), *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name.startswith("brokers_logmq_")
    }


def test_metrics_count_what_was_done(tmp_path: Path) -> None:
    with Server(tmp_path) as server:
        before = counted(server)
        blob = b"\0\0\0\3one"
        speak(
            server.address("logmq"),
            b"PRODUCE m one\nPRODUCE m two\nCONSUME m 0\nFETCH m 0 100\nNOPE\nCOMMIT g m 7\n"
            b"BATCH m w 1 7\n" + blob + b"BATCH m w 1 7\n" + blob,
        )
        after = counted(server)
    grown = {name: value - before.get(name, 0) for name, value in after.items()}
    assert {name: value for name, value in grown.items() if value} == {
        ("messages_produced_total",): 3,
        ("produced_bytes_total",): 21,
        ("messages_consumed_total",): 1,
        ("fetched_bytes_total",): 14,
        ("batches_repeated_total",): 1,
        ("requests_refused_total", "UNKNOWN_COMMAND"): 1,
        ("topics",): 1,
        ("commits",): 1,
        ("writers",): 1,
    }
    assert after["tails",] == after["fetches_waiting",] == 0


def test_consume_begins_so_many_messages_before_the_end(server: Server, logmq: Command) -> None:
    """Across blocks of the index and chunks of an answer, however large the messages are."""
    sizes = [0, 300_000, 3, 200_000, 100_000, 70_000, *[100] * 2000]
    said = b"".join(
        b"PRODUCE back %s\n" % (b"%d" % number).ljust(size, b".") for number, size in enumerate(sizes)
    )
    speak(server.address("logmq"), said)
    numbers = [str(number) for number in range(len(sizes))]
    for count in (1, 2, 999, 2001, 2005, 2006, 10_000):
        lines = logmq("consume", "back", "--from", f"last:{count}")[1].splitlines()
        assert [line.rstrip(".") for line in lines] == numbers[-count:], count
    assert logmq("tail", "back", "--from", "last:2", "--max", "2")[1].count("\n") == 2
    for said_ in ("last:0", "last:", "last:x", "last:99999999", "²", "7" * 5000):
        assert logmq("consume", "back", "--from", said_)[0] == ExitCode.USAGE


def test_a_group_is_reset_and_forgotten_and_a_topic_trimmed(server: Server, logmq: Command) -> None:
    logmq("produce", "steered", "one", "two", "three")
    logmq("consume", "steered", "--group", "g", "--commit")
    where = ("--data-dir", str(server.data))

    def done(*words: str) -> dict[str, object]:
        code, out, said = logmq(*words, "--json", *where)
        assert code == 0, said
        return dict(rows(out)[0])

    def offset() -> object:
        return rows(logmq("groups", "--topic", "steered", "--json", *where)[1])[0]["offset"]

    told = {"group": "g", "topic": "steered", "reset": 1, "before": 23, "offset": 0}
    assert done("groups", "reset", "g", "steered", "first", "--dry-run") == told
    assert offset() == 23
    assert done("groups", "reset", "g", "steered", "first") == told
    assert offset() == 0
    for said, at in (("7", 7), ("1h", 0), ("end", 23)):
        assert done("groups", "reset", "g", "steered", said)["offset"] == at
    assert done("trim", "steered", "7", "--dry-run").items() >= {"dropped": 7, "first": 7}.items()
    assert done("trim", "steered", "7")["first"] == 7
    assert logmq("consume", "steered")[1] == "two\nthree\n"
    assert done("groups", "delete", "g", "steered")["deleted"] == 1
    assert logmq("groups", "delete", "g", "steered", *where)[0] == ExitCode.MISSING
    assert logmq("trim", "steered", "8", *where)[0] == ExitCode.FAILED
    assert logmq("trim", "steered", "all", *where)[0] == ExitCode.USAGE
    assert logmq("groups", "reset", "g", "steered", "soon", *where)[0] == ExitCode.USAGE
