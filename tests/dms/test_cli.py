"""`brokers dms ...` against the real process: what each command says, and how it ends."""

import json
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from brokers.errors import ExitCode
from tests.support.dms_spec import Refused, SpecClient
from tests.support.leaving import run_and_leave
from tests.support.server import Command, Server, begun, run


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    arguments = ("--enable", "dms")
    environ = {"BROKERS_DMS_CONSUME_SECONDS": "0.5", "BROKERS_DMS_DEPTH": "5000"}
    with Server(tmp_path_factory.mktemp("dms"), *arguments, environ=environ) as server:
        yield server


@pytest.fixture
def dms(server: Server, commands: Callable[[Server, str], Command]) -> Command:
    return commands(server, "dms")


def rows(text: str) -> list[dict[str, object]]:
    return [json.loads(line) for line in text.splitlines()]


def test_the_specs_own_client_commands(dms: Command) -> None:
    assert dms("create", "-q", "orders") == (0, "queue    orders\ncreated  yes\n", "")
    assert dms("produce", "-q", "orders", "-m", "order #42")[0] == 0
    code, out, _ = dms("produce", "-q", "orders", "-m", "two", "-m", "three", "--json")
    assert (code, rows(out)) == (0, [{"queue": "orders", "messages": 2, "sent_again": 0}])
    assert {"queue": "orders", "depth": 3} in rows(dms("list", "--json")[1])
    assert dms("consume", "-q", "orders") == (0, "order #42\n", "")
    code, out, _ = dms("consume", "-q", "orders", "-c", "-n", "2", "--json")
    assert (code, [row["message"] for row in rows(out)]) == (0, ["two", "three"])
    code, out, _ = dms("delete", "-q", "orders", "--json")
    assert (code, json.loads(out)["deleted"]) == (0, True)


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (("produce", "-q", "nowhere", "-m", "x"), ExitCode.MISSING, "QUEUE_NOT_FOUND"),
        (("consume", "-q", "nowhere"), ExitCode.MISSING, "QUEUE_NOT_FOUND"),
        (("consume", "-q", "nowhere", "-c"), ExitCode.MISSING, "QUEUE_NOT_FOUND"),
        (("delete", "-q", "nowhere"), ExitCode.MISSING, "QUEUE_NOT_FOUND"),
        (("consume", "-q", "empty"), ExitCode.TEMPORARY, "TIMEOUT"),
        (("create", "-q", "empty"), ExitCode.FAILED, "QUEUE_EXISTS"),
        (("create", "-q", "a\nb"), ExitCode.FAILED, "PROTOCOL_ERROR"),
        (("create", "-q", "x", "--ttl-ms", "-1"), ExitCode.FAILED, "PROTOCOL_ERROR"),
        (("produce", "-q", "empty", "-m", "x" * 5000), ExitCode.FAILED, "PAYLOAD_TOO_LARGE"),
        (("stress", "-q", "empty", "-n", "0"), ExitCode.USAGE, "--number"),
        (("consume", "-q", "empty", "-n", "-1"), ExitCode.USAGE, "-n. 1 at least"),
        (("peek", "-q", "empty", "-n", "-1"), ExitCode.USAGE, "1 to 1000"),
        (("serve", "-t", "0"), ExitCode.USAGE, "must be > 0: 0.0 (--timeout)"),
        (("serve", "-d", "0"), ExitCode.USAGE, "(--depth)"),
        (("serve", "-l", "4"), ExitCode.USAGE, "--level"),
        (("peek", "-q", "nowhere"), ExitCode.MISSING, "there is no queue nowhere in dms"),
        (("purge", "-q", "nowhere"), ExitCode.MISSING, "there is no queue nowhere in dms"),
        (("list", "--port", "1"), ExitCode.UNAVAILABLE, "no DMS server answers"),
        (("list", "--port", "65536"), ExitCode.USAGE, "a port is 1 to 65535"),
        (("peek", "-q", "x", "-D", "/nowhere"), ExitCode.UNAVAILABLE, "no server is running"),
        (("create",), ExitCode.USAGE, "dms create: --queue is missing"),
        (("consume",), ExitCode.USAGE, "dms consume: --queue is missing"),
        (("consume", "-q"), ExitCode.USAGE, "dms consume: -q needs a value"),
        (("pause", "nowhere"), ExitCode.MISSING, "there is no queue nowhere in dms"),
        (
            ("create", "x", "--ttl-ms", "1", "--delay-ms", "2"),
            ExitCode.FAILED,
            "ttl_ms (1) is below delay_ms",
        ),
        (("create", "x", "--retry-max-ms", "2"), ExitCode.FAILED, "needs retry_ms"),
    ],
)
def test_a_command_that_fails_says_why_in_one_line_and_how_in_its_exit_code(
    dms: Command, arguments: tuple[str, ...], code: ExitCode, says: str
) -> None:
    dms("create", "-q", "empty", "--exist-ok")
    got, out, err = dms(*arguments)
    assert (got, out) == (code, ""), err
    assert err.startswith("brokers: ")
    assert err.count("\n") == 1
    assert says in err


