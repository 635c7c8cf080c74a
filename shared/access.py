"""Who may do what: rules, users, and the decisions for all protocols.

A rule is `<protocol or *>:<action or *>:<pattern>`. Its pattern is a glob over the name (`*`: any run of
characters, `?`: one). A request is allowed if one of the user's rules allows it. `admin:read`,
`admin:manage`, `admin:users` and `admin:*` have no pattern. No `*` in a rule's first field includes `admin`.

`Access` holds the users of the process; `Access.guard` makes the `Guard` of one protocol. Without a users
file sessions have no guard. Decisions are cached by (user, action, name) until the users change.

This module has no I/O, clock or randomness: callers pass the time, random bytes and the file's text.
"""

import hashlib
import hmac
import math
import re
import tomllib
from base64 import b64decode, b64encode
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextvars import ContextVar
from typing import Any, Literal, Protocol

import attrs

from shared.errors import BrokerError, printable
from shared.globs import expression, matcher
from shared.metrics import Sample
from shared.shares import Shares

READ, WRITE, MANAGE = "read", "write", "manage"
ACTIONS = (READ, WRITE, MANAGE)
ADMIN = "admin"
USERS = "users"
ADMIN_ACTIONS = (READ, MANAGE, USERS)
USER_SHARE = 50
"""The share of a user in every bound, in percent, unless his entry or `access.user_share` has another."""

_SEE, _TOPIC, _SUBSCRIBE = "see", "topic", "subscribe"
"""Actions that no rule names: any of `ACTIONS`; `write`, to a topic of pub/sub; `read`, a pattern of its."""

ANONYMOUS = "anonymous"
"""The user of clients that have not logged in, where no login is required."""
UDP = "udp"
"""The user of all datagrams, whose senders cannot log in."""
PSEUDO_USERS = (ANONYMOUS, UDP)

ASKER: ContextVar[str] = ContextVar("asker", default="")
"""The user who asks for the administrative action under way. "": who holds the server's token or folder, and
may do everything."""

DECISIONS_MAX = 16 * 1024
"""Cached decisions of one protocol: some 8 MiB. One more clears the cache. Longer names are not cached."""
DECIDED_NAME_MAX = 256
TOLD_MAX = 1024
"""Denials that are remembered as logged. Repeats of the same user, action and name are only counted."""

REFUSED_MAX = 1024
"""Users and addresses whose refusals are counted between two looks at them."""

USER_NAME = re.compile(r"[A-Za-z0-9._@-]{1,64}")
BRIDGE_USER = re.compile(r"bridge/[A-Za-z0-9._-]{1,64}")
"""The user of bridges; no client can log in as it. Without an entry it may do all that its ends need."""
_WORD = re.compile(r"[a-z][a-z0-9_-]{0,31}")

SCRYPT_N, SCRYPT_R, SCRYPT_P = 2**14, 8, 1
SALT_BYTES = 16
KEY_BYTES = 32


class UsersError(BrokerError):
    """A users file that cannot be used; the text holds no password."""


# Rules.

_ANY, _LEVEL, _REST = "\ud800", "\ud801", "\ud802"
"""In place of a subscription's wildcards: any text, a level, and `/*` at the end. No name has these."""


