"""`brokers user ...`: the users file, changed from the command line; a running server takes it up at once."""

import secrets
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import attrs
from cyclopts import Parameter

from brokers import plugins
from brokers.commands.flags import ConfigFile, host_app
from brokers.commands.render import CommandResult
from brokers.commands.server_address import DataDir, asked_for, local_folder, path_setting
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
    data_dir: DataDir = None,
    config: ConfigFile = None,
) -> str:
    """Add a user, with a password that is asked for, and rules."""
    if not (USER_NAME.fullmatch(name) or has_rules_alone(name)):
        raise UsageError("NAME", "a user's name is 1 to 64 of A-Z, a-z, 0-9 and ._@-")
    file = _UsersFile(data_dir, config)
    file.require_new(name)
    rules = _rules("--allow", allow)
    secret = None
    if has_rules_alone(name):
        if password_stdin or certificate:
            raise UsageError("NAME", f"nobody can log in as {name}: it has rules alone")
    elif password_stdin or not certificate:
        secret = _secret(password_stdin)
    with file.changing() as users:
        file.require_new(name)
        users[name] = User(name, rules, secret, certificate)
    return file.tell("user-add", name, f"user {name} added")


@command("passwd ann", "passwd ann --password-stdin < password")
def passwd(
    name: Name, *, password_stdin: FromInput = False, data_dir: DataDir = None, config: ConfigFile = None
) -> str:
    """Give a user another password; connections that are logged in as this user are closed."""
    file = _UsersFile(data_dir, config)
    file.user(name)
    if has_rules_alone(name):
        raise UsageError("NAME", f"nobody can log in as {name}")
    secret = _secret(password_stdin)
    with file.changing() as users:
        users[name] = attrs.evolve(file.user(name), password=secret)
    return file.tell("user-passwd", name, f"user {name} has another password")


@command("rm ann")
def rm(name: Name, *, data_dir: DataDir = None, config: ConfigFile = None) -> str:
    """Remove a user; connections that are logged in as this user are closed."""
    file = _UsersFile(data_dir, config)
    file.user(name)
    with file.changing() as users:
        users.pop(name, None)
    return file.tell("user-rm", name, f"user {name} removed")


@command("allow ann 'logmq:read:orders.*' dms:*:jobs")
def allow(name: Name, *rules: Rules, data_dir: DataDir = None, config: ConfigFile = None) -> str:
    """Give a user rules. Connections that stand may do what they allow from now on."""
    file = _UsersFile(data_dir, config)
    file.user(name)
    given = _rules("RULES", rules, least=1)
    with file.changing() as users:
        user = file.user(name)
        merged = tuple(dict.fromkeys((*user.allow, *given)))
        users[name] = attrs.evolve(user, allow=merged)
    return file.tell("user-allow", name, f"user {name} has {len(merged)} rules")


@command("deny ann 'logmq:read:orders.*'")
def deny(name: Name, *rules: Rules, data_dir: DataDir = None, config: ConfigFile = None) -> str:
    """Take rules from a user, as they are written in the list."""
    file = _UsersFile(data_dir, config)
    file.user(name)
    taken = _rules("RULES", rules, least=1, asked_for=False)  # also what somebody misspelt in the file
    with file.changing() as users:
        user = file.user(name)
        for rule in taken:
            if rule not in user.allow:
                has = ", ".join(map(str, user.allow)) or "none"
                raise NotThere(f"user {name} has no rule {rule}; there are: {has}")
        kept = tuple(rule for rule in user.allow if rule not in taken)
        users[name] = attrs.evolve(user, allow=kept)
    return file.tell("user-deny", name, f"user {name} has {len(kept)} rules")


@command("list", "list --json | jq -r .user", name="list")
def list_(*, data_dir: DataDir = None, config: ConfigFile = None, json: Json = False) -> Sequence[Any]:
    """List the users, how each logs in, and what each may do."""
    users = _UsersFile(data_dir, config).users.values()
    return [
        {
            "user": user.name,
            "login": ", ".join(
                way for way, has in (("password", user.password), ("certificate", user.certificate)) if has
            ),
            "allow": list(map(str, user.allow)) if json else " ".join(map(str, user.allow)),
        }
        for user in users
    ]


@command("check ann logmq:read:orders.eu", "check ann pubsub:read:home/+ && echo allowed")
def check(
    name: Name,
    rule: Annotated[
        str, Parameter(help="What is to be done: <protocol>:<action>:<name>, or admin:<action>.")
    ],
    *,
    data_dir: DataDir = None,
    config: ConfigFile = None,
) -> CommandResult:
    """Say whether a user may do something (exit 0), or not (exit 1)."""
    (wanted,) = _rules("RULE", (rule,))
    if "*" in (wanted.protocol, wanted.action):
        raise UsageError("RULE", "name one protocol and one action")
    file = _UsersFile(data_dir, config)
    access = Access(file.users)
    if name not in file.users and not has_rules_alone(name):
        raise Failure(f"denied: there is no user {name}{did_you_mean(name, file.users)}")
    if name not in file.users:  # without an entry they may do all that they can
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


class _UsersFile:
    """The users file that a command is about, and the server that is to take up its changes."""

    def __init__(self, data_dir: Path | None, config: Path | None) -> None:
        from brokers.access import users

        self._module = users
        self._folder = local_folder(data_dir, config)
        self._path = path_setting("access", "users_file", config) or self._folder / "users.toml"
        self.users = self._read()

    def _read(self, *, told: bool = False) -> dict[str, User]:
        tell = (lambda _: None) if told else self._module.tell_terminal
        try:
            return self._module.read(self._path, tell) or {}
        except ConfigError as error:
            raise Failure(error.text, ExitCode.CONFIGURATION) from None

    def require_new(self, name: str) -> None:
        if name in self.users:
            raise Failure(f"there is a user {name} already: see brokers user passwd, allow, deny, rm")

    def user(self, name: str) -> User:
        """Raises NotThere."""
        user = self.users.get(name)
        if user is None:
            raise NotThere(f"there is no user {name}{did_you_mean(name, self.users)}")
        return user

    @contextmanager
    def changing(self) -> Iterator[dict[str, User]]:
        """The users as they are by now, to be changed; at the end of the block they replace the file's."""
        try:
            if self._path.parent == self._folder:
                self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            with self._module.locked(self._path):
                self.users = self._read(told=True)
                yield self.users
                self._module.replace(self._path, self.users)
        except OSError as error:
            raise Failure(f"{self._path}: {error.strerror}", ExitCode.DATA_FOLDER) from None

    def tell(self, action: str, name: str, said: str) -> str:
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


def _secret(from_input: bool) -> Secret:
    """A password's hash; the password itself is shown nowhere."""
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
    return Secret.make(password, secrets.token_bytes(SALT_BYTES))