def test_a_queue_that_may_be_there(dms: Command) -> None:
    assert rows(dms("create", "-q", "twice", "--exist-ok", "--json")[1]) == [
        {"queue": "twice", "created": True}
    ]
    assert rows(dms("create", "-q", "twice", "--exist-ok", "--json")[1]) == [
        {"queue": "twice", "created": False}
    ]


def test_each_line_of_standard_input_is_a_message(dms: Command, server: Server) -> None:
    dms("create", "-q", "lines")
    port = ("--port", str(server.address("dms")[1]))
    lines = b"".join(b"line %d\r\n" % number for number in range(3000)) + b"\nno end"
    done = run("dms", "produce", "-q", "lines", "--json", *port, stdin=lines)
    assert (done.returncode, done.stderr) == (0, "")
    assert rows(done.stdout) == [{"queue": "lines", "messages": 3002, "sent_again": 0}]
    shown = run("dms", "consume", "-q", "lines", "-c", "-n", "3002", *port)
    assert shown.stdout.encode() == lines.replace(b"\r", b"") + b"\n"


def test_what_came_before_a_line_that_is_too_long_is_in_the_queue(dms: Command, server: Server) -> None:
    dms("create", "-q", "short")
    port = ("--port", str(server.address("dms")[1]))
    done = run("dms", "produce", "-q", "short", *port, stdin=b"1\n" + b"x" * 5000 + b"\n3\n")
    assert (done.returncode, done.stdout) == (ExitCode.FAILED, "")
    assert done.stderr.startswith("brokers: PAYLOAD_TOO_LARGE: a message of 5000 bytes")
    assert done.stderr.endswith("(2 messages were put)\n")
    assert dms("consume", "-q", "short", "-n", "2") == (0, "1\n3\n", "")


def test_a_full_queue_is_told_or_waited_for(dms: Command, server: Server) -> None:
    dms("create", "-q", "small", "--depth", "3")
    port = ("--port", str(server.address("dms")[1]))
    done = run("dms", "produce", "-q", "small", *port, stdin=b"1\n2\n3\n4\n5\n")
    assert (done.returncode, done.stdout) == (ExitCode.TEMPORARY, "")
    assert done.stderr == "brokers: QUEUE_FULL: small holds its 3 messages (3 messages were put)\n"
    with begun("dms", "produce", "-q", "small", "--wait", "--json", *port) as waiting:
        assert waiting.stdin is not None
        assert waiting.stdout is not None
        waiting.stdin.write(b"4\n5\n")
        waiting.stdin.close()
        with SpecClient(server.address("dms")) as client:
            taken: list[bytes] = []
            while len(taken) < 5:
                with suppress(Refused):  # in time
                    delivery, body = client.consume("small")
                    client.ack(delivery)
                    taken.append(body)
        assert rows(waiting.stdout.read().decode()) == [{"queue": "small", "messages": 2, "sent_again": 0}]
    assert taken == [b"1", b"2", b"3", b"4", b"5"]


@pytest.mark.parametrize(
    ("told", "code"), [(signal.SIGINT, ExitCode.INTERRUPTED), (signal.SIGTERM, -signal.SIGTERM)]
)
def test_a_continuous_consumer_acknowledges_what_it_has_shown_and_ends_when_told(
    dms: Command, server: Server, told: signal.Signals, code: int
) -> None:
    dms("create", "-q", "ongoing", "--exist-ok")
    port = ("--port", str(server.address("dms")[1]))
    with begun("dms", "consume", "-q", "ongoing", "-c", *port) as consumer:
        assert consumer.stdout is not None
        assert consumer.stderr is not None
        for text in ("one", "two"):
            dms("produce", "-q", "ongoing", "-m", text)
            assert consumer.stdout.readline() == text.encode() + b"\n"
        while {"queue": "ongoing", "depth": 0} not in rows(dms("list", "--json")[1]):
            pass
        consumer.send_signal(told)
        assert consumer.stderr.read() == b""
    assert consumer.returncode == code