@attrs.frozen
class Rule:
    """One line of a user's `allow`. `pattern` is empty for `admin`."""

    protocol: str
    action: str
    pattern: str

    @classmethod
    def parse(cls, text: str) -> "Rule":
        """Raises UsersError, which says what would be right."""
        protocol, _, rest = text.partition(":")
        action, colon, pattern = rest.partition(":")
        if protocol == ADMIN:
            if colon or action not in (*ADMIN_ACTIONS, "*"):
                raise UsersError(
                    f"rule {_shown(text)}: of admin there are admin:read, admin:manage, admin:users, admin:*"
                )
            return cls(protocol, action, "")
        if not colon or not pattern or not (protocol == "*" or _WORD.fullmatch(protocol)):
            raise UsersError(f"rule {_shown(text)}: write <protocol or *>:<action or *>:<pattern>")
        if not (action == "*" or _WORD.fullmatch(action)):
            raise UsersError(
                f"rule {_shown(text)}: its action is {', '.join(ACTIONS)} or *, not {_shown(action)}"
            )
        if not pattern.isprintable():
            raise UsersError(f"rule {_shown(text)}: its pattern holds a character that cannot be printed")
        return cls(protocol, action, pattern)

    def __str__(self) -> str:
        return f"{self.protocol}:{self.action}" + (f":{self.pattern}" if self.protocol != ADMIN else "")

    def covers(self, protocol: str, action: str) -> bool:
        """Whether the rule applies to that action of that protocol."""
        if self.protocol != protocol and (self.protocol != "*" or protocol == ADMIN):
            return False
        return self.action in ("*", action)

    def includes(self, other: "Rule") -> bool:
        """Whether all that the other rule allows is allowed by this one."""
        if not self.covers(other.protocol, other.action):
            return False
        # Characters stand in place of the other's wildcards: one only `*` matches, one `?` does, too.
        glob = _sparing(self.pattern, _ANY)
        text = other.pattern.replace("*", _ANY).replace("?", _LEVEL)
        return expression(glob, sets=True).match(text) is not None


def _sparing(pattern: str, symbols: str) -> str:
    """A rule's pattern as a glob with sets, whose `?` matches none of these characters."""
    return pattern.replace("[", "[[]").replace("?", f"[!{symbols}]")


def text_of(name: str | bytes) -> str:
    """A name as rules match it: bytes that are not UTF-8 become one character each."""
    return name if isinstance(name, str) else name.decode("utf-8", "surrogateescape")


def _shown(text: str) -> str:
    return printable(text.encode("utf-8", "surrogatepass"))


# Topics and the patterns of subscriptions.


def topic_globs(globs: Iterable[str]) -> list[str]:
    """The globs, plus `home` for each `home/*`, because a subscription to `home/*` also matches `home`."""
    found: dict[str, None] = {}
    for glob in globs:
        found[glob] = None
        if glob.endswith("/*"):
            found[glob[:-2]] = None
    return list(found)


def covers_subscription(globs: Iterable[str]) -> Callable[[str], bool]:
    """A function of a subscription's pattern: whether some one glob matches every topic that it can match.

    Levels of `pattern` are split at `/`; `*` matches zero or more levels, `+` exactly one. In place of each
    stands a character that only a glob's `*` matches.
    """
    written = [_sparing(glob, _ANY + _LEVEL + _REST) for glob in topic_globs(globs)]
    matches = matcher([*written, *(glob[:-2] + _REST for glob in written if glob.endswith("/*"))], sets=True)

    def covers(pattern: str) -> bool:
        levels = pattern.split("/")
        levels = [level for n, level in enumerate(levels) if level != "*" or levels[n - 1 : n] != ["*"]]
        rest = ""
        if levels[-1] == "*" and len(levels) > 1:
            levels, rest = levels[:-1], _REST
        text = "/".join({"*": _ANY, "+": _LEVEL}.get(level, level) for level in levels) + rest
        text = re.sub(f"^{_ANY}/", _ANY, text)
        # `a/*/b` is `a/` and any text and `b`; or `a`, any text and `/b`.
        return any(matches(text.replace(between, _ANY)) for between in (f"{_ANY}/", f"/{_ANY}"))

    return covers


# Passwords.


@attrs.frozen
class Secret:
    """A password's hash, as in the users file: `scrypt$<n>$<r>$<p>$<salt>$<key>`, base64."""

    salt: bytes = attrs.field(repr=False)
    key: bytes = attrs.field(repr=False)

    @classmethod
    def make(cls, password: bytes, salt: bytes) -> "Secret":
        """Hash a password: some 50 ms of CPU time, and 16 MiB."""
        return cls(salt, _scrypt(password, salt))

    @classmethod
    def parse(cls, text: str) -> "Secret":
        """Parse a hash. Raises ValueError without quoting the text, which may be a clear password."""
        name, _, rest = text.partition("$")
        fields = rest.split("$")
        head = [str(SCRYPT_N), str(SCRYPT_R), str(SCRYPT_P)]
        if name != "scrypt" or fields[:3] != head or len(fields) != 5:
            raise ValueError("is no hash that `brokers user passwd` made")
        salt, key = (b64decode(field, validate=True) for field in fields[3:])
        if len(salt) != SALT_BYTES or len(key) != KEY_BYTES:
            raise ValueError("is a hash of another size")
        return cls(salt, key)

    def written(self) -> str:
        salt, key = (b64encode(each).decode() for each in (self.salt, self.key))
        return f"scrypt${SCRYPT_N}${SCRYPT_R}${SCRYPT_P}${salt}${key}"

    def fits(self, password: bytes) -> bool:
        """Whether a password matches. Takes as long as `make`; may be called in a thread."""
        return self.has_key(_scrypt(password, self.salt))

    def has_key(self, key: bytes) -> bool:
        """Whether a password with this key matches."""
        return hmac.compare_digest(key, self.key)


