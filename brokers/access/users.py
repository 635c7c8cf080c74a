"""The users file: where it is, how it is read, and how it is replaced."""

import fcntl
import os
import stat
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import structlog

from brokers.errors import advice_of
from brokers.plugins import check_rule
from brokers.settings.config import Config
from shared.access import User, UsersError, parse_users, written_users
from shared.errors import BrokerError, ConfigError
from shared.local_path import read_file, replace_file, require_regular, sync_folder

Tell = Callable[[str], object]
"""Gets what the operator is to know of a file that can be used all the same."""


class NotGiven(BrokerError):
    """Whoever asks may not make, or change, that user."""


def tell_terminal(text: str) -> None:
    print(f"brokers: {text}", file=sys.stderr)


def load(config: Config, tell: Tell = tell_terminal) -> dict[str, User] | None:
    """The users by the settings; None where there is no file, and nobody named one. Raises ConfigError."""
    path = config.users_file
    loaded = read(path, tell)
    if loaded is None and config.access.users_file is not None:
        raise ConfigError("access.users_file", f"{path} is not there; `brokers user add` makes it")
    for user in (loaded or {}).values():
        for rule in user.allow:
            try:
                check_rule(rule)
            except UsersError as error:
                raise ConfigError("access.users_file", f"{path}: users.{user.name}.allow: {error}") from None
    return loaded


def read(path: Path, tell: Tell = tell_terminal) -> dict[str, User] | None:
    """The users of a file; None where it is not there. Raises ConfigError, with no password in it."""
    try:
        require_regular(path)
        mode = path.stat().st_mode
        text = read_file(path).decode()
    except (FileNotFoundError, NotADirectoryError):  # whoever opens a data folder that is none says so
        return None
    except OSError as error:
        raise ConfigError(
            "access.users_file", f"cannot read {path}: {error.strerror}{advice_of(error)}"
        ) from None
    except UnicodeDecodeError as error:
        raise ConfigError("access.users_file", f"{path} is not UTF-8 at byte {error.start}") from None
    if mode & (stat.S_IRWXG | stat.S_IRWXO):
        tell(f"{path} can be read by others on this machine: chmod 600 {path}")
    try:
        return parse_users(text)
    except UsersError as error:
        raise ConfigError("access.users_file", f"{path}: {error}") from None


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Let nobody else change the file until the end of the block. Raises OSError."""
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        yield
    finally:
        os.close(folder)


def replace(path: Path, users: Mapping[str, User]) -> None:
    """Put these users in place of the file's, whole or not at all, and durably; 0600. Raises OSError."""
    replace_file(path, written_users(users).encode(), 0o600)
    sync_folder(path.parent)


def tell_denied(log: structlog.stdlib.BoundLogger, *, user: str, **fields: Any) -> None:
    """Log a request without the right, with the rule that would allow it; or some, by `Gathered`."""
    log.warning(
        "a request was denied: no rule of its user allows it; where it should be allowed, add this one with "
        "brokers user allow",
        user=user or "(not logged in)",
        **fields,
    )
