"""Access to the admin port: host name, origin, login, and rights.

The checks run in this order, before any of the request's body is read:

1. `Host` is an address or a name of this port (421). A page whose own name resolves to this server (DNS
rebinding) still sends its own name. 2. No page of another origin asks (403): `Origin` is ours or absent,
`Sec-Fetch-Site` says no other site. Only a link may lead here from elsewhere. 3. A request that changes
something has a JSON body (415), which no form can send. 4. The request has a login (401). That is HTTP Basic
as a user, the token of the data folder, the cookie of a session, or a client certificate. `/livez`, `/readyz`
and `/metrics` on loopback need none, nor do the files of the login form. A browser that asks for a page gets
the form; `POST /login` begins a session, and `POST /logout` ends it. 5. The user has `admin:read` for
reading, `admin:manage` for changes (403). The token allows
both.

A connection without a login gets one answer, and is closed. Answers carry a policy by which a page loads
from this server alone.
"""

import binascii
import errno
import hmac
import json
import secrets
import time
from base64 import b64decode
from collections.abc import AsyncIterator, Callable, Mapping, MutableMapping
from contextlib import ExitStack, asynccontextmanager
from functools import partial
from http import HTTPStatus
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlencode
from weakref import WeakValueDictionary

import attrs
import trio
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request, cookie_parser
from starlette.responses import HTMLResponse, JSONResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from brokers.access.logins import Logins
from brokers.admin.api import LOOKING, READS, body_of
from brokers.page import files, shown
from shared.access import ADMIN, ASKER, MANAGE, READ, Access, Guard
from shared.local_path import read_file, replace_file, require_regular
from shared.net.keepalive import is_loopback
from shared.net.strangers import address_of_peer
from shared.shares import Shares

TOKEN_NAME = "admin.token"
TOKEN_USER = "(token)"
"""The token's name in the audit log; no user can have it."""
SESSION_SECONDS = 12 * 3600.0
"""A session ends after so long without a request."""
GRAIN_SECONDS = 600.0
"""A session's cookie is renewed so often at most."""
LOGGED_OUT_MAX = 10_000
"""Sessions that ended by a log-out and are remembered; the browser has no cookie of them any more."""
CONNECTIONS_MAX = 128
"""A browser opens six for a page. They come out of the 500 files that are kept back from clients."""
AT_ONCE = 2
"""Requests of one user that are served at the same time; the others wait. 110 lists at once took 85 ms of
each turn of the loop."""
CREDENTIALS_BYTES_MAX = 2048
"""The bytes of a header or a body with a login."""

HEAD_BYTES_MAX = 16 * 1024
"""The bytes of a request's target and headers. The parser bounds only heads that are not whole."""

HEALTH = frozenset({"/livez", "/readyz"})
OPEN = HEALTH | {"/metrics"}
LOGIN, LOGOUT = "/login", "/logout"

HEADERS: Mapping[str, str] = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "img-src 'self' data:; connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
}


LIVE = b"GET /livez "
LIVE_ANSWER = "\r\n".join(
    [
        "HTTP/1.1 200 OK",
        *(f"{name}: {value}" for name, value in HEADERS.items()),
        "Content-Type: text/plain; charset=utf-8",
        "Content-Length: 3",
        "Connection: close",
        "",
        "ok\n",
    ]
).encode()


def token_of(folder: Path) -> str:
    """The token of a data folder, made at the first start (0600). Raises OSError."""
    path = folder / TOKEN_NAME
    try:
        require_regular(path)
        token = read_file(path).decode().strip()
    except FileNotFoundError:
        token = ""
    except UnicodeDecodeError:
        text = "Not text; remove it, and the next start makes another"
        raise OSError(errno.EILSEQ, text, str(path)) from None
    if not token:  # or a start was interrupted while it wrote
        token = secrets.token_urlsafe(32)
        replace_file(path, f"{token}\n".encode(), 0o600)
    return token