NOBODYS = Secret(bytes(SALT_BYTES), bytes(KEY_BYTES))
"""Passwords of unknown users are compared with this, so that they take as long as those of known ones. No
password has this key."""


def _scrypt(password: bytes, salt: bytes) -> bytes:
    return hashlib.scrypt(password, salt=salt, n=SCRYPT_N, r=SCRYPT_R, p=SCRYPT_P, dklen=KEY_BYTES)


# Users.


@attrs.frozen
class User:
    """One table of the users file."""

    name: str
    allow: tuple[Rule, ...] = ()
    password: Secret | None = None
    certificate: bool = False
    user_share: int = 0
    """Percent of every bound; 0: as for all users."""


def parse_users(text: str) -> dict[str, User]:
    """The users of a file, by name. Raises UsersError, with no password in it."""
    try:
        tables = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        # tomllib quotes a character at most, and never a value.
        raise UsersError(f"is not TOML: {error}") from None
    unknown = set(tables) - {"users"}
    users = tables.get("users", {})
    if unknown or not isinstance(users, dict):
        raise UsersError(f"{_shown(min(unknown, default='users'))}: write a table [users.NAME] for each user")
    return {name: user_of(name, table) for name, table in users.items()}


def has_rules_alone(name: str) -> bool:
    """Whether nobody can log in as this user: those who did not log in, datagrams, and bridges."""
    return name in PSEUDO_USERS or BRIDGE_USER.fullmatch(name) is not None


def user_of(name: str, table: Any) -> User:
    """One user from its table. Raises UsersError, whose text holds no password."""
    where = f"users.{name}" if USER_NAME.fullmatch(name) else f"users.{_shown(name)}"
    if not (USER_NAME.fullmatch(name) or has_rules_alone(name)):
        raise UsersError(f"{where}: a name is 1 to 64 of A-Z, a-z, 0-9 and ._@-")
    if not isinstance(table, dict):
        raise UsersError(f"{where}: write a table [users.NAME] for each user")
    unknown = sorted(set(table) - {"password", "certificate", "allow", "user_share"})
    if unknown:
        raise UsersError(
            f"{where}.{_shown(unknown[0])}: there are password, certificate, allow and user_share"
        )
    share = table.get("user_share", 0)
    if "user_share" in table and (type(share) is not int or not 1 <= share <= 100):
        raise UsersError(f"{where}.user_share: a number of percent, from 1 to 100")
    certificate, allow = table.get("certificate", False), table.get("allow", [])
    if not isinstance(certificate, bool):
        raise UsersError(f"{where}.certificate: true or false")
    if not isinstance(allow, list) or not all(isinstance(each, str) for each in allow):
        raise UsersError(f"{where}.allow: a list of rules, each a text")
    if has_rules_alone(name) and ("password" in table or certificate):
        raise UsersError(f"{where}: nobody can log in as {name}; it has rules alone")
    secret = None
    if "password" in table:
        try:
            secret = Secret.parse(table["password"])
        except (ValueError, AttributeError):
            raise UsersError(
                f"{where}.password: holds no hash; set it with: brokers user passwd {name}"
            ) from None
    try:
        rules = tuple(dict.fromkeys(map(Rule.parse, allow)))
    except UsersError as error:
        raise UsersError(f"{where}.allow: {error}") from None
    return User(name, rules, secret, certificate, share)


