"""`brokers user ...` and the users file."""

import io
import json
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from brokers.commands.cli import run
from brokers.errors import ExitCode
from shared.access import Secret, parse_users
from tests.support.server import Server, run_here

Command = Callable[..., tuple[int, str, str]]


@pytest.fixture
def user(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Command:
    """Runs `brokers user ...` on a data folder; `password` is given on standard input."""

    def call(*words: str, password: str = "") -> tuple[int, str, str]:
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(password.encode())))
        given = ["--password-stdin"] if password else []
        where = [] if "--url" in words else ["--data-dir", str(tmp_path / "data")]
        code = run(("user", *words, *given, *where))
        said = capsys.readouterr()
        assert "hunter2" not in said.out + said.err
        return code, said.out, said.err

    return call


def test_users_are_added_changed_and_removed(user: Command, tmp_path: Path) -> None:
    assert user("add", "ann", "--allow", "logmq:read:orders.*", password="hunter2\n")[0] == 0
    file = tmp_path / "data" / "users.toml"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700
    assert "hunter2" not in file.read_text()
    before = parse_users(file.read_text())["ann"]
    assert before.password is not None
    assert before.password.fits(b"hunter2")
    assert user("allow", "ann", "dms:*:jobs", "admin:read")[0] == 0
    assert user("deny", "ann", "logmq:read:orders.*")[0] == 0
    assert user("passwd", "ann", password="other")[0] == 0
    after = parse_users(file.read_text())["ann"]
    assert list(map(str, after.allow)) == ["dms:*:jobs", "admin:read"]
    assert after.password is not None
    assert after.password.fits(b"other")
    assert user("add", "sensor", "--certificate")[0] == 0
    assert user("add", "anonymous", "--allow", "*:read:*")[0] == 0
    _code, said, _ = user("list", "--json")
    rows = [json.loads(line) for line in said.splitlines()]
    assert [(row["user"], row["login"]) for row in rows] == [
        ("ann", "password"),
        ("anonymous", ""),
        ("sensor", "certificate"),
    ]
    assert user("rm", "ann")[0] == 0
    assert list(parse_users(file.read_text())) == ["sensor", "anonymous"]
    assert list(file.parent.iterdir()) == [file]


def test_what_somebody_else_changes_meanwhile_stays(
    user: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make = Secret.make

    def asked_for(password: bytes, salt: bytes) -> Secret:
        user("add", "bob", "--certificate")
        return make(password, salt)

    monkeypatch.setattr(Secret, "make", asked_for)
    assert user("add", "ann", password="hunter2")[0] == 0
    assert list(parse_users((tmp_path / "data" / "users.toml").read_text())) == ["bob", "ann"]


@pytest.mark.parametrize(
    ("rule", "code"),
    [
        ("logmq:read:orders.eu", 0),
        ("logmq:write:orders.eu", 1),
        ("pubsub:read:home/+/temp", 0),
        ("pubsub:read:home", 0),
        ("pubsub:read:*", 1),
        ("pubsub:write:home", 1),
        ("admin:read", 0),
        ("admin:manage", 1),
        ("logmq:*:x", ExitCode.USAGE),
        ("logmq:reed:x", ExitCode.USAGE),
        ("nothing", ExitCode.USAGE),
    ],
)
def test_check_says_by_its_exit_code_whether_something_is_allowed(
    user: Command, rule: str, code: int
) -> None:
    user(
        *("add", "ann", "--certificate", "--allow", "logmq:read:orders.*", "--allow", "pubsub:read:home/*"),
        *("--allow", "admin:read"),
    )
    assert user("check", "ann", rule)[0] == code


def test_without_an_entry_who_did_not_log_in_may_do_everything_but_administrate(user: Command) -> None:
    assert user("check", "anonymous", "logmq:manage:orders")[0] == 0
    assert user("check", "anonymous", "admin:read")[0] == 1
    user("add", "anonymous", "--allow", "logmq:read:*")
    assert user("check", "anonymous", "logmq:manage:orders")[0] == 1


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("rm", "bob"), ExitCode.MISSING),
        (("passwd", "bob"), ExitCode.MISSING),
        (("check", "bob", "logmq:read:x"), ExitCode.FAILED),
        (("deny", "ann", "logmq:read:x"), ExitCode.MISSING),
        (("allow", "ann"), ExitCode.USAGE),
        (("allow", "ann", "logmg:read:x"), ExitCode.USAGE),
        (("allow", "ann", "*:reed:x"), ExitCode.USAGE),
        (("add", "a b", "--certificate"), ExitCode.USAGE),
        (("add", "bob"), ExitCode.USAGE),  # there is no terminal to ask for a password
        (("add", "udp", "--certificate"), ExitCode.USAGE),
        (("add", "ann", "--certificate"), ExitCode.FAILED),
    ],
)
def test_what_cannot_be_done_changes_nothing(
    user: Command, tmp_path: Path, words: tuple[str, ...], code: int
) -> None:
    user("add", "ann", "--certificate")
    before = (tmp_path / "data" / "users.toml").read_bytes()
    found, said, error = user(*words)
    assert (found, said) == (code, "")
    assert error.startswith("brokers: ")
    assert (tmp_path / "data" / "users.toml").read_bytes() == before


