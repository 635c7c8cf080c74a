"""A sixth protocol is a package with an entry point: installed, it is served; nothing else changes."""

import json
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from brokers.commands.cli import run
from brokers.errors import ExitCode
from tests.support.echo import install_echo
from tests.support.installed import look_again
from tests.support.server import Server, speak, until


@pytest.fixture(scope="module")
def site_packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("site") / "site-packages"


@pytest.fixture(scope="module")
def environ(site_packages: Path) -> dict[str, str]:
    return install_echo(site_packages)


@pytest.fixture(scope="module")
def server(environ: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Server(tmp_path_factory.mktemp("sixth"), environ=environ) as server:
        yield server


@pytest.fixture
def command(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, site_packages: Path, environ: object
) -> Callable[..., tuple[int, str, str]]:
    """Runs a `brokers` command where the protocol is installed."""
    monkeypatch.syspath_prepend(site_packages)
    look_again(monkeypatch)

    def call(*words: str) -> tuple[int, str, str]:
        code = run(words)
        said = capsys.readouterr()
        return code, said.out, said.err

    return call


Command = Callable[..., tuple[int, str, str]]


def test_an_installed_protocol_is_served_beside_the_others(server: Server, command: Command) -> None:
    assert speak(server.address("echo"), b"hello") == b"hello"
    assert speak(server.address("logmq"), b"PRODUCE orders hello\n") == b"OK 0\n"
    status = json.loads(command("status", "--json", "--data-dir", str(server.data))[1])
    states = {each["protocol"]: each["state"] for each in status["protocols"]}
    assert states.keys() > {"echo", "logmq"}
    assert set(states.values()) == {"serving"}
    metrics = command("metrics", "--data-dir", str(server.data))[1]
    assert "brokers_echo_bytes_total " in metrics


def test_it_may_have_a_udp_endpoint_too(server: Server, command: Command) -> None:
    folder = ("--data-dir", str(server.data))
    before = json.loads(command("echo", "count", "--json", *folder)[1])["bytes"]
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        sender.sendto(b"1234567", server.address("echo", "count"))
    until(lambda: json.loads(command("echo", "count", "--json", *folder)[1])["bytes"] == before + 7)
    (bound,) = (each for each in server.ready["addresses"] if each["endpoint"] == "count")
    assert bound["transport"] == "udp"
    assert f"protocol=echo address=127.0.0.1:{bound['port']} transport=udp" in server.said


def test_its_settings_are_those_of_any_protocol(command: Command, tmp_path: Path) -> None:
    file = tmp_path / "brokers.toml"
    file.write_text("[echo]\nshuot = true\n")
    code, _, said = command("config", "check", "--config", str(file))
    assert code == ExitCode.CONFIGURATION
    assert "echo.shuot: unknown key; did you mean echo.shout?" in said


def test_its_commands_are_commands_of_brokers(
    tmp_path: Path, environ: dict[str, str], command: Command
) -> None:
    with Server(tmp_path, "--shout", command=("echo", "serve"), environ=environ) as server:
        assert {bound["protocol"] for bound in server.ready["addresses"]} == {"echo"}
        port = server.address("echo")[1]
        assert speak(server.address("echo"), b"hello") == b"HELLO"
        file = tmp_path / "echo.toml"
        file.write_text(f"[echo]\nport = {port}\n")
        heard = command("echo", "say", "a", "b", "--config", str(file), "--json")[1]
        assert [json.loads(line) for line in heard.splitlines()] == [{"heard": "A"}, {"heard": "B"}]
    help_text = command("echo", "serve", "--help")[1]
    assert "--shout" in help_text
    assert "--data-dir" in help_text
    assert "Echo: what you say comes back." in command("--help")[1]


def test_its_objects_are_those_of_the_api(server: Server, command: Command) -> None:
    folder = ("--data-dir", str(server.data))
    before = json.loads(command("echo", "count", "--json", *folder)[1])["bytes"]
    speak(server.address("echo"), b"12345")
    assert json.loads(command("echo", "count", "--json", *folder)[1]) == {"bytes": before + 5}
    rows = map(json.loads, command("topics", "protocol=echo", "--json", *folder)[1].splitlines())
    assert [(row["name"], row["bytes"]) for row in rows] == [("echo", before + 5)]
