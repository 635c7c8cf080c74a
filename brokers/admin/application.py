"""The HTTP application for operators: health, status, metrics, and administrative verbs.

It serves the control socket, for its owner, and the admin port (`port`, `gate`), for users who
log in. On the control socket a change is refused (403) if a browser says that a web page asks for it
(`Origin`). Errors are problem details (RFC 9457).

| request | answer |
|---|---|
| GET /livez | 200 while the process runs its loop |
| GET /readyz | 200, or 503 and the reason: starting, draining, a protocol down, the store read-only |
| GET /status | JSON: what runs, on which addresses, and how the store is |
| GET /metrics | Prometheus text |
| GET /metrics/detailed?family=&name= | the same for each object (`brokers.admin.detailed`) |
| GET /verbs | JSON: the administrative verbs of all protocols |
| POST /<protocol>/<verb> | runs one; arguments and result are JSON; 409 where it refuses |
| POST /reload {"action", "name"} | takes up what changed: settings, users, certificates; all or nothing |
| POST /drain | stops the server as SIGTERM does |
| POST /backup {"target"} | a consistent copy of the live data folder |

Over TCP files are written to and read from the folder `backups` of the data folder alone.
"""

import os
import pwd
import socket
import struct
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal
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

from brokers.admin import api, definitions, detailed, metrics
from brokers.admin.api import LOOKING, Operation
from brokers.admin.following import PARAMETERS, Followers, Stream
from brokers.admin.gate import problem
from brokers.admin.port import HttpConnection, http_config
from brokers.errors import ExitCode, copy_errors, exit_code
from brokers.host import logs
from brokers.page import views
from shared.definitions import SECTIONS
from shared.errors import BrokerError, printable
from shared.objects import BadArgument, ObjectMissing
from shared.plugin import Verb

if TYPE_CHECKING:
    from brokers.host.host import Host

BARE = ("/reload", "/drain", "/backup")
"""Operations of the API that have a path outside it, too."""
RELOADS = ("reload", *(f"user-{verb}" for verb in ("add", "passwd", "rm", "allow", "deny")))
"""What the audit log calls a reload. Any other word would be a line about what was not done."""
_CREDENTIALS = struct.Struct("=iII")
"""The peer's process, user and group."""


