"""`brokers user ...`: the users file, changed from the command line; a running server takes it up at once.

Where the flags or a context name the admin port of a server, its API changes that server's file.
"""

import secrets
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import attrs
from cyclopts import Parameter

from brokers import plugins
from brokers.commands.control import AdminClient
from brokers.commands.flags import host_app
from brokers.commands.render import CommandResult
from brokers.commands.server_address import ServerAddress, asked_for, path_setting
from brokers.errors import ExitCode, Failure, did_you_mean
from shared.access import (
    ADMIN,
    SALT_BYTES,
    USER_NAME,
    Access,
    Rule,
    Secret,
    User,
    UsersError,
    has_rules_alone,
)
from shared.cli.options import Json, flag
from shared.errors import ConfigError, NotThere, UsageError
from shared.objects import USERS

app, command = host_app(
    "user",
    "Users: who may log in, and what each may do.",
    "add ann --allow 'logmq:read:orders.*'",
    "check ann logmq:read:orders.eu",
)

Name = Annotated[
    str,
    Parameter(help="The user; `anonymous`, `udp` and `bridge/<name>` have rules alone, and cannot log in."),
]
Rules = Annotated[
    str, Parameter(help="<protocol or *>:<action or *>:<pattern>, or admin:<read, manage, users or *>.")
]
FromInput = Annotated[bool, flag("The password is the first line of standard input.", "--password-stdin")]


@command(
    "add ann --allow 'logmq:*:orders.*'", "add ann --password-stdin < password", "add sensor --certificate"
)
def add(
    name: Name,
    *,
    allow: Annotated[
        tuple[str, ...], Parameter(help="A rule; repeatable.", negative="", show_default=False)
    ] = (),
    certificate: Annotated[
        bool, flag("Logs in by a client certificate; without --password-stdin by that alone.")
    ] = False,
    password_stdin: FromInput = False,
    at: ServerAddress,
) -> str:
    """Add a user, with a password that is asked for, and rules."""
    if not (USER_NAME.fullmatch(name) or has_rules_alone(name)):
        raise UsageError("NAME", "a user's name is 1 to 64 of A-Z, a-z, 0-9 and ._@-")
    users = _users(at)
    users.require_new(name)
    rules = _rules("--allow", allow)
    password = None
    if has_rules_alone(name):
        if password_stdin or certificate:
            raise UsageError("NAME", f"nobody can log in as {name}: it has rules alone")
    elif password_stdin or not certificate:
        password = _password(password_stdin)
    return users.add(User(name, rules, None, certificate), password)


@command("passwd ann", "passwd ann --password-stdin < password")
def passwd(name: Name, *, password_stdin: FromInput = False, at: ServerAddress) -> str:
    """Give a user another password; connections that are logged in as this user are closed."""
    users = _users(at)
    users.user(name)
    if has_rules_alone(name):
        raise UsageError("NAME", f"nobody can log in as {name}")
    return users.passwd(name, _password(password_stdin))


@command("rm ann")
def rm(name: Name, *, at: ServerAddress) -> str:
    """Remove a user; connections that are logged in as this user are closed."""
    users = _users(at)
    users.user(name)
    return users.rm(name)


@command("allow ann 'logmq:read:orders.*' dms:*:jobs")
def allow(name: Name, *rules: Rules, at: ServerAddress) -> str:
    """Give a user rules. Connections that stand may do what they allow from now on."""
    users = _users(at)
    users.user(name)
    return users.allow(name, _rules("RULES", rules, least=1))


@command("deny ann 'logmq:read:orders.*'")
def deny(name: Name, *rules: Rules, at: ServerAddress) -> str:
    """Take rules from a user, as they are written in the list."""
    users = _users(at)
    users.user(name)
    # Also what somebody misspelt in the file.
    return users.deny(name, _rules("RULES", rules, least=1, asked_for=False))


@command("list", "list --json | jq -r .user", name="list")
def list_(*, at: ServerAddress, json: Json = False) -> Sequence[Any]:
    """List the users, how each logs in, and what each may do."""
    users = _users(at)
    return [
        {
            "user": user.name,
            "login": ", ".join(users.logins(user.name)),
            "allow": list(map(str, user.allow)) if json else " ".join(map(str, user.allow)),
        }
        for user in users.users.values()
    ]


