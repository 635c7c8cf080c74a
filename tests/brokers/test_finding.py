"""Commands find the server that the settings speak of: flags over variables over the file over defaults."""

import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import trustme

from brokers import plugins
from brokers.commands.cli import run
from brokers.commands.server_address import ServerAddress
from brokers.errors import ExitCode, Failure, InvalidSettings
from shared.cli.options import Server

Find = Callable[..., Any]


@pytest.fixture(autouse=True)
def _without_variables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # which has no server of its own
    for name in plugins.names():
        monkeypatch.delenv(f"BROKERS_{name.upper()}_PORT", raising=False)


@pytest.fixture
def found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Find:
    """Where a protocol's server is under a settings file, variables and flags."""

    def call(
        file: str = "", environ: dict[str, str] | None = None, protocol: str = "dms", **flags: Any
    ) -> Any:
        for name, value in (environ or {}).items():
            monkeypatch.setenv(name, value)
        path = tmp_path / "brokers.toml"
        path.write_text(file)
        address = ServerAddress(config=path if file else None, **flags)
        return address.protocol(Server, plugins.load(protocol))

    return call


def test_without_a_word_it_is_the_usual_port_of_this_machine(found: Find) -> None:
    server = found()
    assert (server.host, server.port, server.ssl_context()) == ("127.0.0.1", 9090, None)


@pytest.mark.parametrize("protocol", plugins.names())
def test_each_layer_stands_over_the_one_below_for_every_protocol(protocol: str, found: Find) -> None:
    file = f'[serve]\nhost = "10.0.0.1"\n[{protocol}]\nport = 1001\n'
    variables = {f"BROKERS_{protocol.upper()}_PORT": "1002", "BROKERS_SERVE_HOST": "10.0.0.2"}
    server = found(file, protocol=protocol)
    assert (server.host, server.port) == ("10.0.0.1", 1001)
    server = found(file, variables, protocol=protocol)
    assert (server.host, server.port) == ("10.0.0.2", 1002)
    server = found(file, variables, protocol=protocol, host="10.0.0.3", port=1003)
    assert (server.host, server.port) == ("10.0.0.3", 1003)


@pytest.mark.parametrize(("bound", "dialled"), [("0.0.0.0", "127.0.0.1"), ("::", "::1"), ("[::]", "::1")])
def test_a_server_on_all_addresses_is_dialled_on_loopback(bound: str, dialled: str, found: Find) -> None:
    assert found(f'[serve]\nhost = "{bound}"\n').host == dialled


def test_clients_elsewhere_have_a_section_of_their_own(found: Find) -> None:
    server = found('[client]\nhost = "broker.example"\n', {"BROKERS_CLIENT_CA": "/ca.pem"})
    assert (server.host, server.ca, server.named) == ("broker.example", Path("/ca.pem"), True)


def test_a_server_that_speaks_tls_is_spoken_to_in_tls(found: Find, tmp_path: Path) -> None:
    pem = tmp_path / "server.pem"
    trustme.CA().issue_cert("broker.example").private_key_and_cert_chain_pem.write_to_path(pem)
    ours = f'[dms.tls]\ncertificate = "{pem}"\n'
    pinned = found(ours).ssl_context()
    assert pinned is not None
    assert not pinned.check_hostname  # this certificate alone, whatever name is in it
    assert len(pinned.get_ca_certs(binary_form=True)) + pinned.cert_store_stats()["x509"] == 1
    named = found(ours, host="broker.example").ssl_context()
    assert named is not None
    assert named.check_hostname
    assert found(ours, protocol="logmq").ssl_context() is None
    assert found(ours, {"BROKERS_CLIENT_TLS": "false"}).ssl_context() is None


def test_a_port_that_the_system_picked_is_asked_for(found: Find) -> None:
    with pytest.raises(Failure, match=r"dms\.port is 0: the system picked one") as refused:
        found("[dms]\nport = 0\n")
    assert refused.value.code == ExitCode.CONFIGURATION
    assert found("[dms]\nport = 0\n", port=7).port == 7


def test_what_is_wrong_in_the_settings_is_said_and_not_passed_over(found: Find) -> None:
    with pytest.raises(InvalidSettings, match=r"did you mean dms\.port"):
        found("[dms]\nprot = 1\n")


def test_what_is_said_to_other_protocols_is_theirs(found: Find) -> None:
    record = '[record]\nprotocols = ["nowhere"]\n'
    file = f"[logmq]\nprot = 1\n[not_installed_here]\nport = 1\n{record}"
    assert found(file, {"BROKERS_NOT_INSTALLED_HERE_PORT": "2"}).port == 9090


@pytest.mark.parametrize(
    "words",
    [
        ("dms", "list"),
        ("logmq", "topics"),
        ("kqmsgq", "produce", "news", "hello"),
        ("kqmsgq", "consume", "news"),
        ("dmp", "put", "amq.topic", "hello"),
        ("dmp", "get", "mine"),
        ("pubsub", "subscriber", "c1"),
    ],
)
def test_every_command_that_speaks_to_a_server_takes_the_settings_file(
    words: tuple[str, ...], tmp_path: Path, unused_port: int, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "brokers.toml"
    file.write_text(f"[{words[0]}]\nport = {unused_port}\n")
    assert run([*words, "--config", str(file)]) == ExitCode.UNAVAILABLE
    assert f"127.0.0.1:{unused_port}" in capsys.readouterr().err


@pytest.fixture
def unused_port() -> Iterator[int]:
    """Bound, so that nobody else is, and not listened on."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        yield sock.getsockname()[1]
