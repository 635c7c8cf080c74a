"""The HTTP application for operators: health, status, metrics, the page, and the API.

It serves the control socket, for its owner, and the admin port (`port`, `gate`), for users who log in. On the
control socket a change is refused (403) if a browser says that a web page asks for it (`Origin`). Errors are
problem details (RFC 9457). docs/operate.md lists the requests. Over TCP files are written to and read from
the folder `backups` of the data folder alone.
"""

import pwd
import socket
import struct
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing, nullcontext
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote_to_bytes

import anyio
import structlog
import trio
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from brokers.access.users import NotGiven
from brokers.admin import api, definitions, detailed, metrics, searching
from brokers.admin.api import LOOKING, Operation
from brokers.admin.following import PARAMETERS, Followers, Stream
from brokers.admin.gate import problem
from brokers.admin.port import HttpConnection, http_config
from brokers.commands.control import ROOT
from brokers.errors import ExitCode, copy_errors, exit_code
from brokers.host import logs
from brokers.page import views
from shared.definitions import SECTIONS
from shared.errors import BrokerError, printable
from shared.objects import Argument, BadArgument, ObjectMissing

if TYPE_CHECKING:
    from brokers.host.host import Host

BARE = ("/reload", "/drain", "/backup")
"""Operations of the API that have a path outside it, too."""
_CREDENTIALS = struct.Struct("=iII")
"""The peer's process, user and group."""


def application(host: "Host") -> Starlette:
    """The ASGI application over `host`, without authentication."""
    endpoints = _Endpoints(host)
    operations = endpoints.operations()
    return Starlette(
        routes=[
            Route("/livez", endpoints.livez),
            Route("/readyz", endpoints.readyz),
            Route("/status", endpoints.status),
            Route("/metrics", endpoints.metrics),
            Route("/metrics/detailed", endpoints.detailed_metrics),
            *(Route(each.path, each.endpoint, methods=["POST"]) for each in operations if each.path in BARE),
            *api.routes(host.objects, operations, host.backups),
            *views.routes(host.objects, host.overview, host.status, host.cost_of_stop),
            Route("/verbs", _removed),
            Route("/{protocol}/{verb}", _removed, methods=["POST"]),
            Route("/{path:path}", _nowhere, methods=["GET"]),  # else one of two parts is POST's alone: 405
        ],
        exception_handlers=dict.fromkeys(
            (BrokerError, OSError, HTTPException, ClientDisconnect, Exception), _failed
        ),
        middleware=[Middleware(_TextQueries)],
    )


async def _nowhere(_: Request) -> Response:
    raise HTTPException(404)


async def _removed(request: Request) -> Response:
    """The answer for paths of the release before. They are named for one release."""
    raise HTTPException(410, f"verbs were removed: the API has actions; {ROOT}/openapi.json lists them")


