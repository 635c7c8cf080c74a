"""The control socket, `<data>/control.sock`: HTTP to the process that serves a data folder.

A socket's path may have about a hundred bytes, a data folder's any number. A longer path is reached through
a handle of its folder (`/proc/self/fd/<n>/control.sock`), which is always short.
"""

import contextlib
import http.client
import json
import os
import socket
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from brokers.errors import ExitCode, Refusal

NAME = "control.sock"
PATH_BYTES_MAX = 100
"""sun_path has 108 bytes on Linux and 104 on macOS and the BSDs, the final NUL included."""

ANSWER_SECONDS = 30.0
"""For requests that only look. A server whose loop hangs must not hang whoever watches it."""


def listen(folder: Path) -> socket.socket:
    """Open the listening socket, for its owner alone (0600). One that a killed process left is replaced.

    The caller holds the folder's lock, so nobody listens on the old one. Raises OSError.
    """
    (folder / NAME).unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with contextlib.suppress(OSError):  # Linux takes the file's mode from here, others from chmod below
            os.fchmod(listener.fileno(), 0o600)
        with address_of(folder) as address:
            listener.bind(address)
        os.chmod(folder / NAME, 0o600)
        listener.listen(16)
        listener.setblocking(False)
    except BaseException:
        listener.close()
        raise
    return listener


def remove(folder: Path) -> None:
    """Remove the socket's name at a clean end."""
    with contextlib.suppress(OSError):
        (folder / NAME).unlink()


def request(folder: Path, method: str, path: str, body: Mapping[str, Any] | None = None) -> Any:
    """Ask the process that serves `folder`. Returns its JSON answer, or its text if it is not JSON.

    Raises Refusal: UNAVAILABLE if none serves it, FAILED with the server's own words if it refuses.
    """
    seconds = ANSWER_SECONDS if method == "GET" else None  # a backup takes as long as it takes
    with contextlib.closing(ControlConnection(folder, seconds)) as connection:
        try:
            data = None if body is None else json.dumps(body).encode()
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # it may have answered
                connection.request(method, path, data, {"Content-Type": "application/json"} if data else {})
            response = connection.getresponse()
            answer = response.read()
        except (FileNotFoundError, NotADirectoryError, ConnectionRefusedError):
            raise Refusal(
                f"no server is running on the data folder {folder} (start one with: brokers serve)",
                ExitCode.UNAVAILABLE,
            ) from None
        except TimeoutError:
            raise Refusal(f"the server on {folder} does not answer: nothing in {seconds:g} s") from None
        except PermissionError:
            raise Refusal(f"{folder / NAME} belongs to another user", ExitCode.UNAVAILABLE) from None
        except (OSError, http.client.HTTPException) as error:
            raise Refusal(
                f"the server on {folder} went away before it answered ({error or type(error).__name__})",
                ExitCode.UNAVAILABLE,
            ) from None
    is_json = response.headers.get_content_type() in ("application/json", "application/problem+json")
    result = json.loads(answer) if is_json else answer.decode()
    if response.status >= 400:
        found = result if isinstance(result, dict) else {}
        usual = f"the server answered {response.status} {response.reason}"
        said = found.get("error") or found.get("detail") or usual
        raise Refusal(said, ExitCode(found.get("exit_code", ExitCode.FAILED)))
    return result


class ControlConnection(http.client.HTTPConnection):
    """HTTP over the socket in a folder; `seconds` for each step of it, or None."""

    def __init__(self, folder: Path, seconds: float | None) -> None:
        super().__init__("brokers", timeout=seconds)
        self._folder = folder

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        with address_of(self._folder) as address:
            self.sock.connect(address)


@contextlib.contextmanager
def address_of(folder: Path) -> Iterator[str]:
    """Give a path of the socket in `folder` that fits a socket address."""
    plain = str(folder / NAME)
    if len(os.fsencode(plain)) <= PATH_BYTES_MAX:
        yield plain
        return
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        near = f"/proc/self/fd/{handle}"
        # Without /proc (macOS, some containers) there is no short way to say where the folder is.
        if not (os.path.exists(near) and stat.S_ISDIR(os.stat(near).st_mode)):
            raise Refusal(
                f"{plain} is too long for a socket ({PATH_BYTES_MAX} bytes here): use a data folder with a "
                "shorter path",
                ExitCode.DATA_FOLDER,
            )
        yield f"{near}/{NAME}"
    finally:
        os.close(handle)
