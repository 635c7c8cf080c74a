"""The source and the sink log in: by options, by the driver's variables; and show no password."""

import pickle
from collections.abc import Iterator
from pathlib import Path

import pytest

from brokers.pipeline.source.options import parse
from brokers.pipeline.source.planning import open_reader
from logmq.connector import LogmqError
from shared.access import Rule, Secret, User, written_users
from shared.errors import ConfigError
from tests.pipeline.served import ORDERS, where
from tests.support.server import Server, speak

PASSWORD = "planted pass:word"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("logins")
    (found / "right").write_text(f"{PASSWORD}\n")
    (found / "wrong").write_text("another planted one")
    return found


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[Server]:
    (folder / "data").mkdir()
    ann = User("ann", (Rule.parse("logmq:*:orders"),), Secret.make(PASSWORD.encode(), bytes(16)))
    file = folder / "data" / "users.toml"
    file.touch(0o600)
    file.write_text(written_users({"ann": ann}))
    with Server(folder, "--enable", "logmq", environ={"BROKERS_ACCESS_REQUIRED": "always"}) as served:
        said = f"AUTH ann {PASSWORD}\nPRODUCE orders hello\n".encode()
        assert speak(served.address("logmq"), said) == b"OK\nOK 0\n"
        yield served


def found(server: Server, **given: str) -> list[str]:
    there = {"servers": where(server), "subscribe": "orders", "retryTimeoutMs": "50"}
    options = parse(there | given)
    pickle.dumps(options.reach)  # it goes to executors
    with open_reader(options, *options.sources) as origin:
        return list(origin.logs(ORDERS))


def test_options_and_variables_log_in(server: Server, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    right = str(folder / "right")
    assert found(server) == []  # what is refused to nobody is as if it were not there
    assert found(server, user="ann", passwordFile=right) == ["orders"]
    monkeypatch.setenv("BROKERS_USER", "ann")
    monkeypatch.setenv("BROKERS_PASSWORD_FILE", right)
    assert found(server) == ["orders"]


def test_a_wrong_password_is_refused_and_not_shown(server: Server, folder: Path) -> None:
    with pytest.raises(LogmqError, match="DENIED: login as ann: wrong name or password") as refused:
        found(server, user="ann", passwordFile=str(folder / "wrong"))
    assert "planted" not in repr(refused.value)


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"passwordFile": "p"}, "passwordFile: needs user"),
        ({"user": "ann"}, "user: needs passwordFile"),
        ({"servers": "logmq://ann:planted@a"}, "servers: a server is host:port"),
        ({"servers": "ann:planted@a"}, "servers: a server is host:port"),
        ({"password": "planted"}, "password: the source has no such option; did you mean passwordFile"),
    ],
)
def test_what_names_no_login_is_refused_without_showing_it(given: dict[str, str], text: str) -> None:
    with pytest.raises(ConfigError, match=text) as refused:
        parse({"servers": "a", "subscribe": "t", **given})
    assert "planted" not in str(refused.value)