class _Endpoints:
    """What answers requests outside the lists."""

    def __init__(self, host: "Host") -> None:
        self._host = host
        self._followers = Followers(host.share_of)
        self._scraping, self._scraping_objects, self._taking = trio.Lock(), trio.Lock(), trio.Lock()
        self._scrapes, self._scraped = 0, (0, b"")

    def operations(self) -> Sequence[Operation]:
        return (
            Operation("/overview", "What runs, and how it is.", self.overview),
            Operation(
                "/history",
                "What it did in the last 15 minutes, every 5 s.",
                self.history,
                query={"after": "one of its times: only what is later"},
            ),
            Operation(
                "/backup",
                "Copy the live data folder.",
                self.backup,
                "POST",
                takes={"target": Argument("its absolute path; over TCP a name in the data folder's backups")},
            ),
            Operation(
                "/drill",
                "Restore what was shipped to a temporary folder, and compare it with what is served.",
                self.drill,
                "POST",
            ),
            Operation(
                "/drain",
                "Stop as SIGTERM does: accept nothing more, send all answers, end.",
                self.drain,
                "POST",
                query={"dry_run": "1: only say what that would end, and what would be lost"},
            ),
            Operation(
                "/definitions", "All that is durable but messages and secrets, as one document.", self.export
            ),
            Operation(
                "/definitions",
                "Have there be all that a document has; what is there already stays as it is.",
                self.take_definitions,
                "POST",
                query={"dry_run": "1: only say what would be made"},
                takes=dict.fromkeys(SECTIONS, Argument("rows as GET has them", "rows")),
            ),
            Operation("/reload", "Take up settings, users and certificates.", self.reload, "POST"),
            Operation(
                "/logs",
                "The last lines of the log.",
                self.log_lines,
                query={
                    "level": "debug, info, warning or error: it and those above; audit; refused",
                    **PARAMETERS,
                },
            ),
            Operation(
                "/search",
                "The messages of queues and topics that have a text in them.",
                self.search,
                query=searching.QUERY,
            ),
            Operation(
                "/trace",
                "Copies of messages that pass a name, since somebody has asked first.",
                self.trace,
                query={"name": "a glob over topics, queues, exchanges and routing keys", **PARAMETERS},
            ),
        )

    async def livez(self, _: Request) -> Response:
        return PlainTextResponse("ok\n")

    async def readyz(self, _: Request) -> Response:
        reason = self._host.unready()
        told = reason or "; ".join(filter(None, ("ok", self._host.ready_but())))
        return PlainTextResponse(f"{told}\n", 503 if reason else 200)

    async def status(self, request: Request) -> Response:
        return api.as_json({**self._host.status(), "client": request.client})

    async def metrics(self, _: Request) -> Response:
        # One at a time, and all that have waited get the next one: a flood of scrapes costs as much as two.
        before = self._scrapes
        async with self._scraping:
            if self._scraped[0] <= before:
                self._scrapes += 1
                samples = await metrics.computed(self._host.samples())
                # In a thread of Starlette's: with many series that takes longer than any peer should wait.
                self._scraped = self._scrapes, await run_in_threadpool(metrics.render, samples)
            text = self._scraped[1]
        return Response(text, media_type=metrics.CONTENT_TYPE)

    async def detailed_metrics(self, request: Request) -> Response:
        kinds, glob = detailed.chosen(request.query_params.multi_items())

        async def pieces() -> AsyncGenerator[bytes, None]:
            shown = detailed.text(kinds, self._host.objects(), glob)
            async with self._scraping_objects, aclosing(shown) as parts:
                async for part in parts:
                    yield part

        return Stream(pieces(), media_type=metrics.CONTENT_TYPE)

    async def overview(self, _: Request) -> Response:
        return api.as_json(self._host.overview())

    async def history(self, request: Request) -> Response:
        return api.as_json(self._host.rates.history(request.query_params.get("after", "")))

    async def backup(self, request: Request) -> Response:
        arguments = await api.arguments_of(request)
        api.refuse_unknown("backup", arguments, ("target",))
        given = arguments.get("target")
        if not isinstance(given, str):
            raise HTTPException(400, "target is missing: the folder to write")
        target = api.server_path(request, self._host.backups, given)
        if not target.is_absolute():
            raise HTTPException(400, "target: an absolute path is needed")
        with api.audited(request, "", "backup", str(target)), copy_errors(target):
            return api.as_json(await self._host.backup(target))

    async def drill(self, request: Request) -> Response:
        api.refuse_unknown("drill", await api.arguments_of(request), ())
        with api.audited(request, "", "drill", ""):
            return api.as_json(await self._host.drill())

    async def drain(self, request: Request) -> Response:
        if api.is_dry_run(request):
            return api.as_json(await self._host.cost_of_stop())
        with api.audited(request, "", "drain", ""):
            self._host.stop()
        return api.as_json({"draining": 1})

    async def export(self, _: Request) -> Response:
        return Stream(self._host.definitions().text(), media_type="application/json")

    async def take_definitions(self, request: Request) -> Response:
        dry_run = api.is_dry_run(request)
        document = await api.body_of(request, definitions.BYTES_MAX)
        async with self._taking:
            rows = await definitions.parsed(document)
            with nullcontext() if dry_run else api.audited(request, "", "definitions", ""):
                taken = await self._host.definitions().take(rows, dry_run=dry_run)
        return api.as_json(taken)

    async def reload(self, request: Request) -> Response:
        api.refuse_unknown("reload", await api.arguments_of(request), ())
        user, peer = api.caller_of(request)
        return api.as_json(await self._host.reload(user=user, peer=peer))

    async def log_lines(self, request: Request) -> Response:
        level = request.query_params.get("level", "debug")
        try:
            wanted = logs.at_least(level)
        except KeyError:
            raise HTTPException(400, "level is debug, info, warning, error, audit or refused") from None
        return self._followers.answer(request, logs.RECENT, wanted)

    async def search(self, request: Request) -> Response:
        with api.audited(request, "", "search", ""):  # messages are seen
            return api.as_json(await searching.search(self._host.objects(), request.query_params))

    async def trace(self, request: Request) -> Response:
        name, (user, _) = request.query_params.get("name", ""), api.caller_of(request)
        traces = self._host.traces
        with api.audited(request, "", "trace", name):  # messages are seen
            recent = traces.of(name, user)
            return self._followers.answer(request, recent, lambda _: True, lambda: traces.of(name, user))