def application(host: "Host") -> Starlette:
    """The ASGI application over `host`, without authentication."""
    scraping, scraping_objects, taking = trio.Lock(), trio.Lock(), trio.Lock()
    scrapes, scraped = 0, (0, b"")
    followers = Followers(host.share_of)

    async def livez(_: Request) -> Response:
        return PlainTextResponse("ok\n")

    async def readyz(_: Request) -> Response:
        reason = host.unready()
        return PlainTextResponse(f"{reason or 'ok'}\n", 503 if reason else 200)

    async def status(request: Request) -> Response:
        return api.as_json({**host.status(), "client": request.client})

    async def nowhere(_: Request) -> Response:
        raise HTTPException(404)

    async def scrape(_: Request) -> Response:
        # One at a time, and all that have waited get the next one: a flood of scrapes costs as much as two.
        nonlocal scrapes, scraped
        before = scrapes
        async with scraping:
            if scraped[0] <= before:
                scrapes += 1
                samples = await metrics.computed(host.samples())
                # In a thread of Starlette's: with many series that takes longer than any peer should wait.
                scraped = scrapes, await run_in_threadpool(metrics.render, samples)
            text = scraped[1]
        return Response(text, media_type=metrics.CONTENT_TYPE)

    async def scrape_objects(request: Request) -> Response:
        kinds, glob = detailed.chosen(request.query_params.multi_items())

        async def pieces() -> AsyncGenerator[bytes, None]:
            shown = detailed.text(kinds, host.objects(), glob)
            async with scraping_objects, aclosing(shown) as parts:
                async for part in parts:
                    yield part

        return Stream(pieces(), media_type=metrics.CONTENT_TYPE)

    async def verbs(_: Request) -> Response:
        listed = [
            {"protocol": protocol, "verb": name, "summary": verb.summary}
            for (protocol, name), verb in sorted(host.verbs().items())
        ]
        return api.as_json(listed)

    async def call(request: Request) -> Response:
        protocol, name = request.path_params["protocol"], request.path_params["verb"]
        verb = host.verbs().get((protocol, name))
        if verb is None:
            raise HTTPException(404, f"no protocol that runs here has {protocol} {name}")
        arguments = await api.arguments_of(request)
        if verb.takes is not None:
            api.refuse_unknown(name, arguments, verb.takes)
        if verb.paths:
            given = {key: arguments[key] for key in verb.paths if isinstance(arguments.get(key), str)}
            paths = {key: str(_path(request, host.backups, text)) for key, text in given.items()}
            arguments = {**arguments, **paths}
        changed = None if verb.changes is None else str(arguments.get(verb.changes, ""))
        if verb.shows is not None:
            changed = str(arguments.get(verb.shows, ""))
        with nullcontext() if changed is None else api.audited(request, protocol, name, changed):
            return api.as_json(await verb.call(arguments))

    operations: list[Operation] = []

    def operation(
        path: str, help_: str, method: Literal["GET", "POST"] = "GET", **more: Any
    ) -> Callable[[api.Endpoint], None]:
        return lambda endpoint: operations.append(Operation(path, help_, endpoint, method, **more))

    @operation(
        "/history",
        "What it did in the last 15 minutes, every 5 s.",
        query={"after": "one of its times: only what is later"},
    )
    async def look_back(request: Request) -> Response:
        return api.as_json(host.rates.history(request.query_params.get("after", "")))

    @operation(
        "/backup",
        "Copy the live data folder.",
        "POST",
        takes={"target": "its absolute path; over TCP a name in the data folder's backups"},
    )
    async def backup(request: Request) -> Response:
        arguments = await api.arguments_of(request)
        api.refuse_unknown("backup", arguments, ("target",))
        given = arguments.get("target")
        if not isinstance(given, str):
            raise HTTPException(400, "target is missing: the folder to write")
        target = _path(request, host.backups, given)
        if not target.is_absolute():
            raise HTTPException(400, "target: an absolute path is needed")
        with api.audited(request, "", "backup", str(target)), copy_errors(target):
            return api.as_json(await host.backup(target))

    @operation("/drain", "Stop as SIGTERM does: accept nothing more, send all answers, end.", "POST")
    async def drain(request: Request) -> Response:
        with api.audited(request, "", "drain", ""):
            host.stop()
        return api.as_json({"draining": 1})

    @operation("/definitions", "All that is durable but messages and secrets, as one document.")
    async def definitions_now(_: Request) -> Response:
        return Stream(host.definitions().text(), media_type="application/json")

    @operation(
        "/definitions",
        "Have there be all that a document has; what is there already stays as it is.",
        "POST",
        query={"dry_run": "1: only say what would be made"},
        takes=dict.fromkeys(SECTIONS, "rows as GET has them"),
    )
    async def take_definitions(request: Request) -> Response:
        dry_run = api.is_dry_run(request)
        try:
            text = (await api.body_of(request, definitions.BYTES_MAX)).decode()
        except UnicodeDecodeError as error:
            raise HTTPException(400, f"no UTF-8 at byte {error.start}") from None
        async with taking:
            rows = await definitions.parsed(text)
            with nullcontext() if dry_run else api.audited(request, "", "definitions", ""):
                taken = await host.definitions(request.scope.get(api.GIVER)).take(rows, dry_run=dry_run)
        return api.as_json(taken)

    @operation(
        "/reload",
        "Take up settings, users and certificates.",
        "POST",
        takes={"action": "how the audit log calls it; reload", "name": "of whom or what, in the audit log"},
    )
    async def reload(request: Request) -> Response:
        arguments = await api.arguments_of(request)
        api.refuse_unknown("reload", arguments, ("action", "name"))
        said = [arguments.get(name, default) for name, default in (("action", "reload"), ("name", ""))]
        if not all(isinstance(each, str) and len(each) <= 64 for each in said):
            raise HTTPException(400, "action, name: short texts")
        if said[0] not in RELOADS:
            raise HTTPException(400, f"action is one of {', '.join(RELOADS)}")
        if api.PEER in request.scope and said != ["reload", ""]:
            raise HTTPException(403, "over TCP there is the action reload, without a name")
        user, peer = api.caller_of(request)
        return api.as_json(await host.reload(*said, user=user, peer=peer))

    @operation(
        "/logs",
        "The last lines of the log.",
        query={"level": "debug, info, warning or error: it and those above; audit", **PARAMETERS},
    )
    async def log_lines(request: Request) -> Response:
        level = request.query_params.get("level", "debug")
        try:
            wanted = logs.at_least(level)
        except KeyError:
            raise HTTPException(400, "level is debug, info, warning, error or audit") from None
        return followers.answer(request, logs.RECENT, wanted)

    @operation(
        "/trace",
        "Copies of messages that pass a name, since somebody has asked first.",
        query={"name": "a glob over topics, queues, exchanges and routing keys", **PARAMETERS},
    )
    async def traced(request: Request) -> Response:
        name, (user, _) = request.query_params.get("name", ""), api.caller_of(request)
        with api.audited(request, "", "trace", name):  # messages are seen
            recent = host.traces.of(name, user)
            return followers.answer(request, recent, lambda _: True, lambda: host.traces.of(name, user))

    return Starlette(
        routes=[
            Route("/livez", livez),
            Route("/readyz", readyz),
            Route("/status", status),
            Route("/metrics", scrape),
            Route("/metrics/detailed", scrape_objects),
            Route("/verbs", verbs),
            *(Route(each.path, each.endpoint, methods=["POST"]) for each in operations if each.path in BARE),
            *api.routes(host.objects, host.overview, operations),
            *views.routes(host.objects, host.overview, host.status),
            Route("/{protocol}/{verb}", call, methods=["POST"]),
            Route("/{path:path}", nowhere, methods=["GET"]),  # else one of two parts is POST's alone: 405
        ],
        exception_handlers=dict.fromkeys(
            (BrokerError, OSError, HTTPException, ClientDisconnect, Exception), _failed
        ),
        middleware=[Middleware(_TextQueries)],
    )


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


