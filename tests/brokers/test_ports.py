"""A port that there cannot be is a mistake, whichever command is told it, and however."""

import pytest

from brokers.commands.cli import run
from brokers.errors import ExitCode

ASKING = (
    "dms list --port",
    "logmq topics --port",
    "pubsub publish hall --int 1 --port",
    "pubsub subscriber A 127.0.0.1",
    "kqmsgq produce -q a -m b --port",
    "kqmsgq consume -q a --port",
    "dmp put amq.topic -m a --port",
    "dmp get mine --port",
    "bench logmq --port",
)
STARTING = ("dms serve --port", "logmq serve --port", "pubsub serve", "kqmsgq serve", "dmp serve")
VARIABLES = {
    "dms": "list",
    "logmq": "topics",
    "pubsub": "publish a --int 1",
    "kqmsgq": "produce a b",
    "dmp": "put a -m b",
}


@pytest.mark.parametrize("port", ["0", "70000", "-1", "abc", ""])
@pytest.mark.parametrize("command", ASKING)
def test_a_port_that_nobody_can_be_asked_at_is_refused(
    command: str, port: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([*command.split(), port]) == ExitCode.USAGE
    _is_one_line_about(port, capsys)


@pytest.mark.parametrize("port", ["65536", "-1", "abc"])
@pytest.mark.parametrize("command", STARTING)
def test_a_port_that_nobody_can_bind_is_refused(
    command: str, port: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([*command.split(), port]) == ExitCode.USAGE
    _is_one_line_about(port, capsys)


@pytest.mark.parametrize("protocol", VARIABLES)
def test_in_the_environment_it_is_a_setting_that_cannot_be_used(
    protocol: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(f"BROKERS_{protocol.upper()}_PORT", "70000")
    assert run([protocol, *VARIABLES[protocol].split()]) == ExitCode.CONFIGURATION
    assert f"BROKERS_{protocol.upper()}_PORT" in _is_one_line_about("70000", capsys)


def _is_one_line_about(port: str, capsys: pytest.CaptureFixture[str]) -> str:
    said = capsys.readouterr()
    assert not said.out
    assert said.err.count("\n") == 1
    assert port in said.err
    return said.err
