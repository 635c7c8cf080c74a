"""Answers commands about users on a data folder that nobody serves, by the actions that the API has."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs
import trio

from brokers.access import users
from brokers.access.objects import UserObjects
from brokers.errors import ExitCode, Failure
from shared.access import Access
from shared.errors import ConfigError
from shared.objects import Action, BadArgument, ObjectMissing, Objects


def ask_users(path: Path, question: Callable[[Any], Any]) -> Any:
    """Return what `question` makes of the answers about a users file. Raises BrokerError."""
    try:
        access = Access(users.read(path))
    except ConfigError as error:
        raise Failure(error.text, ExitCode.CONFIGURATION) from None
    return question(FolderUsers(UserObjects(access, lambda: path).objects))


@attrs.frozen
class FolderUsers:
    """The part of `shared.plugin.AdminApi` that is about users."""

    _users: Objects

    def rows(self, _: str) -> Sequence[Mapping[str, Any]]:
        return [row for name in sorted(self._users.items()) if (row := self._users.row(name)) is not None]

    def post(self, _: str, name: str = "", action: str = "", **arguments: Any) -> Any:
        """Run an action on a user, or make one, whose name is among the `arguments`."""
        if not action:
            (make,) = self._users.makes
            return self._run(make, None, {"name": name, **arguments})
        (named,) = (each for each in self._users.actions if each.name == action)
        return self._run(named, self._users.find([name]), arguments)

    def delete(self, kind: str, name: str) -> Any:
        return self.post(kind, name, "delete")

    def _run(self, action: Action, found: Any, arguments: Mapping[str, Any]) -> Any:
        try:
            return trio.run(action.call, found, arguments, False)
        except BadArgument as error:
            raise Failure(str(error), ExitCode.USAGE) from None
        except ObjectMissing as error:
            raise Failure(str(error), ExitCode.MISSING) from None
