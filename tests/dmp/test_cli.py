"""`brokers dmp` against the real process: what each command says, and how it ends."""

import json
import os
import signal
from collections.abc import Callable, Iterator

import pytest

from brokers.errors import ExitCode
from dmp.amqp_client import opened
from dmp.client import Principal
from dmp.data_types import short
from dmp.wire import DMP_HEADER
from shared.client.dial import Address
from shared.client.trio_loop import trio_loop
from tests.support.leaving import run_and_leave
from tests.support.server import Begun, Command, Server, run, run_here, speak, until


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Server(tmp_path_factory.mktemp("dmp"), "0", command=("dmp", "serve")) as server:
        yield server


@pytest.fixture
def here(server: Server, commands: Callable[[Server, str], Command]) -> Command:
    return commands(server, "dmp")


class Getting(Begun):
    """`brokers dmp get`, its feed open."""

    def __init__(self, server: Server, here: Command, feed: str, *arguments: str) -> None:
        port = str(server.address("dmp")[1])
        super().__init__("dmp", "get", feed, *arguments, "--port", port)
        until(lambda: _fed(here, server, feed) or self.process.poll() is not None)


def _fed(here: Command, server: Server, feed: str) -> bool:
    _, said, _ = here("queues", "--json", "--data-dir", str(server.data))
    return any(row["name"] == feed and row["consumers"] for row in map(json.loads, said.splitlines()))


def depth(here: Command, queue: str) -> int | None:
    rows = map(json.loads, here("queues", "--json")[1].splitlines())
    return next((row["ready"] for row in rows if row["name"] == queue), None)


def test_messages_go_from_put_to_get(server: Server, here: Command) -> None:
    getting = Getting(server, here, "mine", "--bind", "amq.topic:a.#", "amq.fanout:", "--max", "5")
    assert here("put", "amq.topic", "-k", "a.b", "-m", "hello", "-m", "a second one") == (
        0,
        "sink      amq.topic\nmessages  2\n",
        "",
    )
    assert here("put", "amq.topic", "-k", "a.c", "-m", "the third", "--json")[1] == (
        '{"sink": "amq.topic", "messages": 1}\n'
    )
    port = str(server.address("dmp")[1])
    assert run("dmp", "put", "amq.fanout", "--port", port, stdin=b"line 1\r\nno end").returncode == 0
    assert getting.end() == b"hello\na second one\nthe third\nline 1\nno end\n"


def test_json_shows_where_a_message_came_from_and_raw_its_bytes_alone(server: Server, here: Command) -> None:
    getting = Getting(server, here, "shown", "--bind", "amq.topic:k", "--max", "1", "--json")
    raw = Getting(server, here, "raw", "--bind", "amq.topic:k", "--raw", "--max", "1")
    port = str(server.address("dmp")[1])
    done = run("dmp", "put", "amq.topic", "-k", "k", "--whole", "--port", port, stdin=b"x\ny\n")
    assert done.returncode == 0
    assert json.loads(getting.end()) == {"exchange": "amq.topic", "key": "k", "message": "x\ny\n"}
    assert raw.end() == b"x\ny\n"


async def test_leases_are_listed_by_target_and_age_alone(server: Server) -> None:
    host, port = server.address("dmp")

    def listed() -> str:
        return str(run_here("dmp", "leases", "--json", "--data-dir", str(server.data)).stdout)

    async with trio_loop() as loop, opened(loop, Address(host, port, kind="DMP"), Principal) as principal:
        word = await principal.sink_lease("amq.topic")
        said = listed()
        (row,) = map(json.loads, said.splitlines())
        assert (row["kind"], row["target"]) == ("sink", "amq.topic")
        assert sorted(row) == ["age_seconds", "id", "kind", "protocol", "target"]
        assert word.decode() not in said
        assert speak((host, port), DMP_HEADER + short(word)).endswith(b'Ready to write to "amq.topic"')
        assert listed() == ""