@pytest.mark.parametrize("more", [("-c",), ("-c", "--json"), ("-n", "9")])
def test_what_a_reader_that_leaves_early_has_not_read_is_in_the_queue(
    dms: Command, more: tuple[str, ...]
) -> None:
    dms("create", "-q", "cut", "--exist-ok")
    dms("purge", "-q", "cut")
    dms("produce", "-q", "cut", *(word for number in range(9) for word in ("-m", f"<{number}>")))
    code, read = run_and_leave(3, "dms", "consume", "-q", "cut", *more)
    assert code == 128 + signal.SIGPIPE
    assert [text for text in read if text.count(b"\n") != 1] == []
    assert [text.count(b"<%d>" % number) for number, text in enumerate(read)] == [1, 1, 1]
    assert dms("consume", "-q", "cut", "-c", "-n", "6")[1] == "".join(f"<{n}>\n" for n in range(3, 9))


def test_stress_accounts_for_every_message(dms: Command) -> None:
    code, out, _ = dms("stress", "-q", "bench", "-n", "3000", "--size", "64", "--json")
    (row,) = rows(out)
    assert code == 0
    assert (row["queue"], row["messages"], row["size"]) == ("bench", 3000, 64)
    assert "bench" not in dms("list")[1]
    dms("create", "-q", "bench")
    assert dms("stress", "-q", "bench", "-n", "10")[0] == 0
    dms("produce", "-q", "bench", "-m", "mine")
    code, _, err = dms("stress", "-q", "bench", "-n", "10")
    assert (code, "not this command's" in err) == (ExitCode.FAILED, True)
    assert dms("consume", "-q", "bench")[1] == "mine\n"


def fill(dms: Command, queue: str, *bodies: str, options: tuple[str, ...] = ()) -> None:
    assert dms("create", "-q", queue, *options)[0] == 0
    if bodies:
        assert dms("produce", "-q", queue, *(word for body in bodies for word in ("-m", body)))[0] == 0


def test_a_queue_goes_to_a_file_and_comes_from_one(dms: Command, tmp_path: Path) -> None:
    fill(dms, "exported", "one", "two")
    file = tmp_path / "copy.dmsq"
    (row,) = rows(dms("export", str(file), "-q", "exported", "--json")[1])
    assert row["messages"] == 2
    one, two = (len(body).to_bytes(4, "big") + body for body in (b"one", b"two"))
    assert file.read_bytes() == b"\0\0\0\2" + bytes(4) + one + bytes(4) + two, "count, then id, length, bytes"
    assert rows(dms("import", str(file), "--json")[1]) == [{"queue": "copy", "messages": 2}]
    assert rows(dms("import", str(file), "-q", "exported", "--json")[1])[0]["queue"] == "exported"
    assert dms("consume", "-q", "exported", "-c", "-n", "4")[1] == "one\ntwo\none\ntwo\n"
    assert dms("consume", "-q", "copy", "-c", "-n", "2")[1] == "one\ntwo\n"
    code, out, err = dms("import", str(tmp_path / "nowhere.dmsq"))
    assert (code, out, err.count("nowhere.dmsq: No such file")) == (ExitCode.MISSING, "", 1)


def test_without_p_nothing_is_kept_and_with_it_everything(tmp_path: Path) -> None:
    for flags, kept in (((), {}), (("-P",), {"jobs": 1})):
        folder = tmp_path / f"{len(kept)}"
        folder.mkdir()
        server = Server(folder, "-p", "0", *flags, command=("dms", "serve"))
        server.defaults = {}  # how large its journal is, it says itself
        with server:
            with SpecClient(server.address("dms")) as client:
                client.create("jobs")
                client.produce("jobs", b"order #42")
            assert server.stop() == 0
            server.start()
            with SpecClient(server.address("dms")) as client:
                assert client.queues() == kept
        if not kept:
            left = [path for path in server.data.rglob("*") if path.is_file() and path.name != "RESERVE"]
            assert {path.suffix or path.name for path in left} == {
                "LOCK",
                "FORMAT",
                "CATALOG",
                ".wal",
                "charts",
            }
            assert not any(b"order #42" in path.read_bytes() for path in left)
            assert sum(path.stat().st_size for path in left) < 200_000


def test_what_is_refused_goes_back_and_its_delivery_counts(dms: Command) -> None:
    dms("create", "refused", "--max-deliveries", "2")
    dms("produce", "refused", "a", "b", "c")
    assert dms("consume", "refused", "-n", "2", "--nack") == (0, "a\nb\n", "")
    shown = rows(dms("peek", "refused", "--json")[1])
    assert {row["text"]: row["properties"]["deliveries"] for row in shown} == {"a": 1, "b": 1, "c": 0}
    assert dms("consume", "refused", "--nack")[1] == "a\n"
    assert dms("consume", "refused", "-n", "2")[1] == "b\nc\n", "a was refused too often"
    dms("produce", "refused", "d", "--dedup", "d")
    assert dms("consume", "refused", "--nack", "--delay", "1h", "--text", "not now")[1] == "d\n"
    told = rows(dms("job", "refused", "--dedup", "d", "--json")[1])[0]
    assert (told["state"], told["text"]) == ("waiting", "not now")
    assert dms("consume", "refused", "--delay", "1h")[0] == ExitCode.USAGE
    assert dms("create", "timed", "--schedule", '{"every": "1h", "body": "tick"}')[0] == 0
    assert dms("create", "wrong", "--schedule", '{"every": "1h", "body": 1}')[0] == ExitCode.USAGE
    assert "--schedule: is not JSON" in dms("create", "wrong", "--schedule", "every 10m")[2]
    code, _, err = dms("consume", "refused", "-c", "--nack")
    assert code == ExitCode.USAGE
    assert "--nack" in err


