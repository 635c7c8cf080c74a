"""A client of a running server and of its API, on its control socket or its admin port. Both speak HTTP.

The control socket is `<data>/control.sock`, of the process that serves a data folder.

A socket's path may have about a hundred bytes, a data folder's any number. A longer path is reached through
a handle of its folder (`/proc/self/fd/<n>/control.sock`), which is always short.
"""

import contextlib
import http.client
import json
import os
import re
import socket
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote_to_bytes, urlencode, urlsplit

import attrs

from brokers.errors import ExitCode, Failure
from shared.errors import UsageError

if TYPE_CHECKING:
    import ssl

NAME = "control.sock"
PATH_BYTES_MAX = 100
"""sun_path has 108 bytes, the final NUL included."""

ROOT = "/api/v1"
PAGE = 1000
"""The most rows that one answer of the API has."""
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


def remove(folder: Path, made: os.stat_result | None) -> None:
    """Remove the socket's name at a clean end. `made`: what the path led to when we listened.

    Where the folder was moved or removed meanwhile, the path may lead to another server's socket.
    """
    with contextlib.suppress(OSError):
        if made is not None and os.path.samestat(os.lstat(folder / NAME), made):
            (folder / NAME).unlink()


def request(folder: Path, method: str, path: str, body: Mapping[str, Any] | None = None) -> Any:
    """Ask the process that serves `folder`, as `AdminClient.request` does."""
    return socket_client(folder).request(method, path, body)