@command("check ann logmq:read:orders.eu", "check ann pubsub:read:home/+ && echo allowed")
def check(
    name: Name,
    rule: Annotated[
        str, Parameter(help="What is to be done: <protocol>:<action>:<name>, or admin:<action>.")
    ],
    *,
    at: ServerAddress,
) -> CommandResult:
    """Say whether a user may do something (exit 0), or not (exit 1)."""
    (wanted,) = _rules("RULE", (rule,))
    if "*" in (wanted.protocol, wanted.action):
        raise UsageError("RULE", "name one protocol and one action")
    users = _users(at).users
    access = Access(users)
    if name not in users and not has_rules_alone(name):
        raise Failure(f"denied: there is no user {name}{did_you_mean(name, users)}")
    if name not in users:  # without an entry they may do all that they can
        allowed = wanted.protocol != ADMIN
    elif wanted.protocol == ADMIN:
        allowed = access.may_admin(name, wanted.action)
    else:
        guard = access.guard(wanted.protocol)
        allowed = guard.may(name, wanted.action, wanted.pattern)
        if plugins.load(wanted.protocol).topics:
            reads = guard.may_subscribe(name, wanted.pattern.encode()) if wanted.action == "read" else False
            writes = wanted.action == "write" and guard.may_send_topic(name, wanted.pattern.encode())
            allowed = reads or writes
    return CommandResult("allowed" if allowed else "denied", ExitCode.OK if allowed else ExitCode.FAILED)


def _users(at: ServerAddress) -> "_Users":
    client, address = at.client(), at.resolved()
    if address.url is not None:
        return _UsersOfServer(client)
    assert address.data_dir is not None
    return _UsersFile(address.data_dir, at.config)


class _Users(ABC):
    """The users that a command is about. Each change returns what is said of it."""

    users: Mapping[str, User]

    def require_new(self, name: str) -> None:
        if name in self.users:
            raise Failure(f"there is a user {name} already: see brokers user passwd, allow, deny, rm")

    def user(self, name: str) -> User:
        """Raises NotThere."""
        user = self.users.get(name)
        if user is None:
            raise NotThere(f"there is no user {name}{did_you_mean(name, self.users)}")
        return user

    @abstractmethod
    def logins(self, name: str) -> Sequence[str]:
        """How the user logs in."""

    @abstractmethod
    def add(self, user: User, password: bytes | None) -> str: ...

    @abstractmethod
    def passwd(self, name: str, password: bytes) -> str: ...

    @abstractmethod
    def rm(self, name: str) -> str: ...

    @abstractmethod
    def allow(self, name: str, rules: Sequence[Rule]) -> str: ...

    @abstractmethod
    def deny(self, name: str, rules: Sequence[Rule]) -> str:
        """Raises NotThere for a rule that the user has not."""


class _UsersOfServer(_Users):
    """Those of a server, by its API."""

    def __init__(self, client: AdminClient) -> None:
        self._client = client
        self._rows = {row["name"]: row for row in self._client.rows(USERS.name)}
        self.users = {
            name: User(name, tuple(map(Rule.parse, row["allow"]))) for name, row in self._rows.items()
        }

    def logins(self, name: str) -> Sequence[str]:
        found: Sequence[str] = self._rows[name]["login"]
        return found

    def add(self, user: User, password: bytes | None) -> str:
        said: dict[str, Any] = {"allow": list(map(str, user.allow)), "certificate": user.certificate}
        if password is not None:
            said["password"] = _text(password)
        self._client.post(USERS.name, name=user.name, **said)
        return f"user {user.name} added"

    def passwd(self, name: str, password: bytes) -> str:
        self._client.post(USERS.name, name, "passwd", password=_text(password))
        return f"user {name} has another password"

    def rm(self, name: str) -> str:
        self._client.delete(USERS.name, name)
        return f"user {name} removed"

    def allow(self, name: str, rules: Sequence[Rule]) -> str:
        answer = self._client.post(USERS.name, name, "allow", rules=list(map(str, rules)))
        return f"user {name} has {answer['rules']} rules"

    def deny(self, name: str, rules: Sequence[Rule]) -> str:
        _require_rules(self.user(name), rules)
        answer = self._client.post(USERS.name, name, "deny", rules=list(map(str, rules)))
        return f"user {name} has {answer['rules']} rules"


def _text(password: bytes) -> str:
    try:
        return password.decode()
    except UnicodeDecodeError:
        raise UsageError("password", "the API takes text in UTF-8 alone") from None


def _require_rules(user: User, rules: Sequence[Rule]) -> None:
    for rule in rules:
        if rule not in user.allow:
            has = ", ".join(map(str, user.allow)) or "none"
            raise NotThere(f"user {user.name} has no rule {rule}; there are: {has}")


