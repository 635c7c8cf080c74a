"""The users as objects of the API, which are made, given rules and passwords, and removed in the users file.

Whoever does that has the rule `admin:users`, and each rule of the user that is changed: nobody gives or takes
over what he has not. The owner of the server, by its token or its control socket, may do all of it.
"""

import secrets
from collections.abc import Awaitable, Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import attrs

from brokers.access import users
from brokers.access.users import NotGiven
from brokers.plugins import check_rule
from shared.access import (
    ASKER,
    SALT_BYTES,
    USER_NAME,
    Access,
    Rule,
    Secret,
    User,
    UsersError,
    has_rules_alone,
    user_of,
)
from shared.actions import changing
from shared.definitions import Conflict, DefinitionSection, Made, Row, name_of
from shared.errors import ConfigError
from shared.objects import (
    USERS,
    Argument,
    BadArgument,
    BadValue,
    ObjectMissing,
    Objects,
    a_count,
    a_flag,
    a_list,
    a_text,
    key_of,
)
from shared.storage.threads import Threads

PASSWORD_BYTES_MAX = 1024
RULES = Argument("<protocol or *>:<action or *>:<pattern>, or admin:<read, manage, users or *>", "list")


class UserObjects:
    """The users of a server. `path`: of the users file, as the settings are now. `changed` is awaited when
    the file was changed."""

    def __init__(
        self, access: Access, path: Callable[[], Path], changed: Callable[[], Awaitable[None]] | None = None
    ) -> None:
        self._access = access
        self._path = path
        self._changed = changed
        self._in_thread = Threads()
        self.objects = Objects(
            USERS,
            lambda: list(access.users or ()),
            key_of,
            lambda parts: parts[0] if parts[0] in (access.users or ()) else None,
            self._row,
            (self._allow, self._deny, self._passwd, self._delete),
            (self._add,),
            begin="brokers user add ann --allow 'admin:read'",
        )

    def _row(self, name: str) -> Mapping[str, Any] | None:
        user = (self._access.users or {}).get(name)
        if user is None:
            return None
        ways = (("password", user.password is not None), ("certificate", user.certificate))
        return {
            "name": name,
            "login": [way for way, has in ways if has],
            "allow": list(map(str, user.allow)),
            "user_share": self._access.share_of(name),
        }

    @changing(
        "add",
        "Add a user. The first one makes clients of other machines log in.",
        takes={
            "name": Argument("1 to 64 of A-Z, a-z, 0-9 and ._@-", required=True),
            "password": Argument("1 to 1,024 bytes; none: the user does not log in by one", "secret"),
            "certificate": Argument("whether it logs in by a client certificate", "flag"),
            "allow": RULES,
            "user_share": Argument("the percent of each bound that it may have", "number"),
        },
        answers=("added",),
        named_by=("name",),
    )
    async def _add(self, _: Any, arguments: Mapping[str, Any], dry_run: bool) -> Mapping[str, Any]:
        name = a_text(arguments, "name")
        if not (USER_NAME.fullmatch(name) or has_rules_alone(name)):
            raise BadValue("name is 1 to 64 of A-Z, a-z, 0-9 and ._@-")
        if name in (self._access.users or {}):
            raise BadArgument(f"name: there is a user {name} already")
        password = a_text(arguments, "password", "")
        certificate = a_flag(arguments, "certificate")
        if has_rules_alone(name) and (password or certificate):
            raise BadArgument(f"name: nobody can log in as {name}; it has rules alone")
        share = a_count(arguments, "user_share", 0, 0, 100)
        secret = await self._secret(password) if password else None
        user = User(name, _rules(arguments), secret, certificate, share)
        await self._put(None, user, dry_run)
        return {"added": 1}

    @changing(
        "allow", "Give it rules.", takes={"rules": attrs.evolve(RULES, required=True)}, answers=("rules",)
    )
    async def _allow(self, name: str, arguments: Mapping[str, Any], dry_run: bool) -> Mapping[str, Any]:
        user = self._user(name)
        allow = tuple(dict.fromkeys((*user.allow, *_rules(arguments, "rules"))))
        await self._put(user, attrs.evolve(user, allow=allow), dry_run)
        return {"rules": len(allow)}

    @changing(
        "deny",
        "Take rules from it, as they are written in its list.",
        takes={"rules": attrs.evolve(RULES, required=True)},
        answers=("rules",),
    )
    async def _deny(self, name: str, arguments: Mapping[str, Any], dry_run: bool) -> Mapping[str, Any]:
        user, taken = self._user(name), a_list(arguments, "rules")
        for rule in taken:
            if rule not in map(str, user.allow):
                raise BadArgument(f"rules: {name} has no rule {rule}")
        allow = tuple(rule for rule in user.allow if str(rule) not in taken)
        await self._put(user, attrs.evolve(user, allow=allow), dry_run)
        return {"rules": len(allow)}

    @changing(
        "passwd",
        "Give it another password. Connections that are logged in as this user are closed.",
        takes={"password": Argument("1 to 1,024 bytes", "secret", required=True)},
        answers=("changed",),
    )
    async def _passwd(self, name: str, arguments: Mapping[str, Any], dry_run: bool) -> Mapping[str, Any]:
        user = self._user(name)
        if has_rules_alone(name):
            raise BadArgument(f"nobody can log in as {name}")
        secret = await self._secret(a_text(arguments, "password"))
        await self._put(user, attrs.evolve(user, password=secret), dry_run)
        return {"changed": 1}

    @changing(
        "delete",
        "Remove it. Connections that are logged in as this user are closed.",
        answers=("deleted",),
    )
    async def _delete(self, name: str, _: Mapping[str, Any], dry_run: bool) -> Mapping[str, Any]:
        await self._put(self._user(name), None, dry_run)
        return {"deleted": 1}

    def _user(self, name: str) -> User:
        user = (self._access.users or {}).get(name)
        if user is None:
            raise ObjectMissing(f"there is no user {name}")
        return user

    async def _secret(self, password: str) -> Secret:
        data = password.encode()
        if not data or len(data) > PASSWORD_BYTES_MAX or b"\n" in data or b"\0" in data:
            raise BadValue("password has 1 to 1,024 bytes, no line break and no NUL")
        secret: Secret = await self._in_thread(Secret.make, data, secrets.token_bytes(SALT_BYTES))
        return secret

    @property
    def definitions(self) -> DefinitionSection:
        """Users come without secrets: nobody logs in by them before `passwd`."""
        keys = ("name", "allow", "certificate", "password", "user_share")
        return DefinitionSection("users", keys, self._defined, name_of, self._make)

    def _defined(self, _: Any) -> Iterator[Row]:
        for user in list((self._access.users or {}).values()):
            share = {"user_share": user.user_share} if user.user_share else {}
            allow = [str(rule) for rule in user.allow]
            yield {"name": user.name, "allow": allow, "certificate": user.certificate, **share}

    async def _make(self, row: Row, dry_run: bool, _: Any) -> Made:
        name = a_text(row, "name")
        try:
            user = user_of(name, {each: row[each] for each in row if each != "name"})
            for rule in user.allow:
                check_rule(rule)
        except UsersError as error:
            raise BadArgument(str(error)) from None
        if user.password is not None:
            text = f"users.{name}.password: users come without secrets; brokers user passwd sets one"
            raise BadArgument(text)
        existing = (self._access.users or {}).get(name)
        if existing is None:
            await self._put(None, user, dry_run)
        elif (set(existing.allow), existing.certificate) != (set(user.allow), user.certificate):
            raise Conflict(f"{name} has other rules here")
        return Made(new=existing is None)

    async def _put(self, before: User | None, after: User | None, dry_run: bool) -> None:
        """Have a user be so from now on; None: not there. Raises NotGiven and ConfigError."""
        giver = ASKER.get()
        for user in (before, after):
            if giver and user is not None and (refusal := self._access.refusal_of_gift(giver, user)):
                raise NotGiven(refusal)
        if dry_run:
            return
        name = (before or after or User("")).name
        path = self._path()
        try:
            loaded = await self._in_thread(_replace, path, name, before, after)
        except OSError as error:
            raise ConfigError("access.users_file", f"cannot write {path}: {error.strerror}") from None
        self._access.replace(loaded)
        if self._changed is not None:
            await self._changed()


def _replace(path: Path, name: str, before: User | None, after: User | None) -> Mapping[str, User]:
    """Change one user in the file, as it stands there by now. Raises ConfigError, OSError and NotGiven."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with users.locked(path):
        known = users.read(path, lambda _: None) or {}
        if known.get(name) != before:
            raise NotGiven(f"{name} was changed in {path.name} meanwhile: reload, and look again")
        others = {each: user for each, user in known.items() if each != name or after is not None}
        known = {**others, name: after} if after is not None else others
        users.replace(path, known)
    return known


def _rules(arguments: Mapping[str, Any], name: str = "allow") -> tuple[Rule, ...]:
    rules = []
    for text in a_list(arguments, name):
        try:
            rules.append(Rule.parse(text))
            check_rule(rules[-1])
        except UsersError as error:
            raise BadValue(f"{name}: {error}") from None
    return tuple(rules)