@attrs.frozen
class AdminClient:
    """Asks one running server, on its socket or port: `socket_client` and `port_client` make it. It is a
    `shared.plugin.AdminApi`; parts of names may hold anything. All methods raise as `request` does.

    `name`: what errors call the server. `folder`: the data folder of a server on this machine that is asked
    without a port. `connect`: a connection, not opened yet, each of whose steps takes at most ANSWER_SECONDS.
    `unreachable`: what to say of an error of opening it. `headers`: of each request.
    """

    name: str
    folder: Path | None
    _connect: Callable[[], http.client.HTTPConnection]
    _unreachable: Callable[[OSError], str]
    _headers: Mapping[str, str] = attrs.field(factory=dict, repr=False)  # it has a login

    def path(self, path: Path) -> str:
        return str(path if self.folder is None else path.absolute())

    def get(self, *parts: str, **query: Any) -> Any:
        return self.request("GET", _api_path(parts, query))

    def post(self, *parts: str, dry_run: bool = False, **arguments: Any) -> Any:
        return self.request("POST", _api_path(parts, {"dry_run": 1} if dry_run else {}), arguments)

    def delete(self, *parts: str, dry_run: bool = False) -> Any:
        return self.request("DELETE", _api_path(parts, {"dry_run": 1} if dry_run else {}))

    def rows(self, kind: str, **query: Any) -> Sequence[Mapping[str, Any]]:
        return self.pages(kind, query)[0]

    def pages(
        self, kind: str, query: Mapping[str, Any], limit: int | None = None, after: str | None = None
    ) -> tuple[list[Mapping[str, Any]], str | None]:
        """All rows behind `after`, `limit` at most; and the name behind which there are more, if any."""
        rows: list[Mapping[str, Any]] = []
        while True:
            size = PAGE if limit is None else min(PAGE, limit - len(rows))
            behind = {} if after is None else {"after": after}
            page = self.get(kind, **{**query, "limit": size, **behind})
            rows += page["items"]
            after = page["next"]
            if after is None or (limit is not None and len(rows) >= limit):
                return rows, after

    def _result(self, path: str, response: http.client.HTTPResponse, answer: bytes) -> Any:
        """What the body of an answer says."""
        status, kind = response.status, response.headers.get_content_type()
        is_json = kind in ("application/json", "application/problem+json")
        is_api = path.startswith("/api/")
        try:
            result = json.loads(answer) if is_json else answer.decode()
        except ValueError:
            raise Failure(f"{self.name} answered what cannot be read: it is of another version") from None
        if not is_json and (is_api or kind == "text/html"):
            raise Failure(f"{self.name} is no admin port of brokers: it answered {kind} to {path}")
        if status < 400:
            return result
        problem = result if isinstance(result, dict) else {}
        text = str(problem.get("detail") or f"the server answered {status} {response.reason}")
        code = ExitCode.MISSING if status == 404 and is_api else ExitCode.FAILED
        if status == 401:
            text = f"{self.name} wants a login ({text}): --token-file, or --user and --password-file"
        elif status == 403 and text == "denied":
            text = f"{self.name} refuses that to this user: a rule admin:read or admin:manage allows it"
        elif status == 404 and text == "Not Found":
            text = f"{self.name} has no {path}: it is of another version"
        raise Failure(text, _exit_code(problem.get("exit_code"), code))

    def request(self, method: str, path: str, body: Mapping[str, Any] | bytes | None = None) -> Any:
        """Return its JSON answer, or its text if it is not JSON. `body`: as JSON, or JSON itself.

        Raises Failure: UNAVAILABLE if none is there, MISSING if the API has no such object, FAILED with the
        server's own words if it refuses.
        """
        with self._answer(method, path, body) as (response, _):
            return self._result(path, response, response.read())

    def status(self) -> tuple[Mapping[str, Any], bool]:
        """The server's status, and whether it sees this process at its own address: nothing on the way
        changes addresses, as tunnels and published ports of containers do.
        """
        with self._answer("GET", "/status") as (response, own):
            status = self._result("/status", response, response.read())
        return status, status.get("client") == list(own[:2])

    def read(self, path: str) -> bytes:
        """An answer as it is."""
        with self._answer("GET", path) as (response, _):
            answer = response.read()
            if response.status != 200:
                self._result(path, response, answer)
            return answer

    def lines(self, path: str) -> Iterator[str]:
        """The lines of an answer that goes on, until either side ends it."""
        with self._answer("GET", path) as (response, _):
            if response.status != 200 or response.headers.get_content_type() != "text/event-stream":
                self._result(path, response, response.read())
                raise Failure(f"{self.name} does not follow {path}: it is of another version")
            for line in response:  # there is one every 15 s at least
                yield line.decode(errors="replace").rstrip("\r\n")

    @contextlib.contextmanager
    def _answer(
        self, method: str, path: str, body: Mapping[str, Any] | bytes | None = None
    ) -> Iterator[tuple[http.client.HTTPResponse, Any]]:
        """The answer to a request, to be read within the block; and our address. Raises as `request`, also
        for its reading."""
        headers = dict(self._headers)
        data = None
        if method != "GET":
            # The admin port takes nothing without a body in JSON.
            data = body if isinstance(body, bytes) else json.dumps(body or {}).encode()
            headers["Content-Type"] = "application/json"
        with contextlib.closing(self._connect()) as connection:
            try:
                connection.connect()
            except OSError as error:
                raise Failure(self._unreachable(error), ExitCode.UNAVAILABLE) from None
            if method != "GET":
                connection.sock.settimeout(None)  # a backup takes as long as it takes
            own = connection.sock.getsockname()
            with self._errors():
                with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # it may have answered
                    connection.request(method, path, data, headers)
                yield connection.getresponse(), own

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except TimeoutError:
            raise Failure(f"{self.name} does not answer: nothing in {ANSWER_SECONDS:g} s") from None
        except (OSError, http.client.HTTPException) as error:
            if str(error).startswith("\x15\x03"):  # what TLS says to HTTP
                why = "it speaks TLS: https://"
            elif isinstance(error, http.client.HTTPException) and not isinstance(error, OSError):
                why = "it speaks no HTTP, so it is no admin port"
            else:
                why = str(error) or type(error).__name__
            text = f"{self.name} went away before it answered ({why})"
            raise Failure(text, ExitCode.UNAVAILABLE) from None


def _api_path(parts: Sequence[str], query: Mapping[str, Any]) -> str:
    """Raises Failure for an empty name: without it the path is another's."""
    if not all(parts):
        raise Failure("a name is empty", ExitCode.USAGE)
    path = "/".join((ROOT, *map(path_part, parts)))
    return f"{path}?{urlencode(query)}" if query else path


_DOTS = (".", "..")
_BEFORE_DOTS = b"\xff"
"""A byte that no text has in UTF-8."""


def path_part(name: str) -> str:
    """A part of a name, as a part of a URL's path. Clients and proxies take `.` and `..` out of a path, and
    `%2E` as well: these two are written `%FF.` and `%FF..`.
    """
    return (quote(_BEFORE_DOTS) if name in _DOTS else "") + quote(name, safe="")