class _TextQueries:
    """Refuses a query that is not UTF-8. Starlette would have U+FFFD in it, which names something else."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        app = self._app
        try:
            unquote_to_bytes(scope.get("query_string", b"")).decode()
        except UnicodeDecodeError:
            app = problem(400, "the query is not UTF-8")
        await app(scope, receive, send)


async def serve(
    host: "Host",
    listening: socket.socket,
    log: structlog.stdlib.BoundLogger,
    *,
    task_status: trio.TaskStatus[Any] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve the application on the control socket until cancelled; the socket is closed then."""
    # Starlette's anyio loads what it has for trio with the first request: 70 ms, for which all would wait.
    anyio.current_time()
    config = http_config()
    app = _NotForPages(application(host), log)

    async def connection(stream: trio.SocketStream) -> None:
        # Not hypercorn's own accept loop: there an error of its parsers ends the server, and so the host.
        user = _owner(stream)

        async def asked(scope: Scope, receive: Receive, send: Send) -> None:
            scope["brokers.user"] = user
            await app(scope, receive, send)

        try:
            await HttpConnection(asked, config, stream)
        except* Exception as group:
            log.warning(
                "control connection failed: one request has no answer; ask again",
                error=repr(group.exceptions[0]),
            )
            await trio.aclose_forcefully(stream)

    listener = trio.SocketListener(trio.socket.from_stdlib_socket(listening))
    await trio.serve_listeners(connection, [listener], task_status=task_status)


def _owner(stream: trio.SocketStream) -> str:
    """Who on this machine has connected: the name of the user, else the number."""
    credentials = stream.socket.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    _, uid, _ = _CREDENTIALS.unpack(credentials)
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"uid:{uid}"


class _NotForPages:
    """Refuses what changes something where a web page asks: browsers add `Origin` to all but GET and HEAD.

    Where a page or what is between keeps that back, `Sec-Fetch-Site` still tells.
    """

    def __init__(self, app: ASGIApp, log: structlog.stdlib.BoundLogger) -> None:
        self._app = app
        self._log = log

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        app = self._app
        changes = scope["type"] == "http" and scope["method"] not in LOOKING
        headers = Headers(scope=scope) if changes else {}
        if "origin" in headers or "sec-fetch-site" in headers:
            self._log.warning(
                "a web page asked the control socket for a change, and was refused; let a proxy before it "
                "pass only GET of /metrics, /livez and /readyz",
                path=printable(scope["path"].encode()),
                origin=printable(headers.get("origin", "").encode()),
            )
            app = problem(403, "web pages (Origin) may change nothing here")
        await app(scope, receive, send)


async def _failed(request: Request, error: Exception) -> Response:
    """The problem that an error is told as; browsers that ask for a view get a page."""
    more: dict[str, Any] = {}
    match error:
        case ClientDisconnect():
            return problem(400, "the body did not come whole, or not in time")
        case HTTPException():
            status, text = error.status_code, error.detail
            if status == 400:
                more = {"exit_code": int(ExitCode.USAGE)}
        case ObjectMissing():
            status, text = 404, str(error)
        case NotGiven():
            status, text = 403, str(error)
        case BrokerError():
            status, text = 400 if isinstance(error, BadArgument) else 409, str(error)
            if (code := exit_code(error)) != ExitCode.FAILED:
                more = {"exit_code": int(code)}
        case OSError():
            status, text = 500, f"{f'{error.filename}: ' if error.filename else ''}{error.strerror or error}"
        case _:
            status, text = 500, "the server failed (500): its log shows why"
    response = views.problem(request, status, text) or problem(status, text, **more)
    response.headers.update(getattr(error, "headers", None) or {})
    return response
