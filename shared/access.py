"""Who may do what: rules, users, and the one decision that every protocol asks for.

A rule is `<protocol or *>:<action or *>:<pattern>`, its pattern a glob over the name (`*` any run of
characters, `?` one). What one of a user's rules allows is allowed; nothing else is. `admin:read`,
`admin:manage` and `admin:*` have no pattern, and no `*` in a rule's first field stands for `admin`.

`Access` holds the users of the process; `Access.guard` makes the `Guard` that one protocol asks. Without a
users file there is nothing to ask: a session then has no guard at all. Decisions are kept by (user, action,
name), and thrown away when the users change.

There is no I/O, clock or randomness in here: callers bring the time, random bytes and the file's text.
"""

import fnmatch
import hashlib
import hmac
import re
import tomllib
from base64 import b64decode, b64encode
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, Protocol

import attrs

from shared.errors import BrokerError, printable
from shared.metrics import Sample

READ, WRITE, MANAGE = "read", "write", "manage"
ACTIONS = (READ, WRITE, MANAGE)
ADMIN = "admin"
ADMIN_ACTIONS = (READ, MANAGE)

ANONYMOUS = "anonymous"
"""The user of a client that has not logged in, where no login is asked for."""
UDP = "udp"
"""The user of all datagrams, whose senders cannot log in."""
PSEUDO_USERS = (ANONYMOUS, UDP)

CLIENTS_AT_ONCE = 50
"""Clients whose rights are checked again in one step after a change; 25 us each, with 5 subscriptions."""
DECISIONS_MAX = 16 * 1024
"""Decisions kept for one protocol: some 8 MiB. With one more all are forgotten. Longer names are not kept."""
DECIDED_NAME_MAX = 256
TOLD_MAX = 1024
"""Denials of one protocol that were logged. More of the same user, action and name are only counted."""
TOPIC_BYTES_MAX = 50
"""Of a pub/sub topic. No longer one exists, so none is looked for that a rule leaves out."""
STEPS_MAX = 4_000
"""Steps of deciding on one subscription, some 4 ms. One that needs more is refused, as in doubt."""

USER_NAME = re.compile(r"[A-Za-z0-9._@-]{1,64}")
BRIDGE_USER = re.compile(r"bridge/[A-Za-z0-9._-]{1,64}")
"""The user that a bridge acts as. Nobody logs in as it. Without an entry it may do what its ends need."""
_WORD = re.compile(r"[a-z][a-z0-9_-]{0,31}")

SCRYPT_N, SCRYPT_R, SCRYPT_P = 2**14, 8, 1
SALT_BYTES = 16
_KEY_BYTES = 32


class UsersError(BrokerError):
    """A users file that cannot be used; the text holds no password."""


# Rules.


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
                raise UsersError(f"rule {_shown(text)}: of admin there are admin:read, admin:manage, admin:*")
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
        """Whether it speaks of that action of that protocol at all."""
        if self.protocol != protocol and (self.protocol != "*" or protocol == ADMIN):
            return False
        return self.action in ("*", action)


def matcher(patterns: Iterable[str]) -> Callable[[str], object]:
    """A function of a name that is truthy where one of the globs matches all of it.

    `fnmatch` makes expressions that do not backtrack over more than one `*`. So a name costs its length for
    each glob, and no more.
    """
    parts = [fnmatch.translate(pattern.replace("[", "[[]")) for pattern in patterns]
    if not parts:
        return lambda _: None
    # Each has named groups of its own, which would clash in one expression.
    compiled = [re.compile(part).match for part in parts]
    if len(compiled) == 1:
        return compiled[0]
    return lambda name: any(match(name) for match in compiled)


def text_of(name: str | bytes) -> str:
    """A name as rules see it. Bytes that are not UTF-8 are a character each."""
    return name if isinstance(name, str) else name.decode("utf-8", "surrogateescape")


def _shown(text: str) -> str:
    return printable(text.encode("utf-8", "surrogatepass"))


# Topics and the patterns of subscriptions.


def topic_globs(globs: Iterable[str]) -> list[str]:
    """The globs, and `home` for each `home/*`: a subscription to `home/*` matches `home`, too."""
    found: dict[str, None] = {}
    for glob in globs:
        found[glob] = None
        if glob.endswith("/*"):
            found[glob[:-2]] = None
    return list(found)


