"""The sessions of browsers, which outlive the server: in a file of the data folder that only its owner reads.

The file has no key, but a digest of each, and a digest of what proved who began the session. So whoever
reads it can log in by none of it, and a session ends with the token or the password that began it, also where
either is changed while no server runs.
"""

import hashlib
import json
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import attrs
import structlog
import trio

from shared.local_path import read_file, replace_file, require_regular
from shared.storage.threads import Threads

NAME = "admin.sessions"
SESSION_SECONDS = 12 * 3600.0
"""A session ends after so long without a request."""
GRAIN_SECONDS = 600.0
"""A session's end in the file may be so much too early, so that not each request writes it."""


@attrs.define(eq=False)
class BrowserSession:
    """A session of a browser (`shared.access.GuardedSession`). It is good from `address` alone: its cookie
    goes to servers on other ports of this host, too. `until`: Unix seconds; `proof`: of what began it."""

    user: str
    address: str
    until: float
    proof: str
    end: Callable[[], None] = attrs.field(repr=False)

    def access_changed(self) -> None:
        """Nothing to do: the user's rights are looked up with each request."""

    def close_for(self, reason: str) -> None:
        self.end()


def digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


class SessionFile:
    """The file; `run` writes what changes."""

    def __init__(self, path: Path, log: structlog.stdlib.BoundLogger) -> None:
        self._path = path
        self._log = log
        self._changed = trio.Event()
        self._in_thread = Threads()

    def load(self) -> Iterator[tuple[str, Mapping[str, str], float]]:
        """Yield the sessions of the file: key, texts, and until when. What cannot be read is nobody's."""
        try:
            require_regular(self._path)
            rows = json.loads(read_file(self._path))
            for key, row in rows.items():
                texts = {name: str(row[name]) for name in ("user", "address", "proof")}
                yield str(key), texts, min(float(row["until"]), time.time() + SESSION_SECONDS)
        except FileNotFoundError:
            return
        except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            self._log.warning(
                "the sessions of browsers cannot be read: who was logged in to the page logs in again",
                path=str(self._path),
                reason=str(error),
            )

    def changed(self) -> None:
        self._changed.set()

    async def run(self, sessions: Mapping[str, BrowserSession]) -> None:
        """Write `sessions` whenever they have changed, and at the end, until cancelled."""
        try:
            while True:
                await self._changed.wait()
                self._changed = trio.Event()
                await self._in_thread(self._write, _rows(sessions))
        finally:
            if self._changed.is_set():
                self._write(_rows(sessions))

    def _write(self, rows: Mapping[str, object]) -> None:
        try:
            replace_file(self._path, json.dumps(rows).encode(), 0o600)
        except OSError as error:
            self._log.warning(
                "the sessions of browsers cannot be written: a restart logs them out; look at the disk",
                path=str(self._path),
                reason=error.strerror,
            )


def _rows(sessions: Mapping[str, BrowserSession]) -> Mapping[str, object]:
    return {
        key: {"user": each.user, "address": each.address, "until": each.until, "proof": each.proof}
        for key, each in sessions.items()
    }