def test_what_cannot_be_declared_is_told(here: Command) -> None:
    here("declare", "queue", "same")
    assert here("declare", "queue", "same", "-a", "x-max-length=5")[0] == ExitCode.FAILED
    assert here("declare", "queue", "x", "--transient")[0] == ExitCode.USAGE
    assert here("declare", "exchange", "x", "-a", "x=1")[0] == ExitCode.USAGE
    assert here("bind", "nix", "amq.headers", "-a", "x-match=all")[0] == ExitCode.MISSING
    assert here("bind", "same", "amq.headers", "-a", "x-match=all", "-a", "kind=order")[0] == 0
    assert here("unbind", "same", "amq.headers", "-a", "x-match=all", "-a", "kind=order")[0] == 0
    assert here("delete", "queue", "same")[0] == 0


def test_queues_and_exchanges_are_made_bound_emptied_and_ended(here: Command) -> None:
    assert here("declare", "queue", "jobs", "-a", "x-message-ttl=60000")[0] == 0
    assert here("declare", "exchange", "logs", "--type", "topic")[0] == 0
    assert here("declare", "exchange", "all", "--type", "topic")[0] == 0
    assert here("bind", "logs", "all", "-k", "#", "--to", "exchange")[0] == 0
    assert here("bind", "jobs", "logs", "-k", "web.#")[0] == 0
    here("put", "all", "one", "two", "-k", "web.get")
    assert here("unbind", "logs", "all", "-k", "#", "--to", "exchange")[0] == 0
    assert here("put", "all", "three", "-k", "web.get")[0] == ExitCode.FAILED
    assert here("delete", "exchange", "all")[0] == 0
    assert depth(here, "jobs") == 2
    assert json.loads(here("purge", "jobs", "--json")[1])["purged"] == 2
    assert here("unbind", "jobs", "logs", "-k", "web.#")[0] == 0
    assert here("put", "logs", "three", "four", "-k", "web.get") == (
        ExitCode.FAILED,
        "",
        "brokers: no queue takes 'web.get' of exchange 'logs'\n",
    )
    assert here("declare", "queue", "full", "-a", "x-max-length=0", "-a", "x-overflow=reject-publish")[0] == 0
    code, _, err = here("put", "", "one", "-k", "full")
    assert (code, "could not keep" in err) == (ExitCode.FAILED, True)
    here("delete", "queue", "full")
    assert depth(here, "jobs") == 0
    assert json.loads(here("delete", "queue", "jobs", "--json")[1])["messages"] == 0
    assert depth(here, "jobs") is None
    assert here("delete", "exchange", "logs")[0] == 0


def test_a_queue_is_consumed_and_its_messages_leave_it_once_they_are_shown(here: Command) -> None:
    assert here("declare", "queue", "taken")[0] == 0
    assert here("put", "", "one", "two", "-k", "taken")[0] == 0
    assert here("put", "amq.default", "three", "-k", "taken")[0] == 0
    assert here("consume", "taken", "--max", "1") == (0, "one\n", "")
    assert depth(here, "taken") == 2
    row = {"exchange": "", "key": "taken", "message": "two"}
    assert json.loads(here("consume", "taken", "--max", "1", "--json")[1]) == row
    assert here("consume", "taken", "--timeout", "0.2", "--raw") == (0, "three", "")
    code, out, said = here("consume", "taken", "--max", "2", "--timeout", "0.01")
    assert (code, out) == (ExitCode.TEMPORARY, "")
    assert said == "brokers: no message came in time; 2 more were asked for\n"
    assert json.loads(here("delete", "queue", "taken", "--json")[1])["messages"] == 0


def test_what_put_says_was_confirmed_is_kept_where_the_queue_is_durable(
    server: Server, here: Command
) -> None:
    here("declare", "queue", "kept")
    assert here("put", "", "one", "two", "-k", "kept", "--json") == (0, '{"sink": "", "messages": 2}\n', "")
    modes = [
        row["properties"]["delivery_mode"]
        for row in map(json.loads, here("peek", "kept", "--json")[1].splitlines())
    ]
    assert modes == [2, 2]
    here("delete", "queue", "kept")