def covers_subscription(
    globs: Sequence[str], pattern: str, *, topic_bytes_max: int = TOPIC_BYTES_MAX, steps_max: int = STEPS_MAX
) -> bool | None:
    """Whether every topic that the subscription `pattern` can match is matched by one of `globs`.

    None: in doubt, because the answer takes more than `steps_max` steps. `pattern` has levels split at `/`;
    `*` as a level is zero or more of them, `+` exactly one.

    Both sides are automata over a topic with a `/` behind it. The search goes through pairs of their states,
    shortest topics first. It ends at a pair where the subscription matches and no glob does.
    """
    wanted, allowed = _Levels(pattern), _Globs(globs)
    letters = {*pattern, *"".join(globs), "/"}
    other = next(chr(code) for code in range(1, 0x110000) if chr(code) not in letters)
    alphabet = [(letter, len(letter.encode("utf-8", "surrogateescape"))) for letter in sorted(letters)]
    alphabet.append((other, 1))
    start = (wanted.start, allowed.start)
    seen = {start}
    by_size: list[list[tuple[int, int]]] = [[] for _ in range(topic_bytes_max + 1)]
    by_size[0].append(start)
    steps = 0
    for size, pairs in enumerate(by_size):
        for state, found in pairs:  # grows by none of the same size: every letter has a byte
            if wanted.ends(state) and not allowed.ends(found):
                return False
            for letter, width in alphabet:
                if size + width > topic_bytes_max:
                    continue
                steps += 1
                after = wanted.step(state, letter)
                if not after:
                    continue
                pair = (after, allowed.step(found, letter))
                if pair not in seen and not allowed.is_all(pair[1]):
                    seen.add(pair)
                    by_size[size + width].append(pair)
            if steps > steps_max:
                return None
    return True


class _Levels:
    """A subscription's pattern as an automaton; a state is a set of positions, as bits."""

    def __init__(self, pattern: str) -> None:
        # By position, what moves on (None: anything but `/`), and to where.
        moves: list[list[tuple[str | None, int]]] = []
        skips: list[int] = []  # from these one gets two on for nothing
        for level in pattern.split("/"):
            at = len(moves)
            if level == "*":  # before a level, and inside of one: ([^/]*/)*
                moves += [[(None, at + 1), ("/", at)], [(None, at + 1), ("/", at)]]
                skips.append(at)
            elif level == "+":  # [^/]*/
                moves.append([(None, at), ("/", at + 1)])
            else:
                moves += [[(letter, at + n + 1)] for n, letter in enumerate(level + "/")]
        self._moves = moves
        self._end = 1 << len(moves)
        self._closed = [1 << n for n in range(len(moves) + 1)]
        for before in reversed(skips):
            self._closed[before] |= self._closed[before + 2]
        self.start = self._closed[0]
        self._known: dict[tuple[int, str], int] = {}

    def step(self, state: int, letter: str) -> int:
        found = self._known.get((state, letter))
        if found is None:
            found = 0
            for n, moves in enumerate(self._moves):
                if state >> n & 1:
                    for move, target in moves:
                        if letter != "/" if move is None else letter == move:
                            found |= self._closed[target]
            self._known[state, letter] = found
        return found

    def ends(self, state: int) -> bool:
        """Whether the topic that led here is matched."""
        return bool(self.step(state, "/") & self._end)


class _Globs:
    """Globs as one automaton over the topic; a state is a set of positions, as bits."""

    def __init__(self, globs: Sequence[str]) -> None:
        moves: list[str] = []
        self.start = self._ends = self._all = 0
        for glob in globs:
            at = len(moves)
            moves += [*re.sub(r"\*+", "*", glob), ""]
            self.start |= 1 << at
            self._ends |= 1 << len(moves) - 1
            if moves[-2:-1] == ["*"] and len(moves) - at > 1:
                self._all |= 1 << len(moves) - 2
        self._at: dict[str, int] = {}  # by letter, the positions that it moves on
        for n, move in enumerate(moves):
            self._at[move] = self._at.get(move, 0) | 1 << n
        self._any, self._stars = self._at.get("?", 0), self._at.get("*", 0)
        self._at.update({"?": 0, "*": 0, "": 0})  # as letters they are matched by wildcards alone
        self.start = self._close(self.start)

    def step(self, state: int, letter: str) -> int:
        moved = (state & (self._at.get(letter, 0) | self._any)) << 1
        return self._close(moved | state & self._stars)

    def ends(self, state: int) -> bool:
        return bool(state & self._ends)

    def is_all(self, state: int) -> bool:
        """Whatever follows is matched: a glob stands at its last `*`."""
        return bool(state & self._all)

    def _close(self, state: int) -> int:
        """Add the states behind each `*` that is reached: it matches nothing, too."""
        return state | (state & self._stars) << 1


