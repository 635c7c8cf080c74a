"""`brokers dmp declare, delete, bind, unbind, purge` against the real process, over AMQP."""

import json
from collections.abc import Callable, Iterator

import pytest

from brokers.errors import ExitCode
from tests.support.server import Server, run_here

Dmp = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Server(tmp_path_factory.mktemp("dmp"), "0", verb=("dmp", "serve")) as server:
        yield server


@pytest.fixture
def dmp(server: Server, monkeypatch: pytest.MonkeyPatch) -> Dmp:
    """`dmp("purge", "jobs")`: exit code, standard output, standard error."""
    monkeypatch.setenv("BROKERS_DMP_PORT", str(server.address("dmp")[1]))
    monkeypatch.setenv("BROKERS_SERVE_DATA_DIR", str(server.data))

    def command(*arguments: str) -> tuple[int, str, str]:
        ended = run_here("dmp", *arguments)
        return ended.returncode, ended.stdout, ended.stderr

    return command


def depth(dmp: Dmp, queue: str) -> int | None:
    rows = map(json.loads, dmp("queues", "--json")[1].splitlines())
    return next((row["ready"] for row in rows if row["queue"] == queue), None)


def test_queues_and_exchanges_are_made_bound_emptied_and_ended(dmp: Dmp) -> None:
    assert dmp("declare", "queue", "jobs", "-a", "x-message-ttl=60000")[0] == 0
    assert dmp("declare", "exchange", "logs", "--type", "topic")[0] == 0
    assert dmp("bind", "jobs", "logs", "-k", "web.#")[0] == 0
    dmp("put", "logs", "one", "two", "-k", "web.get")
    assert depth(dmp, "jobs") == 2
    code, _, err = dmp("delete", "queue", "jobs", "--if-empty")
    assert (code, "not empty" in err) == (1, True)
    assert json.loads(dmp("purge", "jobs", "--json")[1]) == {"queue": "jobs", "purged": 2}
    assert dmp("unbind", "jobs", "logs", "-k", "web.#")[0] == 0
    dmp("put", "logs", "three", "-k", "web.get")
    assert depth(dmp, "jobs") == 0
    assert json.loads(dmp("delete", "queue", "jobs", "--json")[1])["messages"] == 0
    assert depth(dmp, "jobs") is None
    assert dmp("delete", "exchange", "logs")[0] == 0


def test_a_headers_exchange_is_bound_by_arguments(dmp: Dmp) -> None:
    assert dmp("declare", "queue", "both", "--transient", "--auto-delete")[0] == 0
    binding = ("both", "amq.headers", "-a", "x-match=all", "-a", "kind=order")
    assert dmp("bind", *binding)[0] == 0
    exchanges = map(json.loads, dmp("exchanges", "--json")[1].splitlines())
    assert {row["exchange"]: row["bindings"] for row in exchanges}["amq.headers"] == 1
    assert dmp("unbind", *binding)[0] == 0
    assert dmp("delete", "queue", "both")[0] == 0


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (("delete", "queue", "nowhere"), ExitCode.MISSING, "NOT_FOUND"),
        (("delete", "exchange", "nowhere"), ExitCode.MISSING, "NOT_FOUND"),
        (("purge", "nowhere"), ExitCode.MISSING, "NOT_FOUND"),
        (("bind", "nowhere", "amq.topic"), ExitCode.MISSING, "NOT_FOUND"),
        (("unbind", "nowhere", "amq.topic"), ExitCode.MISSING, "NOT_FOUND"),
        (("delete", "exchange", "amq.topic"), ExitCode.FAILED, "ACCESS_REFUSED"),
        (("declare", "queue", "q" * 256), ExitCode.USAGE, "255 at most"),
        (("declare", "queue", "q", "--type", "topic"), ExitCode.USAGE, "--type"),
        (("declare", "queue", "q", "-a", "none"), ExitCode.USAGE, "not KEY=VALUE"),
        (("declare", "thing", "q"), ExitCode.USAGE, "queue"),
        (("delete", "exchange", "q", "--if-empty"), ExitCode.USAGE, "--if-empty"),
        (("purge", "q", "--port", "1"), ExitCode.UNAVAILABLE, "no AMQP server answers"),
        (("purge", "q", "--user", "guest", "--password-file", __file__), ExitCode.FAILED, "ACCESS_REFUSED"),
    ],
)
def test_a_command_that_fails_says_why_in_one_line(
    dmp: Dmp, arguments: tuple[str, ...], code: ExitCode, says: str
) -> None:
    got, out, err = dmp(*arguments)
    assert (got, out, err.count("\n")) == (code, "", 1), err
    assert says in err