def test_put_says_headers_with_which_a_job_waits_and_is_found_again(here: Command) -> None:
    here("declare", "queue", "calls", "-a", "x-message-deduplication=true")
    job = ("--header", "x-delay=3600000", "--header", "x-deduplication-header=ann", "--header", "to=Ann")
    for _ in range(2):
        here("put", "", "call", "-k", "calls", *job)
    assert depth(here, "calls") == 0
    row = json.loads(here("job", "calls", "--dedup", "ann", "--json")[1])
    assert (row["state"], row["properties"]["headers"]["to"]) == ("waiting", "Ann")
    here("delete", "queue", "calls")
    code, _, said = here("put", "", "call", "-k", "calls", "--header", "x-delay")
    assert (code, "KEY=VALUE" in said) == (ExitCode.USAGE, True)


def test_a_reader_that_leaves_leaves_the_rest_in_the_queue(server: Server, here: Command) -> None:
    here("declare", "queue", "left")
    here("put", "", *map(str, range(100)), "-k", "left")
    code, read = run_and_leave(3, "dmp", "consume", "left", "--port", str(server.address("dmp")[1]))
    assert (code, read) == (128 + signal.SIGPIPE, [b"0\n", b"1\n", b"2\n"])
    assert depth(here, "left") == 97


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (("put", "not there", "-m", "x"), ExitCode.MISSING, "no exchange 'not there'"),
        (
            ("put", "amq.topic", "-m", "x", "--user", "guest", "--password-file", __file__),
            ExitCode.FAILED,
            "ACCESS_REFUSED",
        ),
        (("put", "x" * 256), ExitCode.USAGE, "--exchange: a name of 256 bytes: 255 at most"),
        (("put", "x", "-k", "x" * 256), ExitCode.USAGE, "a name of 256 bytes: 255 at most"),
        (("get", "x" * 256), ExitCode.USAGE, "--queue: a name of 256 bytes: 255 at most"),
        (("get", "x", "--bind", "nokey"), ExitCode.USAGE, "EXCHANGE:KEY"),
        (("get", "x", "--bind"), ExitCode.USAGE, "EXCHANGE:KEY"),
        (("get", "x", "--bind", "nowhere:k"), ExitCode.MISSING, "no exchange 'nowhere'"),
        (("get", os.fsdecode(b"\xff")), ExitCode.USAGE, "brokers: \\xff is not UTF-8\n"),
        (("consume", "nowhere"), ExitCode.MISSING, "NOT_FOUND"),
        (("consume", "x", "--raw", "--json"), ExitCode.USAGE, "--raw"),
        (("delete", "queue", "nowhere"), ExitCode.MISSING, "nowhere"),
        (("delete", "exchange", "nowhere"), ExitCode.MISSING, "nowhere"),
        (("purge", "nowhere"), ExitCode.MISSING, "nowhere"),
        (("bind", "nowhere", "amq.topic"), ExitCode.MISSING, "nowhere"),
        (("unbind", "nowhere", "amq.topic"), ExitCode.MISSING, "nowhere"),
        (("delete", "exchange", "amq.topic"), ExitCode.FAILED, "ACCESS_REFUSED"),
        (("declare", "queue", "q", "--type", "topic"), ExitCode.USAGE, "--type"),
        (("declare", "queue", "q", "-a", "none"), ExitCode.USAGE, "not KEY=VALUE"),
        (("declare", "thing", "q"), ExitCode.USAGE, "queue"),
        (("put", "q", "x", "--port", "1"), ExitCode.UNAVAILABLE, "no AMQP server answers"),
    ],
)
def test_a_command_that_fails_says_why_in_one_line(
    here: Command, arguments: tuple[str, ...], code: ExitCode, says: str
) -> None:
    got, out, err = here(*arguments)
    assert (got, out, err.count("\n")) == (code, "", 1), err
    assert says in err