class _UsersFile(_Users):
    """The file of a data folder on this machine, and the server that is to take up its changes."""

    def __init__(self, folder: Path, config: Path | None) -> None:
        from brokers.access import users

        self._module = users
        self._folder = folder
        self._path = path_setting("access", "users_file", config) or self._folder / "users.toml"
        self.users = self._read()

    def _read(self, *, told: bool = False) -> dict[str, User]:
        tell = (lambda _: None) if told else self._module.tell_terminal
        try:
            return self._module.read(self._path, tell) or {}
        except ConfigError as error:
            raise Failure(error.text, ExitCode.CONFIGURATION) from None

    def logins(self, name: str) -> Sequence[str]:
        user = self.user(name)
        ways = (("password", user.password), ("certificate", user.certificate))
        return [way for way, has in ways if has]

    def add(self, user: User, password: bytes | None) -> str:
        secret = None if password is None else _secret(password)
        with self._changing() as users:
            self.require_new(user.name)
            users[user.name] = attrs.evolve(user, password=secret)
        return self._tell("user-add", user.name, f"user {user.name} added")

    def passwd(self, name: str, password: bytes) -> str:
        secret = _secret(password)
        with self._changing() as users:
            users[name] = attrs.evolve(self.user(name), password=secret)
        return self._tell("user-passwd", name, f"user {name} has another password")

    def rm(self, name: str) -> str:
        with self._changing() as users:
            users.pop(name, None)
        return self._tell("user-rm", name, f"user {name} removed")

    def allow(self, name: str, rules: Sequence[Rule]) -> str:
        with self._changing() as users:
            user = self.user(name)
            merged = tuple(dict.fromkeys((*user.allow, *rules)))
            users[name] = attrs.evolve(user, allow=merged)
        return self._tell("user-allow", name, f"user {name} has {len(merged)} rules")

    def deny(self, name: str, rules: Sequence[Rule]) -> str:
        with self._changing() as users:
            user = self.user(name)
            _require_rules(user, rules)
            kept = tuple(rule for rule in user.allow if rule not in rules)
            users[name] = attrs.evolve(user, allow=kept)
        return self._tell("user-deny", name, f"user {name} has {len(kept)} rules")

    @contextmanager
    def _changing(self) -> Iterator[dict[str, User]]:
        """The users as they are by now, to be changed; at the end of the block they replace the file's."""
        try:
            if self._path.parent == self._folder:
                self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            with self._module.locked(self._path):
                self.users = users = self._read(told=True)
                yield users
                self._module.replace(self._path, users)
        except OSError as error:
            raise Failure(f"{self._path}: {error.strerror}", ExitCode.DATA_FOLDER) from None

    def _tell(self, action: str, name: str, said: str) -> str:
        """Have the server that runs on the folder take it up."""
        from brokers.commands import control

        try:
            control.request(self._folder, "POST", "/reload", {"action": action, "name": name})
        except Failure as error:
            if error.code == ExitCode.UNAVAILABLE:
                return f"{said}; no server runs here that would have to be told"
            raise Failure(f"{said} in {self._path}, but the server did not take it up: {error}") from None
        return f"{said}; the server knows"


def _rules(
    argument: str, texts: Sequence[str], least: int = 0, *, asked_for: bool = True
) -> tuple[Rule, ...]:
    """Raises UsageError for what is no rule, and with `asked_for` for what nothing here asks for."""
    if len(texts) < least:
        raise UsageError(argument, "name a rule")
    parsed = []
    for text in texts:
        try:
            rule = Rule.parse(text)
            if asked_for:
                plugins.check_rule(rule)
        except UsersError as error:
            raise UsageError(argument, str(error)) from None
        parsed.append(rule)
    return tuple(parsed)


def _secret(password: bytes) -> Secret:
    """A password's hash."""
    return Secret.make(password, secrets.token_bytes(SALT_BYTES))


def _password(from_input: bool) -> bytes:
    """A password, which is shown nowhere."""
    if from_input:
        password = sys.stdin.buffer.readline().rstrip(b"\r\n")
    elif sys.stdin.isatty():
        first = asked_for("Password: ")
        if asked_for("Again: ") != first:
            raise UsageError("password", "these were two different ones")
        password = first.encode()
    else:
        raise UsageError("--password-stdin", "there is no terminal to ask for the password")
    if not password or b"\n" in password or b"\0" in password or len(password) > 1024:
        raise UsageError("password", "1 to 1,024 bytes, no line break, no NUL")
    return password