def test_a_users_file_of_another_machine_is_refused_by_the_name_of_its_variable(
    user: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BROKERS_ACCESS_USERS_FILE", "s3://bucket/users.toml")
    code, _, error = user("list")
    assert code == ExitCode.CONFIGURATION
    assert "not of this machine" in error
    assert "(BROKERS_ACCESS_USERS_FILE)" in error


@pytest.mark.parametrize(
    ("rule", "meant"),
    [
        ("logmg:read:x", "no protocol logmg is installed; did you mean logmq?"),
        ("dms:reed:x", "its action is read, write, manage or *, not reed"),
        ("*:reed:x", "its action is read, write, manage or *, not reed"),
    ],
)
def test_a_rule_that_allows_nothing_is_found_by_config_check_and_can_be_denied(
    user: Command,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    rule: str,
    meant: str,
) -> None:
    file = tmp_path / "data" / "users.toml"
    file.parent.mkdir()
    file.touch(0o600)
    file.write_text(f'[users.ann]\ncertificate = true\nallow = ["{rule}"]\n')
    monkeypatch.setenv("BROKERS_SERVE_DATA_DIR", str(file.parent))
    assert run(("config", "check")) == ExitCode.CONFIGURATION
    assert f"users.ann.allow: rule {rule}: {meant}" in capsys.readouterr().err
    assert user("deny", "ann", rule)[0] == 0
    assert run(("config", "check")) != ExitCode.CONFIGURATION or "users" not in capsys.readouterr().err


def test_a_bridges_user_has_rules_alone(user: Command, tmp_path: Path) -> None:
    assert user("check", "bridge/jobs", "dms:write:mails")[0] == 0, "without an entry it may do all"
    assert user("add", "bridge/jobs", "--allow", "logmq:read:jobs")[0] == 0
    assert user("check", "bridge/jobs", "dms:write:mails")[0] == ExitCode.FAILED
    assert user("allow", "bridge/jobs", "dms:write:jobs")[0] == 0
    file = tmp_path / "data" / "users.toml"
    before = file.read_bytes()
    assert user("passwd", "bridge/jobs", password="hunter2")[0] == ExitCode.USAGE
    assert user("add", "bridge/more", password="hunter2")[0] == ExitCode.USAGE
    assert user("add", "bridge/more", "--certificate")[0] == ExitCode.USAGE
    assert user("add", "bridge/", "--certificate")[0] == ExitCode.USAGE
    assert file.read_bytes() == before
    assert list(map(str, parse_users(before.decode())["bridge/jobs"].allow)) == [
        "logmq:read:jobs",
        "dms:write:jobs",
    ]


def test_a_password_that_is_not_typed_is_told_in_a_line(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def ended(_: str) -> str:
        raise EOFError

    monkeypatch.setattr("getpass.getpass", ended)
    monkeypatch.setattr("sys.stdin.isatty", lambda: True)
    refused = run_here("user", "add", "ann", "--data-dir", str(tmp_path))
    assert (refused.returncode, refused.stderr) == (2, "\nbrokers: password: none was given\n")
    refused = run_here("status", "--url", "http://127.0.0.1:1", "--user", "ann")
    assert (refused.returncode, refused.stderr) == (2, "\nbrokers: password: none was given\n")


def test_the_users_of_a_server_elsewhere_are_changed_by_its_api(
    user: Command, new_server: Callable[..., Server]
) -> None:
    server = new_server().start()
    at = ("--url", server.ready["page"], "--token-file", str(server.data / "admin.token"))
    assert user("add", "ann", "--allow", "logmq:read:orders.*", *at, password="hunter2") == (
        0,
        "user ann added\n",
        "",
    )
    file = server.data / "users.toml"
    first = parse_users(file.read_text())["ann"].password
    assert first is not None
    assert first == Secret.make(b"hunter2", first.salt)
    code, _, said = user("add", "ann", "--certificate", *at)
    assert (code, "there is a user ann already" in said) == (ExitCode.FAILED, True)
    assert user("allow", "ann", "dms:*:jobs", "admin:read", *at)[1] == "user ann has 3 rules\n"
    assert user("check", "ann", "dms:read:jobs", *at)[:2] == (0, "allowed\n")
    assert user("deny", "ann", "dms:*:jobs", *at)[1] == "user ann has 2 rules\n"
    code, _, said = user("deny", "ann", "dms:*:jobs", *at)
    assert (code, "there are: logmq:read:orders.*, admin:read" in said) == (ExitCode.MISSING, True)
    assert json.loads(user("list", "--json", *at)[1]) == {
        "user": "ann",
        "login": "password",
        "allow": ["logmq:read:orders.*", "admin:read"],
    }
    assert user("passwd", "ann", *at, password="another")[0] == 0
    changed = parse_users(file.read_text())["ann"].password
    assert changed is not None
    assert changed == Secret.make(b"another", changed.salt)
    assert user("rm", "ann", *at)[0] == 0
    assert user("rm", "ann", *at)[0] == ExitCode.MISSING
    assert parse_users(file.read_text()) == {}


def test_a_login_without_a_server_elsewhere_is_refused(user: Command, tmp_path: Path) -> None:
    code, _, said = user("list", "--token-file", str(tmp_path / "token"))
    assert (code, said.startswith("brokers: --token-file: is for an admin port")) == (ExitCode.USAGE, True)
