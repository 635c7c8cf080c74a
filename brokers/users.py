"""The users file: where it is, how it is read, and how it is replaced."""

import os
import stat
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import structlog
import trio

from brokers.config import Config
from brokers.reloading import Apply
from shared.access import Access, User, UsersError, parse_users, written_users
from shared.errors import ConfigError
from shared.storage.background import Threads


def load(config: Config) -> dict[str, User] | None:
    """The users by the settings; None where there is no file, and nobody named one. Raises ConfigError."""
    path = config.users_file
    found = read(path)
    if found is None and config.access.users_file is not None:
        raise ConfigError("access.users_file", f"{path} is not there; `brokers user add` makes it")
    return found


class UsersReload:
    """The users file as a part of every reload (`brokers.reloading.Reloadable`)."""

    def __init__(self, access: Access) -> None:
        self._access = access
        self._in_thread = Threads()

    async def prepare(self, config: Config) -> Apply:
        found = await self._in_thread(load, config)
        if found is None and self._access.users is not None:
            raise ConfigError("access.users_file", f"{config.users_file} is gone; its users stay")

        async def apply() -> None:
            for _ in self._access.replacing(found):
                await trio.sleep(0)  # noqa: ASYNC115 - trio.lowlevel is the drivers' alone

        return apply

    def watched(self, config: Config) -> Iterator[Path]:
        """None: rules are taken up when somebody says so."""
        return iter(())


def read(path: Path) -> dict[str, User] | None:
    """The users of a file; None where it is not there. Raises ConfigError, with no password in it."""
    try:
        with path.open("rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            text = file.read().decode()
    except (FileNotFoundError, NotADirectoryError):  # whoever opens a data folder that is none says so
        return None
    except OSError as error:
        raise ConfigError("access.users_file", f"cannot read {path}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise ConfigError("access.users_file", f"{path} is not UTF-8 at byte {error.start}") from None
    if mode & (stat.S_IRWXG | stat.S_IRWXO):
        print(f"brokers: {path} can be read by others on this machine: chmod 600 {path}", file=sys.stderr)
    try:
        return parse_users(text)
    except UsersError as error:
        raise ConfigError("access.users_file", f"{path}: {error}") from None


def replace(path: Path, users: Mapping[str, User]) -> None:
    """Put these users in place of those of the file, whole or not at all; 0600. Raises OSError."""
    near = path.with_name(f".{path.name}.{os.getpid()}")
    handle = os.open(near, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
    try:
        with open(handle, "w") as file:
            file.write(written_users(users))
            file.flush()
            os.fsync(file.fileno())
        near.replace(path)
    except BaseException:
        near.unlink(missing_ok=True)
        raise
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def tell_denied(log: structlog.stdlib.BoundLogger, *, user: str, peer: str, protocol: str, rule: str) -> None:
    """Log a request without the right, with the rule that would allow it."""
    log.warning(
        "a request was denied: no rule of its user allows it; where it should be allowed, add this one with "
        "brokers user allow",
        protocol=protocol,
        user=user or "(not logged in)",
        peer=peer,
        rule=rule,
    )