# Passwords.


@attrs.frozen
class Secret:
    """A password's hash, as the users file has it: `scrypt$<n>$<r>$<p>$<salt>$<key>`, base64."""

    salt: bytes = attrs.field(repr=False)
    key: bytes = attrs.field(repr=False)

    @classmethod
    def make(cls, password: bytes, salt: bytes) -> "Secret":
        """Takes some 50 ms of processor, and 16 MiB."""
        return cls(salt, _scrypt(password, salt))

    @classmethod
    def parse(cls, text: str) -> "Secret":
        """Raises ValueError, without the text: it may be a clear password."""
        name, _, rest = text.partition("$")
        fields = rest.split("$")
        head = [str(SCRYPT_N), str(SCRYPT_R), str(SCRYPT_P)]
        if name != "scrypt" or fields[:3] != head or len(fields) != 5:
            raise ValueError("is no hash that `brokers user passwd` made")
        salt, key = (b64decode(field, validate=True) for field in fields[3:])
        if len(salt) != SALT_BYTES or len(key) != _KEY_BYTES:
            raise ValueError("is a hash of another size")
        return cls(salt, key)

    def written(self) -> str:
        salt, key = (b64encode(each).decode() for each in (self.salt, self.key))
        return f"scrypt${SCRYPT_N}${SCRYPT_R}${SCRYPT_P}${salt}${key}"

    def fits(self, password: bytes) -> bool:
        """Whether a password is this one. Takes as long as `make`; may be called in a thread."""
        return hmac.compare_digest(_scrypt(password, self.salt), self.key)


NOBODYS = Secret(bytes(SALT_BYTES), bytes(_KEY_BYTES))
"""The password of an unknown user is compared with this, which takes as long as for a known one. No password
has this key."""


def _scrypt(password: bytes, salt: bytes) -> bytes:
    return hashlib.scrypt(password, salt=salt, n=SCRYPT_N, r=SCRYPT_R, p=SCRYPT_P, dklen=_KEY_BYTES)


# Users.


@attrs.frozen
class User:
    """One table of the users file."""

    name: str
    allow: tuple[Rule, ...] = ()
    password: Secret | None = None
    certificate: bool = False


def parse_users(text: str) -> dict[str, User]:
    """The users of a file, by name. Raises UsersError, with no password in it."""
    try:
        tables = tomllib.loads(text)
    except ValueError as error:
        # tomllib quotes a character at most, and never a value.
        raise UsersError(f"is not TOML: {error}") from None
    unknown = set(tables) - {"users"}
    users = tables.get("users", {})
    if unknown or not isinstance(users, dict):
        raise UsersError(f"{_shown(min(unknown, default='users'))}: write a table [users.NAME] for each user")
    return {name: user_of(name, table) for name, table in users.items()}


def user_of(name: str, table: Any) -> User:
    """One user, of his table. Raises UsersError, with no password in it."""
    bridge = BRIDGE_USER.fullmatch(name) is not None
    where = f"users.{name}" if USER_NAME.fullmatch(name) else f"users.{_shown(name)}"
    if not (USER_NAME.fullmatch(name) or bridge):
        raise UsersError(f"{where}: a name is 1 to 64 of A-Z, a-z, 0-9 and ._@-")
    if not isinstance(table, dict):
        raise UsersError(f"{where}: write a table [users.NAME] for each user")
    unknown = sorted(set(table) - {"password", "certificate", "allow"})
    if unknown:
        raise UsersError(f"{where}.{_shown(unknown[0])}: there are password, certificate and allow")
    certificate, allow = table.get("certificate", False), table.get("allow", [])
    if not isinstance(certificate, bool):
        raise UsersError(f"{where}.certificate: true or false")
    if not isinstance(allow, list) or not all(isinstance(each, str) for each in allow):
        raise UsersError(f"{where}.allow: a list of rules, each a text")
    secret = None
    if "password" in table:
        try:
            secret = Secret.parse(table["password"])
        except (ValueError, AttributeError):
            raise UsersError(
                f"{where}.password: holds no hash; set it with: brokers user passwd {name}"
            ) from None
    if (name in PSEUDO_USERS or bridge) and (secret or certificate):
        raise UsersError(f"{where}: nobody can log in as {name}; it has rules alone")
    try:
        rules = tuple(dict.fromkeys(map(Rule.parse, allow)))
    except UsersError as error:
        raise UsersError(f"{where}.allow: {error}") from None
    return User(name, rules, secret, certificate)


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
        lines.append(f"allow = [{', '.join(quoted(str(rule)) for rule in user.allow)}]")
        parts.append("\n".join(lines) + "\n")
    return "".join(parts)