def test_a_dead_letter_queue_that_is_not_there_is_told_when_it_is_named(dms: Command) -> None:
    code, _, said = dms("create", "-q", "names-none", "--dead-letter", "typo")
    assert (code, said.count("\n")) == (0, 1)
    assert said.startswith("brokers: no queue typo is listed: names-none holds its dead messages back")
    assert dms("create", "-q", "typo")[0] == 0
    assert dms("create", "-q", "names-one", "--dead-letter", "typo")[2] == ""


def test_what_is_there_is_taken_and_a_timeout_ends_the_wait_for_more(dms: Command) -> None:
    dms("create", "-q", "some")
    dms("produce", "some", "a", "b", "c")
    code, out, said = dms("consume", "some", "--max", "5", "--timeout", "0.2")
    assert (code, out) == (ExitCode.TEMPORARY, "a\nb\nc\n")
    assert said == "brokers: no message came in time; 2 more were asked for\n"
    dms("produce", "some", "d", "e")
    assert dms("consume", "some", "-c", "--timeout", "0.2") == (0, "d\ne\n", "")
    assert {"queue": "some", "depth": 0} in rows(dms("list", "--json")[1])
    assert dms("consume", "some", "--timeout", "0")[0] == ExitCode.USAGE


def test_a_job_waits_is_looked_at_and_comes_though_the_server_is_killed(
    new_server: Callable[..., Server], commands: Callable[[Server, str], Command]
) -> None:
    server = new_server("--enable", "dms").start()
    dms = commands(server, "dms")
    dms("create", "-q", "mails", "--dedup-ms", "600000")
    said = ("--dedup", "a", "--delay", "1h", "--header", "to=ann", "--ttl", "1d", "--key", "k")
    for _ in range(2):
        assert dms("produce", "-q", "mails", "-m", "hello", *said)[0] == 0
    assert (
        dms(
            "produce",
            "-q",
            "mails",
            "-m",
            "gone",
            "--dedup",
            "b",
            "--at",
            f"{time.time_ns() // 10**6 + 10**8}",
        )[0]
        == 0
    )
    assert dms("cancel", "-q", "mails", "--dedup", "b")[0] == 0
    server.kill()
    dms = commands(server.start(), "dms")
    assert dms("cancel", "-q", "mails", "--dedup", "b")[0] == ExitCode.MISSING
    code, out, _ = dms("job", "-q", "mails", "--dedup", "a", "--json")
    (shown,) = rows(out)
    assert (code, shown["state"], shown["message"], shown["headers"]) == (
        0,
        "waiting",
        "hello",
        {"to": "ann"},
    )
    assert dms("reschedule", "-q", "mails", "--dedup", "a", "--delay", "0s")[0] == 0
    server.kill()
    dms = commands(server.start(), "dms")
    code, out, _ = dms("consume", "-q", "mails", "--json", "--about", "--max", "1")
    (row,) = rows(out)
    assert (code, row["message"], row["deliveries"], row["key"]) == (0, "hello", 1, "k")
    assert dms("produce", "-q", "mails", "-m", "hello", "--dedup", "a")[0] == 0
    assert rows(dms("list", "--json")[1]) == [{"queue": "mails", "depth": 0}]


@pytest.mark.parametrize(
    "arguments",
    [
        ("produce", "-q", "q", "-m", "x", "--delay", "soon"),
        ("produce", "-q", "q", "-m", "x", "--delay", "1s", "--at", "2100-01-01"),
        ("produce", "-q", "q", "-m", "x", "--header", "none"),
        ("produce", "-q", "q", "-m", "x", "--at", "never"),
        ("cancel", "-q", "q"),
        ("job", "-q", "q", "--dedup", "a", "--seq", "1"),
        ("reschedule", "-q", "q", "--dedup", "a"),
    ],
)
def test_what_is_no_job_is_a_mistake_on_the_command_line(dms: Command, arguments: tuple[str, ...]) -> None:
    assert dms(*arguments)[0] == ExitCode.USAGE
