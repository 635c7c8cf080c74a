"""`brokers user ...`: the users of a server, changed by its API; or those of a folder that nobody serves."""

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any

from cyclopts import Parameter

from brokers import plugins
from brokers.commands.flags import host_app
from brokers.commands.render import CommandResult
from brokers.commands.server_address import ServerAddress, asked_for, path_setting
from brokers.errors import ExitCode, Failure, did_you_mean
from shared.access import ADMIN, USER_NAME, Access, Rule, User, UsersError, has_rules_alone
from shared.cli.options import Json, flag
from shared.errors import NotThere, UsageError
from shared.objects import USERS
from shared.plugin import AdminApi

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
_HAS_RULES = "user {} has {{rules}} rules"
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
    users = _Users(at)
    if name in users.users:
        raise Failure(f"there is a user {name} already: see brokers user passwd, allow, deny, rm")
    said: dict[str, Any] = {"allow": _rules("--allow", allow), "certificate": certificate}
    if has_rules_alone(name):
        if password_stdin or certificate:
            raise UsageError("NAME", f"nobody can log in as {name}: it has rules alone")
    elif password_stdin or not certificate:
        said["password"] = _password(password_stdin)
    return users.change(f"user {name} added", lambda api: api.post(USERS.name, name=name, **said))


@command("passwd ann", "passwd ann --password-stdin < password")
def passwd(name: Name, *, password_stdin: FromInput = False, at: ServerAddress) -> str:
    """Give a user another password; connections that are logged in as this user are closed."""
    users = _Users(at)
    users.user(name)
    if has_rules_alone(name):
        raise UsageError("NAME", f"nobody can log in as {name}")
    password = _password(password_stdin)
    return users.change(
        f"user {name} has another password",
        lambda api: api.post(USERS.name, name, "passwd", password=password),
    )


@command("rm ann")
def rm(name: Name, *, at: ServerAddress) -> str:
    """Remove a user; connections that are logged in as this user are closed."""
    users = _Users(at)
    users.user(name)
    return users.change(f"user {name} removed", lambda api: api.delete(USERS.name, name))


@command("allow ann 'logmq:read:orders.*' dms:*:jobs")
def allow(name: Name, *rules: Rules, at: ServerAddress) -> str:
    """Give a user rules. Connections that stand may do what they allow from now on."""
    users = _Users(at)
    users.user(name)
    given = _rules("RULES", rules, least=1)
    return users.change(_HAS_RULES.format(name), lambda api: api.post(USERS.name, name, "allow", rules=given))


@command("deny ann 'logmq:read:orders.*'")
def deny(name: Name, *rules: Rules, at: ServerAddress) -> str:
    """Take rules from a user, as they are written in the list."""
    users = _Users(at)
    has = users.user(name)["allow"]
    taken = _rules("RULES", rules, least=1, asked_for=False)  # also what somebody misspelt in the file
    for rule in taken:
        if rule not in has:
            raise NotThere(f"user {name} has no rule {rule}; there are: {', '.join(has) or 'none'}")
    return users.change(_HAS_RULES.format(name), lambda api: api.post(USERS.name, name, "deny", rules=taken))


@command("list", "list --json | jq -r .user", name="list")
def list_(*, at: ServerAddress, json: Json = False) -> Sequence[Any]:
    """List the users, how each logs in, and what each may do."""
    return [
        {
            "user": row["name"],
            "login": ", ".join(row["login"]),
            "allow": row["allow"] if json else " ".join(row["allow"]),
        }
        for row in _Users(at).users.values()
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
    wanted = Rule.parse(*_rules("RULE", (rule,)))
    if "*" in (wanted.protocol, wanted.action):
        raise UsageError("RULE", "name one protocol and one action")
    rows = _Users(at).users.values()
    users = {row["name"]: User(row["name"], tuple(map(Rule.parse, row["allow"]))) for row in rows}
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


class _Users:
    """The users of a server, or of a folder that nobody serves, by the API. `users`: rows by name."""

    def __init__(self, at: ServerAddress) -> None:
        self._client, self._address, self._config = at.client(), at.resolved(), at.config
        self._told = ""
        rows = self._ask(lambda api: api.rows(USERS.name))
        self.users: Mapping[str, Mapping[str, Any]] = {row["name"]: row for row in rows}

    def user(self, name: str) -> Mapping[str, Any]:
        """Raises NotThere."""
        if name not in self.users:
            raise NotThere(f"there is no user {name}{did_you_mean(name, self.users)}")
        return self.users[name]

    def change(self, said: str, question: Callable[[AdminApi], Any]) -> str:
        """Returns what is said of it, with the number of rules that the answer has."""
        answer = self._ask(question)
        return said.format(rules=answer.get("rules")) + self._told

    def _ask(self, question: Callable[[AdminApi], Any]) -> Any:
        folder = self._address.data_dir
        try:
            answer = question(self._client)
        except Failure as error:
            if folder is None or error.code != ExitCode.UNAVAILABLE:
                raise
            from brokers.commands import offline

            path = path_setting("access", "users_file", self._config) or folder / "users.toml"
            self._told = "; no server runs here that would have to be told"
            return offline.ask_users(path, question)
        self._told = "" if folder is None else "; the server knows"
        return answer


def _rules(argument: str, texts: Sequence[str], least: int = 0, *, asked_for: bool = True) -> list[str]:
    """As the API takes them. Raises UsageError for what is no rule; with `asked_for` also for what nothing
    here asks for."""
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
        parsed.append(str(rule))
    return parsed


def _password(from_input: bool) -> str:
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
    try:
        return password.decode()
    except UnicodeDecodeError:
        raise UsageError("password", "it is text in UTF-8 alone") from None