# Decisions.


Required = Literal["beyond-loopback", "always", "never"]
"""On which listeners clients have to log in."""


class Client(Protocol):
    """A session, as its guard sees it. `user`: whose it is; "": it has to log in first."""

    user: str

    def access_changed(self) -> None:
        """The users have changed: end what is no longer allowed."""

    def close_for(self, reason: str) -> None:
        """Close the connection: its user is gone, or has another password."""


CheckPassword = Callable[[str, bytes, str, Callable[[bool], None]], None]
"""Gets user, password, the client's `peer`, and what to call with whether they fit, at once or later."""


def _no_logins(user: str, password: bytes, peer: str, done: Callable[[bool], None]) -> None:
    done(False)


def _nobody_listens(**audit: str) -> None:
    pass


class Access:
    """The users of a process, and the guards of its protocols. `users` is None where there is no file.

    `audit` is called for each line of the audit log, `denied` for each request that no rule allows, once for
    each user, action and name. `shared.net.logins`, which has threads, sets `check_password`.
    """

    def __init__(
        self,
        users: Mapping[str, User] | None = None,
        *,
        audit: Callable[..., None] = _nobody_listens,
        denied: Callable[..., None] = _nobody_listens,
    ) -> None:
        self.users = users
        self.guards: dict[str, Guard] = {}
        self.audit = audit
        self.denied = denied
        self.check_password: CheckPassword = _no_logins

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
        """`replacing`, all at once."""
        for _ in self.replacing(users):
            pass

    def replacing(self, users: Mapping[str, User] | None) -> Iterator[None]:
        """Take other users: every decision after the first step is made by them.

        Connections of users who are gone, or whose password or certificate has changed, are closed. The
        others stay, and what they may no longer do ends. Each step takes a millisecond or two.
        """
        before, after = self.users or {}, users or {}
        gone = {
            name
            for name, user in before.items()
            if name not in after
            or (after[name].password, after[name].certificate) != (user.password, user.certificate)
        }
        self.users = users
        for guard in self.guards.values():
            guard.forget()
        # Chosen before the first step: who logs in between two steps has the new password.
        gone -= set(PSEUDO_USERS)
        clients = [
            (guard, client, client.user in gone) for guard in self.guards.values() for client in guard.clients
        ]
        for number, (guard, client, ends) in enumerate(clients):
            if number % CLIENTS_AT_ONCE == 0:
                yield
            if client not in guard.clients:  # it left meanwhile
                continue
            if ends:
                client.close_for("its user is gone, or has another password")
            else:
                client.access_changed()

    def may_admin(self, user: str, action: str) -> bool:
        """Whether a user may do `read` or `manage` of the administration."""
        found = (self.users or {}).get(user)
        return found is not None and any(rule.covers(ADMIN, action) for rule in found.allow)

    def samples(self) -> Iterator[Sample]:
        for guard in self.guards.values():
            yield from guard.samples()