def written_users(users: Mapping[str, User]) -> str:
    """The text of a users file; `parse_users` reads it."""

    def quoted(text: str) -> str:
        return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'

    parts = ["# Users and what they may do; written by `brokers user`.\n"]
    for user in users.values():
        name = user.name if user.name.replace("-", "").replace("_", "").isalnum() else quoted(user.name)
        lines = [f"\n[users.{name}]"]
        if user.password is not None:
            lines.append(f"password = {quoted(user.password.written())}")
        if user.certificate:
            lines.append("certificate = true")
        if user.user_share:
            lines.append(f"user_share = {user.user_share}")
        lines.append(f"allow = [{', '.join(quoted(str(rule)) for rule in user.allow)}]")
        parts.append("\n".join(lines) + "\n")
    return "".join(parts)


# Decisions.


Required = Literal["beyond-loopback", "always", "never"]
"""The listeners on which clients must log in."""


class GuardedSession(Protocol):
    """A session, as its guard sees it. `user`: the user; "": not logged in yet."""

    user: str

    def access_changed(self) -> None:
        """The users have changed: end subscriptions and the like that are no longer allowed."""

    def close_for(self, reason: str) -> None:
        """Close the connection: its user was removed, or has another password."""


CheckPassword = Callable[[str, bytes, str, Callable[[bool], None]], None]
"""Takes user, password, the client's `peer`, and a callback that gets whether they fit, at once or later."""


class Access:
    """The users of a process, and the guards of its protocols. `users` is None without a users file.

    `audit` is called for each line of the audit log, `denied` for each request that no rule allows, once for
    each user, action and name. `brokers.access.logins`, which has threads, sets `check_password`.
    """

    def __init__(
        self,
        users: Mapping[str, User] | None = None,
        *,
        audit: Callable[..., None] = lambda **_: None,
        denied: Callable[..., None] = lambda **_: None,
    ) -> None:
        self.users = users
        self.guards: dict[str, Guard] = {}
        self.user_share = USER_SHARE
        self.connections_max = math.inf
        """Of all protocols together; a user has his share of it."""
        self._connections = Shares(self.share_of)
        self.audit = audit
        self.denied = denied
        self.refusals: Counter[tuple[str, str, str]] = Counter()
        """Refused requests by protocol, user (address where nobody logged in) and action, since somebody has
        looked, who clears it."""
        self.check_password: CheckPassword = lambda user, password, peer, done: done(False)

    def guard(self, protocol: str, required: Required = "never", *, exposed: bool = False) -> "Guard":
        """The guard of a protocol; the same one when the protocol starts again.

        `exposed`: other machines reach its listeners.
        """
        found = self.guards.get(protocol)
        if found is None:
            found = self.guards[protocol] = Guard(self, protocol)
        found.required, found.exposed = required, exposed
        return found

    def replace(self, users: Mapping[str, User] | None) -> None:
        """Take other users: the rules hold from the next request and the next delivery on.

        Connections of users who were removed, or whose password or certificate changed, are closed. The
        others stay open.
        """
        before, after = self.users or {}, users or {}
        all_change = (self.users is None) != (users is None)
        self.users = users
        for guard in self.guards.values():
            guard.forget()
        clients = [(guard, client) for guard in self.guards.values() for client in guard.clients]
        for guard, client in clients:
            if client not in guard.clients:
                continue  # it left because another was closed
            if _must_log_in_again(client.user, before, after):
                client.close_for("its user is gone, or has another password")
            elif all_change or before.get(client.user) != after.get(client.user):
                client.access_changed()

    def may_admin(self, user: str, action: str) -> bool:
        """Whether a user may do one of `ADMIN_ACTIONS`."""
        found = (self.users or {}).get(user)
        return found is not None and any(rule.covers(ADMIN, action) for rule in found.allow)

    def share_of(self, user: str) -> int:
        """The percent of every bound that a user may have (`shared.shares.PercentOf`): all where no other is
        known."""
        users = self.users
        if users is None or users.keys() <= {user}:
            return 100
        found = users.get(user)
        if found is None:  # a bridge is the server's own, and so is its owner
            return 100 if "/" in user or user.startswith("(") else self.user_share
        return found.user_share or self.user_share

    def count_connection(self, user: str, before: str) -> bool:
        """Count a connection for a user, and no longer for `before`; "": for nobody. Returns whether the user
        has no more than his share."""
        room = self._connections.fits(user, self.connections_max)
        for name, count in ((before, -1), (user, 1)):
            if name:
                self._connections.add(name, count)
        return room

    def refusal_of_gift(self, giver: str, given: User) -> str:
        """Why `giver` may not make this user; "" if he may: nobody gives what he has not."""
        own = (self.users or {}).get(giver)
        if own is None or not self.may_admin(giver, USERS):
            return f"to make the user {given.name} takes the rule admin:users"
        for rule in given.allow:
            if not any(each.includes(rule) for each in own.allow):
                return f"{giver} cannot give {given.name} the rule {rule}, which {giver} has not"
        return "" if given.user_share <= self.share_of(giver) else f"{giver} has no such user_share"

    def samples(self) -> Iterator[Sample]:
        for guard in self.guards.values():
            yield from guard.samples()


