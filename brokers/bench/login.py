"""The login of a load, where a users file is given.

With `BROKERS_ACCESS_USERS_FILE` in the environment a benchmark has servers with those users, and every client
logs in as `BROKERS_USER`, whose password is in `BROKERS_PASSWORD_FILE`. So what logins and rules cost can be
measured, and a machine whose settings ask for logins can be.
"""

import os
from collections.abc import Callable, Mapping
from pathlib import Path

from brokers.errors import ExitCode, Failure
from shared.client.login import NOBODY, Login, login_of

USERS_FILE_VARIABLE = "BROKERS_ACCESS_USERS_FILE"

SAY_FIRST: dict[str, Callable[[Login], tuple[bytes, bytes]]] = {}
"""By protocol, what a connection says before its greeting, and the answer: each benchmark adds its own."""


def login() -> Login:
    """Who the load is; nobody without a users file. Raises Failure."""
    if not os.environ.get(USERS_FILE_VARIABLE):
        return NOBODY
    try:
        found = login_of()
    except ValueError as error:
        raise Failure(str(error), ExitCode.USAGE) from None
    if not found:
        text = f"{USERS_FILE_VARIABLE} is set: set BROKERS_USER and BROKERS_PASSWORD_FILE for the load, too"
        raise Failure(text, ExitCode.USAGE)
    return found


def server_environ() -> Mapping[str, str]:
    """The settings of a server that asks for it. Raises Failure."""
    if not login():
        return {}
    file = Path(os.environ[USERS_FILE_VARIABLE]).expanduser().absolute()
    return {USERS_FILE_VARIABLE: str(file), "BROKERS_ACCESS_REQUIRED": "always"}


def said_first(protocol: str) -> tuple[bytes, bytes]:
    """What each connection says before anything else, and the answer, where its greeting is no login."""
    who, say = login(), SAY_FIRST.get(protocol)
    return say(who) if who and say else (b"", b"")