def changes_nothing(verbs: Mapping[tuple[str, str], Verb], path: str) -> bool:
    """Whether a POST of that path calls a verb that changes nothing."""
    root, *named = path.split("/")
    verb = verbs.get((named[0], named[1])) if not root and len(named) == 2 else None
    return verb is not None and verb.changes is None


def _path(request: Request, folder: Path, given: str) -> Path:
    """What a path on the server's machine stands for. Over TCP it is one below `folder`, which is made.

    The control socket is its owner's, who may write there anyway.
    """
    if api.PEER not in request.scope:
        return Path(given)
    if "\0" in given:
        raise HTTPException(400, "a path has no NUL")
    folder = Path(os.path.realpath(folder))
    path = Path(os.path.realpath(folder / given))
    if folder not in path.parents:
        raise HTTPException(403, f"over TCP files stand in {folder} alone: give a name that stands there")
    folder.mkdir(mode=0o700, exist_ok=True)
    return path


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
    if not hasattr(socket, "SO_PEERCRED"):  # macOS
        return "(owner)"
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
        case BadArgument():
            status, text = 400, str(error)
        case definitions.NotGiven():
            status, text = 403, str(error)
        case BrokerError():
            status, text = 409, str(error)
            if (code := exit_code(error)) != ExitCode.FAILED:
                more = {"exit_code": int(code)}
        case OSError():
            status, text = 500, f"{f'{error.filename}: ' if error.filename else ''}{error.strerror or error}"
        case _:
            status, text = 500, "the server failed (500): its log shows why"
    response = views.problem(request, status, text) or problem(status, text, **more)
    response.headers.update(getattr(error, "headers", None) or {})
    return response