def _must_log_in_again(name: str, before: Mapping[str, User], after: Mapping[str, User]) -> bool:
    """Whether a user is gone, or proves who it is with something else."""
    if name in PSEUDO_USERS or name not in before:
        return False
    was, now = before[name], after.get(name)
    return now is None or (now.password, now.certificate) != (was.password, was.certificate)


def asker_may(guard: "Guard | None", action: str, name: str | bytes) -> bool:
    """Whether who asks for an administrative action may also do this, to another name that it reaches."""
    user = ASKER.get()
    return not user or guard is None or guard.may(user, action, name)


class Guard:
    """Decides what one protocol's clients may do. `clients`: the sessions that are open."""

    def __init__(self, access: Access, protocol: str) -> None:
        self.access = access
        self.protocol = protocol
        self.required: Required = "never"
        self.exposed = False
        self.clients: set[GuardedSession] = set()
        self.denied: Counter[str] = Counter()
        self.logins_failed = 0
        self._decisions: dict[tuple[str, str, str | bytes], bool] = {}
        self._matchers: dict[tuple[str, str], Callable[[str], object]] = {}
        self._told: set[tuple[str, str, str | bytes]] = set()

    def __len__(self) -> int:
        """The number of cached decisions."""
        return len(self._decisions)

    @property
    def has_users(self) -> bool:
        """Whether there is a users file."""
        return self.access.users is not None

    @property
    def asks_login(self) -> bool:
        """Whether clients must log in. With `beyond-loopback` they need not without a users file."""
        if self.required == "beyond-loopback":
            return self.exposed and self.access.users is not None
        return self.required == "always"

    @property
    def opens(self) -> bool:
        """Whether clients without a login may do everything: none is required, and no rules limit them."""
        if self.asks_login:
            return False
        return self.access.users is None or ANONYMOUS not in self.access.users

    def user_of_certificate(self, name: str) -> str:
        """The user whom a certificate of that name logs in; "" for none."""
        user = (self.access.users or {}).get(name)
        return name if user is not None and user.certificate else ""

    def log_in(
        self,
        user: str,
        password: bytes,
        peer: str,
        done: Callable[[bool], None],
        in_turn: Callable[[Callable[[bool], None]], Callable[[bool], None]] = lambda answer: answer,
    ) -> None:
        """Check a login, and call `done` with whether it fits, at once or later. Failures are counted and
        audited.

        `in_turn` wraps the callback, so that it runs when its connection has its turn.
        """

        def answer(fits: bool) -> None:
            if not fits:
                self.login_failed(user, peer)
            done(fits)

        self.access.check_password(user, password, peer, in_turn(answer))

    def login_failed(self, user: str, peer: str) -> None:
        """Count and audit a failed login. The name is shown only if a user has it: it may be a password that
        was typed in the wrong place."""
        self.logins_failed += 1
        known = user if user in (self.access.users or {}) else "(unknown)"
        self.access.audit(
            user=known, peer=peer, protocol=self.protocol, action="login", name="", result="refused"
        )

    def done(self, user: str, peer: str, action: str, name: str | bytes) -> None:
        """Audit an action of a user."""
        shown = text_of(name)
        self.access.audit(
            user=user, peer=peer, protocol=self.protocol, action=action, name=shown, result="done"
        )

    def refuse(self, user: str, action: str, name: str | bytes, peer: str) -> None:
        """Count a refused request, and log the rule that would allow it."""
        self.denied[action] += 1
        refusals = self.access.refusals
        who = (
            self.protocol,
            user if user not in ("", ANONYMOUS) else peer.rpartition(":")[0] or peer,
            action,
        )
        if len(refusals) < REFUSED_MAX or who in refusals:
            refusals[who] += 1
        key = (user, action, name[:DECIDED_NAME_MAX])
        if key not in self._told:
            if len(self._told) >= TOLD_MAX:
                self._told.clear()
            self._told.add(key)
            rule = str(Rule(self.protocol, action, text_of(name)))
            self.access.denied(user=user, peer=peer, protocol=self.protocol, rule=rule)

    def may(self, user: str, action: str, name: str | bytes) -> bool:
        """Whether a rule of the user allows the action. An unknown user, and "", may do nothing."""
        found = self._decisions.get((user, action, name))
        if found is None:
            found = self._keep((user, action, name), bool(self._matcher(user, action)(text_of(name))))
        return found

    def may_all(self, user: str, action: str) -> bool:
        """Whether the user may do the action with every name: a rule has the pattern `*`."""
        return any(not pattern.strip("*") for pattern in self._patterns(user, action))

    def may_see(self, user: str, name: str | bytes) -> bool:
        """Whether the user may do anything with the name; if so, lists show it.

        It is not cached: one listing of 50,000 names would push out all other decisions, and find none of its
        own. A name costs 0.6 us with one pattern, 1.2 with three.
        """
        return bool(self._matcher(user, _SEE)(text_of(name)))

    def may_subscribe(self, user: str, pattern: bytes) -> bool:
        """Whether the user may read every topic that this pub/sub pattern can match."""
        key = (user, _SUBSCRIBE, pattern)
        found = self._decisions.get(key)
        if found is None:
            found = self._keep(key, bool(self._matcher(user, _SUBSCRIBE)(text_of(pattern))))
        return found

    def may_send_datagram(self, topic: bytes) -> bool:
        """Whether datagrams may go to that topic: the rules of the user `udp`, if it has an entry."""
        if UDP not in (self.access.users or ()) or self.may_send_topic(UDP, topic):
            return True
        self.refuse(UDP, WRITE, topic, "udp")
        return False

    def may_send_topic(self, user: str, topic: bytes) -> bool:
        """As `may` with `write`, for a pub/sub topic."""
        return self.may(user, _TOPIC, topic)

    def forget(self) -> None:
        """The users have changed."""
        self._decisions.clear()
        self._matchers.clear()
        self._told.clear()

    def samples(self) -> Iterator[Sample]:
        labels = (("protocol", self.protocol),)
        for action in sorted({*ACTIONS, *self.denied}):
            yield Sample(
                "access_denied_total",
                self.denied[action],
                "Requests refused because no rule of their user's allows them.",
                labels=(*labels, ("action", action)),
            )
        yield Sample(
            "logins_failed_total", self.logins_failed, "Logins with a wrong name or password.", labels=labels
        )

    def _keep(self, key: tuple[str, str, str | bytes], decision: bool) -> bool:
        if len(key[2]) <= DECIDED_NAME_MAX:
            if len(self._decisions) >= DECISIONS_MAX:
                self._decisions.clear()
            self._decisions[key] = decision
        return decision

    def _matcher(self, user: str, action: str) -> Callable[[str], object]:
        found = self._matchers.get((user, action))
        if found is None:
            if action == _SEE:
                found = matcher({each: None for action in ACTIONS for each in self._patterns(user, action)})
            elif action == _TOPIC:
                found = matcher(topic_globs(self._patterns(user, WRITE)))
            elif action == _SUBSCRIBE:
                found = covers_subscription(self._patterns(user, READ))
            else:
                found = matcher(dict.fromkeys(self._patterns(user, action)))
            if user:  # as many series as users and actions
                self._matchers[user, action] = found
        return found

    def _patterns(self, user: str, action: str) -> list[str]:
        found = (self.access.users or {}).get(user)
        if found is None:
            return []
        return [rule.pattern for rule in found.allow if rule.covers(self.protocol, action)]
