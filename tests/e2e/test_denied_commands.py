"""A command whose protocol has no answers says that the server did not take what no rule allows."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from brokers.errors import ExitCode
from shared.access import Rule, Secret, User
from tests.e2e.users import server_of
from tests.support.forked import quick_passwords
from tests.support.server import Server, run_here


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    rules = tuple(map(Rule.parse, ("kqmsgq:write:mine", "kqmsgq:read:*", "pubsub:read:home/*")))
    with quick_passwords():
        users = {"ann": User("ann", rules, Secret.make(b"ann", bytes(16)))}
    folder = tmp_path_factory.mktemp("denied")
    with server_of(folder, users, enable="kqmsgq,pubsub") as server:
        yield server


@pytest.fixture
def login(tmp_path: Path) -> tuple[str, ...]:
    file = tmp_path / "password"
    file.write_text("ann\n")
    return "--user", "ann", "--password-file", str(file)


@pytest.mark.parametrize(("queue", "code"), [("mine", ExitCode.OK), ("news", ExitCode.FAILED)])
def test_a_producer_is_told_that_a_message_was_not_taken(
    queue: str, code: ExitCode, server: Server, login: tuple[str, ...]
) -> None:
    ended = run_here("kqmsgq", "produce", queue, "hello", "--port", str(server.address("kqmsgq")[1]), *login)
    assert ended.returncode == code
    assert ("for messages that no rule allows" in ended.stderr) is (code != ExitCode.OK)
    assert ("messages  1" in ended.stdout) is (code == ExitCode.OK)