def name_in(part: str) -> str:
    """The part of a name that `path_part` wrote. Raises UnicodeDecodeError."""
    name = unquote_to_bytes(part)
    dots = name.removeprefix(_BEFORE_DOTS)
    return (dots if dots in (b".", b"..") else name).decode()


def _exit_code(said: Any, otherwise: ExitCode) -> ExitCode:
    try:
        return ExitCode(said)
    except ValueError:
        return otherwise


def socket_client(folder: Path) -> AdminClient:
    """Asks the process that serves `folder`, over its control socket."""

    def unreachable(error: OSError) -> str:
        if isinstance(error, PermissionError):
            return f"{folder / NAME} belongs to another user"
        if isinstance(error, FileNotFoundError | NotADirectoryError | ConnectionRefusedError):
            return f"no server is running on the data folder {folder} (start one with: brokers serve)"
        return f"the server on {folder} cannot be reached: {error.strerror or error}"

    return AdminClient(f"the server on {folder}", folder, lambda: ControlConnection(folder), unreachable)


def port_client(
    url: str, authorization: str | None = None, tls: "Callable[[], ssl.SSLContext | None] | None" = None
) -> AdminClient:
    """Asks the admin port at `url`, http(s)://HOST:PORT. `authorization`: the header of a login.

    Raises UsageError, whose text holds nothing of the URL: somebody may have written a password into it.
    """
    host, port, secure = address_in(url)
    context = tls() if secure and tls is not None else None
    shown = f"{'https' if secure else 'http'}://{f'[{host}]' if ':' in host else host}:{port}"

    def connect() -> http.client.HTTPConnection:
        if secure:
            return http.client.HTTPSConnection(host, port, timeout=ANSWER_SECONDS, context=context)
        return http.client.HTTPConnection(host, port, timeout=ANSWER_SECONDS)

    def unreachable(error: OSError) -> str:
        why = getattr(error, "verify_message", "")
        if why:
            return f"the certificate of {shown} is not trusted: {why} (--ca names its authority)"
        if secure and type(error).__module__ == "ssl":
            reason = getattr(error, "reason", None) or error
            if reason == "WRONG_VERSION_NUMBER":
                return f"{shown} speaks no TLS: its URL begins with http://"
            return f"{shown} speaks no TLS that can be used here: {reason}"
        text = "no answer" if isinstance(error, TimeoutError) else error.strerror or error
        return f"{shown} cannot be reached: {text}"

    login = {"Authorization": authorization} if authorization else {}
    return AdminClient(shown, None, connect, unreachable, login)


_HOST = re.compile(rb"[A-Za-z0-9._:%-]+")


def address_in(url: str) -> tuple[str, int, bool]:
    """Host, port and whether TLS is spoken, of an admin port's URL. Raises UsageError."""
    form = "http://HOST:PORT or https://HOST:PORT is expected"
    try:
        parts = urlsplit(url)
        port = parts.port
        host = (parts.hostname or "").encode("idna")
    except ValueError:
        raise UsageError("--url", form) from None
    if parts.scheme not in ("http", "https") or not _HOST.fullmatch(host) or port == 0:
        raise UsageError("--url", form)
    if parts.username is not None or parts.query or parts.fragment:
        raise UsageError("--url", f"holds no login: --token-file FILE, or --user; {form}")
    if parts.path not in ("", "/"):
        raise UsageError("--url", form)
    secure = parts.scheme == "https"
    return host.decode(), port or (443 if secure else 80), secure


class ControlConnection(http.client.HTTPConnection):
    """HTTP over the socket in a folder."""

    def __init__(self, folder: Path) -> None:
        super().__init__("brokers", timeout=ANSWER_SECONDS)
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
        # Without /proc (in some containers) there is no short way to say where the folder is.
        if not (os.path.exists(near) and stat.S_ISDIR(os.stat(near).st_mode)):
            raise Failure(
                f"{plain} is too long for a socket ({PATH_BYTES_MAX} bytes here): use a data folder with a "
                "shorter path",
                ExitCode.DATA_FOLDER,
            )
        yield f"{near}/{NAME}"
    finally:
        os.close(handle)