def problem(status: int, detail: str, **more: Any) -> Response:
    """An error answer as problem details (RFC 9457)."""
    phrase = HTTPStatus(status).phrase
    content = {"type": "about:blank", "title": phrase, "status": status, "detail": detail, **more}
    return JSONResponse(content, status, media_type="application/problem+json")


@attrs.define(eq=False)
class Caller:
    """The client of a connection. `peer`: its address; `user`: of its first request that was allowed."""

    peer: str
    certificate_user: str = ""
    user: str = ""

    @property
    def address(self) -> str:
        """Where the client is; "" on this machine, which has several addresses."""
        address = address_of_peer(self.peer)
        return "" if is_loopback(address) else address


@attrs.frozen
class BrowserSession:
    """A session of a browser, as its cookie has it. `until`: Unix seconds."""

    id: str
    user: str
    until: int


class Gate:
    """Lets requests on the admin port through to `app`, or answers them itself."""

    def __init__(
        self,
        app: ASGIApp,
        access: Access,
        logins: Logins,
        *,
        token: str,
        host: str,
        port: int,
        names: tuple[str, ...] = (),
        secure: bool = False,
    ) -> None:
        """`host`, `port`: what is bound; `names`: other names for it; `secure`: TLS is spoken there."""
        self._app = app
        self._access = access
        self._logins = logins
        self._token = token.encode()
        self._host, self._port, self._loopback = host, port, is_loopback(host)
        self.take_settings(names, secure=secure)
        self._logged_out: dict[str, None] = {}
        """Sessions that ended before their time; the oldest first."""
        self._connections = Shares(access.share_of)
        self._limiters: WeakValueDictionary[str, trio.CapacityLimiter] = WeakValueDictionary()
        # Beyond loopback, or not: nobody is let in here who has not logged in.
        self.guard: Guard = access.guard(ADMIN, "always", exposed=not self._loopback)

    def answer_at_once(self, data: bytes) -> bytes:
        """The answer to a whole request of `/livez` where that is open, which waits for nobody; or b""."""
        return LIVE_ANSWER if self._loopback and data.startswith(LIVE) and data.endswith(b"\r\n\r\n") else b""

    def left(self, caller: Caller) -> None:
        """The caller's connection has ended."""
        if caller.user:
            self._connections.add(caller.user, -1)

    def _crowded(self, user: str, caller: Caller) -> Response | None:
        """Count the connection as one of its user; the error answer if that is above his share."""
        if caller.user:
            return None
        if not self._connections.fits(user, CONNECTIONS_MAX):
            return problem(503, f"{user} has {self._connections.of(user)} connections open: close some")
        caller.user = user
        self._connections.add(user)
        return None

    @asynccontextmanager
    async def _at_once(self, user: str) -> AsyncIterator[Callable[[], None]]:
        """Be one of the `AT_ONCE` requests of a user that are served; gives what ends that early."""
        limiter = self._limiters.setdefault(user, trio.CapacityLimiter(AT_ONCE))
        request = object()
        await limiter.acquire_on_behalf_of(request)
        with ExitStack() as held:
            held.callback(limiter.release_on_behalf_of, request)
            yield held.close

    def take_settings(self, names: tuple[str, ...], *, secure: bool) -> None:
        """Hold to these from now on."""
        own = {"localhost", "127.0.0.1", "::1"} if self._loopback else set()
        self._names = {name.lower().strip("[]") for name in {self._host, *names, *own} if name}
        self._secure = secure
        # Cookies ignore ports, so two servers on a machine need two names. No other host can set one that
        # begins with `__Host-`, and none is sent in the clear.
        self._cookie = f"{'__Host-' if secure else ''}brokers_{self._port}"

    async def __call__(self, scope: Scope, receive: Receive, send: Send, caller: Caller) -> None:
        if scope["type"] != "http":
            if scope["type"] == "websocket":
                await receive()
                await send({"type": "websocket.close", "code": 1008})
            return
        headers = Headers(scope=scope)
        cookies: list[str] = []
        ends: list[Callable[[], None]] = []

        async def answer(message: Message) -> None:
            if message["type"] == "http.response.start":
                more = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    more.setdefault(name, value)
                for cookie in cookies:
                    more.append("Set-Cookie", cookie)
                if not caller.user:
                    more["Connection"] = "close"
                made = "Content-Length" in more  # else it is made while it is read
                if made or more.get("Content-Type", "").startswith("text/event-stream"):
                    for end in ends:
                        end()
            await send(message)

        refusal = self._refusal(scope, headers)
        changes = scope["method"] not in LOOKING
        if refusal is None and changes and scope["path"] == LOGIN:
            refusal = await self._log_in(Request(scope, receive), caller, cookies)
        elif refusal is None and changes and scope["path"] == LOGOUT:
            refusal = self._log_out(headers, caller, cookies)
        elif refusal is None and (changes or not self._is_open(scope["path"])):
            user = await self._user(scope, headers, caller, cookies)
            refusal = self._denied(scope, user, caller) if isinstance(user, str) else user
            if isinstance(user, str):
                refusal = refusal or self._crowded(user, caller)
                scope["brokers.user"], scope["brokers.peer"] = user, caller.peer
                ASKER.set("" if user == TOKEN_USER else user)
                # A stream checks the user's rights again while it runs.
                scope["brokers.allowed"] = partial(self._may, user, self._action(scope))
                scope["brokers.manages"] = self._may(user, MANAGE)
                if user != TOKEN_USER:
                    scope[READS] = self._may(user, READ)
        if refusal is not None or not caller.user:
            await (refusal or self._app)(scope, receive, answer)
            return
        async with self._at_once(caller.user) as end:
            ends.append(end)
            await self._app(scope, receive, answer)

    def _refusal(self, scope: Scope, headers: Headers) -> Response | None:
        """The error answer to a malformed or foreign request, before its login is checked; None if it
        passes."""
        target = len(scope["raw_path"]) + len(scope["query_string"])
        if target + sum(len(name) + len(value) for name, value in headers.raw) > HEAD_BYTES_MAX:
            return problem(431, f"the target and the headers have more than {HEAD_BYTES_MAX} bytes")
        hosts = headers.getlist("host")
        host = hosts[0] if len(hosts) == 1 else ""
        if scope["path"] not in HEALTH and not self._is_ours(host, scope):
            return problem(
                421, "Host is no name of this server: where it is called so, add that to admin.names"
            )
        own = f"{'https' if self._secure else 'http'}://{host}".lower()
        origin, site = headers.get("origin"), headers.get("sec-fetch-site")
        link = (
            scope["method"] in LOOKING
            and headers.get("sec-fetch-mode") == "navigate"
            and headers.get("sec-fetch-dest") == "document"
        )
        if (origin is not None and origin.lower() != own) or (
            site in ("cross-site", "same-site") and not link
        ):
            return problem(403, "another site asks, and none but this server's own page may")
        if scope["method"] not in LOOKING:
            kind = headers.get("content-type", "").partition(";")[0].strip().lower()
            if kind != "application/json":
                return problem(415, "what changes something is JSON: Content-Type: application/json")
        return None

    def _is_ours(self, said: str, scope: Scope) -> bool:
        """Whether a `Host` names this server, or the address that the connection was made to."""
        name, colon, port = said.rpartition(":") if not said.endswith("]") else (said, "", "")
        if not colon:
            name, port = said, "80"
        if not port.isdecimal() or not name:
            return False
        name = name.lower().strip("[]")
        server = scope.get("server") or ("",)
        return name in self._names or name == str(server[0]).partition("%")[0]

    def _is_open(self, path: str) -> bool:
        return (self._loopback and path in OPEN) or path in files.FILES

    async def _log_in(self, request: Request, caller: Caller, cookies: list[str]) -> Response:
        """Begin a session: with a name and a password, or with the token. Its key is always a new one."""
        given = await _small_object(request)
        user, password, token = (given.get(name) for name in ("user", "password", "token"))
        if isinstance(token, str):
            if not self._is_token(token):
                await self._logins.refuse(self.guard, caller.peer)
                return problem(401, "this is not the token of this server")
            user = TOKEN_USER
        elif not (isinstance(user, str) and isinstance(password, str)):
            return problem(400, "give user and password, or token: texts, in a small JSON object")
        elif not await self._fits(user, password.encode(errors="replace"), caller.peer):
            return problem(401, "no user has this name and password")
        elif not self._access.may_admin(user, READ):
            self.guard.refuse(user, READ, "", caller.peer)
            return problem(403, f"{user} may not look here: that takes the rule admin:read")
        self._log_out(request.headers, caller, cookies)
        if (crowded := self._crowded(user, caller)) is not None:
            return crowded
        cookies[:] = [self._begin(user, caller)]
        return JSONResponse({"user": user})

    def _log_out(self, headers: Headers, caller: Caller, cookies: list[str]) -> Response:
        if (session := self._session(headers, caller)) is not None:
            self._logged_out[session.id] = None
            if len(self._logged_out) > LOGGED_OUT_MAX:
                del self._logged_out[next(iter(self._logged_out))]
        cookies.append(f"{self._cookie}=; Max-Age=0; {self._attributes}")
        return JSONResponse({})

    async def _user(
        self, scope: Scope, headers: Headers, caller: Caller, cookies: list[str]
    ) -> str | Response:
        """The user of a request, or the error answer. `cookies` gets the cookie of a new session."""
        query = parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)
        given = dict(query).get("token")
        if given is not None:
            if not self._is_token(given):
                await self._logins.refuse(self.guard, caller.peer)
                return self._unknown("the token in the address is not that of this server", headers)
            rest = [each for each in query if each[0] != "token"]
            scope["query_string"] = urlencode(rest).encode()
            if scope["method"] not in LOOKING:
                return TOKEN_USER
            cookies.append(self._begin(TOKEN_USER, caller))
            if not scope["path"].startswith("/api/"):  # a URL may be seen by others, and stored
                where = "/" + scope.get("raw_path", b"/").decode("latin-1").lstrip("/\\")
                return RedirectResponse(where + (f"?{urlencode(rest)}" if rest else ""), 303)
            return TOKEN_USER
        authorization = headers.get("authorization")
        if authorization is not None:
            return await self._by_header(authorization, headers, caller)
        if (session := self._session(headers, caller)) is not None:
            if session.until < time.time() + SESSION_SECONDS - GRAIN_SECONDS:
                cookies.append(self._begin(session.user, caller, session.id))
            return session.user
        if caller.certificate_user and (user := self.guard.user_of_certificate(caller.certificate_user)):
            return user
        how = "log in: as a user with an admin rule, or with the token in the data folder"
        ended = "your session has ended: 12 hours passed without a request, or its login was changed; "
        return self._unknown((ended if self._said(headers) else "") + how, headers)

    async def _by_header(self, said: str, headers: Headers, caller: Caller) -> str | Response:
        kind, _, value = said.partition(" ")
        value = value.strip()
        if kind.lower() == "bearer" and len(value) <= CREDENTIALS_BYTES_MAX:
            if self._is_token(value):
                return TOKEN_USER
        elif kind.lower() == "basic" and len(value) <= CREDENTIALS_BYTES_MAX:
            try:
                name, colon, password = b64decode(value, validate=True).partition(b":")
                user = name.decode()
            except (binascii.Error, UnicodeDecodeError):
                colon = b""
            if colon:
                if await self._fits(user, password, caller.peer):
                    return user
                return self._unknown("no user has this name and password", headers)
        await self._logins.refuse(self.guard, caller.peer)
        return self._unknown("the login does not fit", headers)

    async def _fits(self, user: str, password: bytes, peer: str) -> bool:
        answered, answers = trio.Event(), []

        def done(fits: bool) -> None:
            answers.append(fits)
            answered.set()

        self.guard.log_in(user, password, peer, done)
        await answered.wait()
        return answers[0]

    def _said(self, headers: Headers) -> str:
        """The value of a request's cookie; "": it has none."""
        return cookie_parser(headers.get("cookie", "")).get(self._cookie, "")

    def _session(self, headers: Headers, caller: Caller) -> BrowserSession | None:
        """The session of a request, from its cookie."""
        session, _, seal = self._said(headers).rpartition(".")
        id_, _, rest = session.partition(".")
        until, _, user = rest.partition(".")
        if not (until.isdecimal() and len(until) < 16 and id_ not in self._logged_out):
            return None
        if not secrets.compare_digest(seal.encode(), self._seal(session, user, caller).encode()):
            return None
        now = time.time()
        if not now < int(until) <= now + SESSION_SECONDS + GRAIN_SECONDS:  # else the clock was set back
            return None
        return BrowserSession(id_, user, int(until))

    def _begin(self, user: str, caller: Caller, id_: str = "") -> str:
        """Begin a session, or go on with that of this id. Returns its cookie."""
        id_ = id_ or secrets.token_urlsafe(16)
        session = f"{id_}.{int(time.time() + SESSION_SECONDS)}.{user}"
        return f"{self._cookie}={session}.{self._seal(session, user, caller)}; {self._attributes}"

    def _seal(self, session: str, user: str, caller: Caller) -> str:
        """What only this server can make of a session. It is another one for another address, and once the
        token or what the user logs in with has changed; "": nobody has this name."""
        login = ""
        if user != TOKEN_USER:
            found = (self._access.users or {}).get(user)
            if found is None:
                return secrets.token_hex()
            login = f"{'' if found.password is None else found.password.written()} {found.certificate}"
        return hmac.new(self._token, f"{session}\n{caller.address}\n{login}".encode(), "sha256").hexdigest()

    @property
    def _attributes(self) -> str:
        return "Path=/; HttpOnly; SameSite=Strict" + ("; Secure" if self._secure else "")

    def _is_token(self, given: str) -> bool:
        return secrets.compare_digest(given.encode(errors="replace"), self._token)

    def _unknown(self, detail: str, headers: Headers) -> Response:
        """The answer 401. A browser gets the login form instead of its own password dialog; after the login
        the view loads."""
        if "text/html" in headers.get("accept", ""):
            return HTMLResponse(shown.render("login.html", text=detail), 401)
        response = problem(401, detail)
        if self._said(headers):  # a script of a page whose session has ended
            return response
        response.headers["WWW-Authenticate"] = 'Basic realm="brokers", charset="UTF-8"'
        return response

    def _action(self, scope: Mapping[str, Any]) -> str:
        return READ if scope["method"] in LOOKING else MANAGE

    def _may(self, user: str, action: str) -> bool:
        return user == TOKEN_USER or self._access.may_admin(user, action)

    def _denied(self, scope: MutableMapping[str, Any], user: str, caller: Caller) -> Response | None:
        action = self._action(scope)
        if self._may(user, action):
            return None
        self.guard.refuse(user, action, "", caller.peer)
        return problem(403, "denied")


async def _small_object(request: Request) -> Mapping[str, Any]:
    """The body of a request without a login; empty unless it is a small JSON object."""
    try:
        given = json.loads(await body_of(request, CREDENTIALS_BYTES_MAX))
    except (HTTPException, ClientDisconnect, ValueError, RecursionError):
        return {}
    return given if isinstance(given, dict) else {}