class Guard:
    """What one protocol asks about its clients. `clients`: its sessions, as they come and go."""

    def __init__(self, access: Access, protocol: str) -> None:
        self.access = access
        self.protocol = protocol
        self.required: Required = "never"
        self.exposed = False
        self.clients: set[Client] = set()
        self.denied: Counter[str] = Counter()
        self.logins_failed = 0
        self.in_doubt = 0
        """Subscriptions refused because to decide on them would take too long."""
        self._decisions: dict[tuple[str, str, str | bytes], bool] = {}
        self._matchers: dict[tuple[str, str], Callable[[str], object]] = {}
        self._told: set[tuple[str, str, str | bytes]] = set()

    def __len__(self) -> int:
        """How many decisions are kept."""
        return len(self._decisions)

    @property
    def has_users(self) -> bool:
        """There is a users file."""
        return self.access.users is not None

    @property
    def asks_login(self) -> bool:
        """Clients have to log in. With `beyond-loopback` they do not where there is no users file."""
        if self.required == "beyond-loopback":
            return self.exposed and self.access.users is not None
        return self.required == "always"

    @property
    def opens(self) -> bool:
        """Clients that have not logged in may do everything: none has to, and no entry says less."""
        if self.asks_login:
            return False
        return self.access.users is None or ANONYMOUS not in self.access.users

    def user_of_certificate(self, name: str) -> str:
        """The user who is logged in by a certificate of that name; "" for nobody."""
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
        """Call `done` with whether they fit: now, or when that is known. A failure is counted and audited.

        `in_turn` wraps the answer, so that it comes when its connection has its turn.
        """

        def answer(fits: bool) -> None:
            if not fits:
                self.login_failed(user, peer)
            done(fits)

        self.access.check_password(user, password, peer, in_turn(answer))

    def login_failed(self, user: str, peer: str) -> None:
        """Count and audit it. What was given as the name may be a password typed in the wrong place: it is
        shown where it is a user's."""
        self.logins_failed += 1
        known = user if user in (self.access.users or {}) else "(unknown)"
        self.access.audit(
            user=known, peer=peer, protocol=self.protocol, action="login", name="", result="refused"
        )

    def done(self, user: str, peer: str, action: str, name: str | bytes, result: str = "done") -> None:
        """Audit what a user has done."""
        shown = text_of(name)
        self.access.audit(
            user=user, peer=peer, protocol=self.protocol, action=action, name=shown, result=result
        )

    def refuse(self, user: str, action: str, name: str | bytes, peer: str) -> None:
        """Count a request that was refused, and tell the rule that would allow it."""
        self.denied[action] += 1
        key = (user, action, name[:DECIDED_NAME_MAX])
        if key not in self._told:
            if len(self._told) >= TOLD_MAX:
                self._told.clear()
            self._told.add(key)
            rule = str(Rule(self.protocol, action, text_of(name)))
            self.access.denied(user=user, peer=peer, protocol=self.protocol, rule=rule)

    def may(self, user: str, action: str, name: str | bytes) -> bool:
        """Whether one rule of the user's allows it. An unknown user, "" too, may do nothing."""
        found = self._decisions.get((user, action, name))
        return self._decide(user, action, name) if found is None else found

    def may_all(self, user: str, action: str) -> bool:
        """Whether the user may do it with every name that there is or will be: a rule's pattern is `*`."""
        return any(not pattern.strip("*") for pattern in self._patterns(user, action))

    def may_see(self, user: str, name: str | bytes) -> bool:
        """Whether the user may do anything at all with it: lists show it then."""
        return any(self.may(user, action, name) for action in ACTIONS)

    def may_subscribe(self, user: str, pattern: bytes) -> bool:
        """Whether the user may read every topic that this pub/sub pattern can match."""
        key = (user, "subscribe", pattern)
        found = self._decisions.get(key)
        if found is None:
            try:
                covered = covers_subscription(self._globs(user, READ), pattern.decode())
            except UnicodeDecodeError:
                covered = None
            self.in_doubt += covered is None
            found = self._keep(key, bool(covered))
        return found

    def may_send_datagram(self, topic: bytes) -> bool:
        """Whether who cannot log in may send to that topic: by the entry `udp`, where there is one."""
        if UDP not in (self.access.users or ()) or self.may_send_topic(UDP, topic):
            return True
        self.refuse(UDP, WRITE, topic, "udp")
        return False

    def may_send_topic(self, user: str, topic: bytes) -> bool:
        """As `may` with `write`, for a pub/sub topic."""
        key = (user, "topic", topic)
        found = self._decisions.get(key)
        if found is None:
            match = self._matcher(user, "topic", lambda: topic_globs(self._patterns(user, WRITE)))
            found = self._keep(key, bool(match(text_of(topic))))
        return found

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
        yield Sample(
            "access_in_doubt_total",
            self.in_doubt,
            "Subscriptions refused because to decide on them would take too long.",
            labels=labels,
        )

    def _decide(self, user: str, action: str, name: str | bytes) -> bool:
        match = self._matcher(user, action, lambda: self._patterns(user, action))
        return self._keep((user, action, name), bool(match(text_of(name))))

    def _keep(self, key: tuple[str, str, str | bytes], decision: bool) -> bool:
        if len(key[2]) <= DECIDED_NAME_MAX:
            if len(self._decisions) >= DECISIONS_MAX:
                self._decisions.clear()
            self._decisions[key] = decision
        return decision

    def _matcher(
        self, user: str, kind: str, patterns: Callable[[], Iterable[str]]
    ) -> Callable[[str], object]:
        found = self._matchers.get((user, kind))
        if found is None:
            found = matcher(patterns())
            if user:  # there are as many as users and actions
                self._matchers[user, kind] = found
        return found

    def _patterns(self, user: str, action: str) -> list[str]:
        found = (self.access.users or {}).get(user)
        if found is None:
            return []
        return [rule.pattern for rule in found.allow if rule.covers(self.protocol, action)]

    def _globs(self, user: str, action: str) -> list[str]:
        return topic_globs(self._patterns(user, action))
