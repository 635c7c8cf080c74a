"""Exit codes, and errors that say which code ends a command.

The numbers above 2 are those of BSD's sysexits.h, which init systems and shells know.
"""

import difflib
import enum
import errno
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import attrs

from shared.errors import (
    EXIT_DATA_FOLDER,
    EXIT_LOST,
    EXIT_MISSING,
    EXIT_TEMPORARY,
    EXIT_UNAVAILABLE,
    EXIT_USAGE,
    BrokerError,
    ConfigError,
    StoreFormat,
)


class ExitCode(enum.IntEnum):
    OK = 0
    FAILED = 1
    """The work could not be done (a final sync that failed, a refused request)."""
    USAGE = EXIT_USAGE
    ATTENTION = 3
    """The server is ready, and something in it needs a person."""
    MISSING = EXIT_MISSING
    """What the command is about does not exist."""
    UNAVAILABLE = EXIT_UNAVAILABLE
    """The command needs a running server, and none runs."""
    DATA_FOLDER = EXIT_DATA_FOLDER
    """Locked by another process, not writable, or written by a newer version."""
    LOST = EXIT_LOST
    """The connection to a server was lost: what was not answered may or may not have been done."""
    TEMPORARY = EXIT_TEMPORARY
    """Nothing is wrong; the same command may work later."""
    CONFIGURATION = 78
    """A setting, or an address to bind, cannot be used."""
    INTERRUPTED = 130


@attrs.define(eq=False)
class Failure(BrokerError):
    """The end of a command in one clear line; never a traceback."""

    text: str
    code: ExitCode = ExitCode.FAILED

    def __str__(self) -> str:
        return self.text


@contextmanager
def folder_errors(folder: Path) -> Iterator[None]:
    """Turn errors of opening a data folder into a Failure that names the file from the current folder."""
    try:
        with copy_errors(folder, "data folder"):
            yield
    except StoreFormat as error:
        if str(error).startswith(str(folder)):  # a tool names it itself
            raise
        raise StoreFormat(f"{folder}: {error}") from None


@contextmanager
def copy_errors(folder: Path, what: str = "backup") -> Iterator[None]:
    """Do the same for a copy, whose tools do not name the file in errors of the system."""
    try:
        yield
    except OSError as error:
        file = Path(error.filename) if isinstance(error.filename, str) else folder
        # The error names a file relative to the folder.
        where = file if file.is_absolute() or file in (folder, *folder.parents) else folder / file
        # mkdir says of a file in a folder's place that it exists.
        why = os.strerror(errno.ENOTDIR) if isinstance(error, FileExistsError) else error.strerror
        raise Failure(f"{what} {where}: {why}{advice_of(error)}", ExitCode.DATA_FOLDER) from error


def advice_of(error: OSError) -> str:
    """What to do about an error of the system in a data folder, as the end of a line."""
    return f": {_ADVICE[error.errno]}" if error.errno in _ADVICE else ""


SPACE_ADVICE = "free some there and try again; nothing that was acknowledged is lost"
_OWNER_ADVICE = "it must belong to the user who runs this: chown it, or run as its owner"
_FILES_ADVICE = "raise the limit of open files with ulimit -n, or LimitNOFILE= in a systemd unit"
_ADVICE = {
    errno.ENOSPC: SPACE_ADVICE,
    errno.EDQUOT: f"raise the quota, or {SPACE_ADVICE}",
    errno.EFBIG: "files may not grow so far: raise ulimit -f, or LimitFSIZE= in a systemd unit",
    errno.EROFS: ("make the file system writable; the kernel log says whether its disk fails"),
    errno.EIO: "the disk fails; copy the folder to another, and run brokers fsck --repair there",
    errno.EACCES: _OWNER_ADVICE,
    errno.EPERM: _OWNER_ADVICE,
    errno.EMFILE: _FILES_ADVICE,
    errno.ENFILE: "the machine has too many files open: raise fs.file-max with sysctl",
}
"""What to do about an error of the system in a data folder."""


@attrs.frozen
class Problem:
    """One setting that cannot be used; `source` is a file, a variable or a flag."""

    key: str
    text: str
    source: str = ""

    def __str__(self) -> str:
        return f"{self.key}: {self.text}" + (f" ({self.source})" if self.source else "")


@attrs.define(eq=False)
class InvalidSettings(BrokerError):
    """All problems that were found, so that one run shows them all."""

    problems: tuple[Problem, ...]

    def __str__(self) -> str:
        return "\n".join(str(problem) for problem in self.problems)

    @property
    def code(self) -> ExitCode:
        """Return USAGE if only flags are wrong, else CONFIGURATION."""
        flags = all(problem.source.startswith("--") for problem in self.problems)
        return ExitCode.USAGE if flags else ExitCode.CONFIGURATION


def exit_code(error: BaseException) -> int:
    """Return the exit code for an error that ended a command.

    A refused connection means that the server is not running which a command needs, and so does one without
    a common TLS.
    """
    if isinstance(error, Failure | InvalidSettings):
        return error.code
    if isinstance(error, BrokerError) and error.exit_code is not None:
        return error.exit_code
    if isinstance(error, ConfigError):
        return ExitCode.CONFIGURATION
    is_tls = isinstance(error, OSError) and type(error).__module__ == "ssl"  # which takes long to import
    return ExitCode.UNAVAILABLE if is_tls or _is_refused(error) else ExitCode.FAILED


def _is_refused(error: BaseException | None) -> bool:
    """Whether it is a refused connection, also in a group or as the cause of another error."""
    if isinstance(error, BaseExceptionGroup):
        return any(map(_is_refused, error.exceptions))
    return isinstance(error, ConnectionRefusedError) or (error is not None and _is_refused(error.__cause__))


def nearest(name: str, names: Iterable[str]) -> str | None:
    """Return the one of `names` that was probably meant."""
    matches = difflib.get_close_matches(name, list(names), n=1)
    return matches[0] if matches else None


def did_you_mean(name: str, names: Iterable[str], otherwise: str = "") -> str:
    """Return what follows an error's text: the one of `names` that was probably meant, or `otherwise`."""
    meant = nearest(name, names)
    return f"; did you mean {meant}?" if meant else otherwise
