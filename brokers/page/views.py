"""The views: the API's data as pages whose whole state is in their URLs."""

import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any
from urllib.parse import urlencode

import attrs
from markupsafe import Markup
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import Route

from brokers.admin.api import LOOKING, audited, object_at, parts_behind, queried
from brokers.admin.listing import (
    LOOK_AT_ONE_SECONDS,
    ListQuery,
    Row,
    is_number,
    listed,
    path_of,
    row_of,
    selected,
    sorts,
)
from brokers.admin.searching import search
from brokers.commands.control import ROOT
from brokers.page import files, shown
from shared.actions import HISTORY, SPANS
from shared.errors import BrokerError
from shared.objects import (
    ATTENTION,
    KINDS,
    SETTINGS,
    Action,
    Argument,
    KindColumn,
    ObjectKind,
    ObjectMissing,
    Objects,
    ObjectsByProtocol,
)
from shared.task_turns import TaskTurn
from shared.turns import batched

ROWS = 100
"""Rows of a list on one page."""
RELATED_ROWS = 20
COLUMNS_FEW = 8
MESSAGES, MESSAGES_MAX, DOWNLOADED = 20, 100, 1000
"""Messages on a page, unless it says how many; the most; and those of a download."""
POLL_SECONDS, LIVE_SECONDS = 5.0, 1.0
SHARE = 200
"""A view reloads after this multiple of the CPU time that making it took: with charts and HTTP that is under
1 % of one processor."""
POLL_SECONDS_MAX = 120.0

ORDER = (
    *("attention", "queues", "consumers", "topics", "groups", "sessions", "subscriptions", "retained"),
    *("connections", "exchanges", "bindings", "bridges", "leases", "users", "settings"),
)
"""The order of the menu; kinds that are not named come last."""
LINKS = {
    ("groups", "topic"): "topics",
    ("subscriptions", "client"): "sessions",
    ("consumers", "queue"): "queues",
    ("consumers", "connection"): "connections",
    ("bindings", "exchange"): "exchanges",
    ("bindings", "queue"): "queues",
}
"""Columns whose values name an object of another kind."""
RELATED = {
    "topics": (("groups", "topic"),),
    "sessions": (("subscriptions", "client"),),
    "exchanges": (("bindings", "exchange"),),
    "queues": (("consumers", "queue"), ("bindings", "queue"), ("subscriptions", "topic")),
}
"""The lists below an object, narrowed by its name."""

DANGEROUS = frozenset({"purge", "trim", "delete", "discard", "cancel", "kick", "reset"})
"""Actions that delete data or disconnect clients."""
LABELS = {
    "messages": "Publish",
    "discard": "Delete message",
    "cancel": "Cancel message",
    "passwd": "Password",
}
"""Button texts of actions whose names are no verbs."""

Endpoint = Callable[[Request], Awaitable[Response]]


@attrs.frozen
class MenuEntry:
    """An entry of the menu."""

    name: str
    path: str


@attrs.frozen
class Heading:
    """A column's heading. `url`: the list sorted by it; `order`: how it is sorted now, in ARIA's words."""

    column: KindColumn
    url: str | None
    order: str | None


@attrs.frozen
class ActionForm:
    """An action as a view shows it. `protocol`: whose it is, where the list has those of several. `leaves`:
    the page to go to after an action that deletes the object. `present`: the values that its fields have now.
    """

    action: Action
    url: str
    method: str
    subject: str
    possible: bool = True
    leaves: str = ""
    protocol: str = ""
    present: Mapping[str, Any] = {}

    @property
    def id(self) -> str:
        return "-".join(filter(None, ("do", self.protocol, self.action.name)))

    @property
    def dangerous(self) -> bool:
        return self.action.name in DANGEROUS

    @property
    def label(self) -> str:
        label = LABELS.get(self.action.name) or shown.label(self.action.name)
        return f"{label} ({self.protocol})" if self.protocol else label

    @property
    def of_one(self) -> bool:
        """Whether it is about one message of the object, which its form must be told. What else finds a
        message by its name has a form for any."""
        takes = self.action.takes
        return "position" in takes and ("dedup" not in takes or self.action.name == "requeue")

    @property
    def of_all(self) -> bool:
        """Whether it is about the object."""
        return not (self.of_one and self.action.takes["position"].required)

    def fits(self, message: Mapping[str, Any]) -> bool:
        """Whether it does something to this message."""
        found = message.get("properties") or {}
        suits = {
            "redrive": "dead_letter" in found or "x-death" in (found.get("headers") or {}),
            "requeue": "due" in message or "due_ms" in found or message.get("state") in ("held", "waiting"),
        }
        return self.of_one and suits.get(self.action.name, True)

    @property
    def changes(self) -> bool:
        """Whether only what differs from the present values is sent."""
        return self.action.name == "change"

    @property
    def asks_first(self) -> bool:
        """Whether a dry run shows the consequences first."""
        return self.action.dry_runs and (self.dangerous or not self.action.takes)

    @property
    def fields(self) -> list[tuple[str, Argument, Any]]:
        """Arguments that a person can fill in, and their values: a table that must be empty is none."""
        return [
            (name, each, self.present.get(name, each.usual))
            for name, each in self.action.takes.items()
            if not each.help.startswith("an empty table")
        ]


def routes(
    everything: Callable[[], ObjectsByProtocol],
    overview: Callable[[], Mapping[str, Any]],
    status: Callable[[], Mapping[str, Any]],
    cost_of_stop: Callable[[], Awaitable[Mapping[str, Any]]],
) -> list[Route]:
    """The routes of the page. `everything` returns (protocol, its objects of one kind) pairs."""

    def of(kind: ObjectKind) -> ObjectsByProtocol:
        return [(protocol, each) for protocol, each in everything() if each.kind is kind]

    def page(make: Callable[..., Awaitable[Mapping[str, Any]]], kind: ObjectKind) -> Endpoint:
        return _as_page(partial(make, kind, of))

    def data_dir() -> str:
        return str(status()["data_dir"])

    @_as_page
    async def front(_: Request) -> Mapping[str, Any]:
        state = overview()
        return {"template": "overview.html", "title": "Overview", "found": state, **_state(state)}

    @_as_page
    async def store(_: Request) -> Mapping[str, Any]:
        return {"template": "store.html", "title": "Store and memory", "found": overview()}

    @_as_page
    async def restart(_: Request) -> Mapping[str, Any]:
        values = {"template": "restart.html", "title": "Is it safe to restart?"}
        return {**values, "found": overview(), "cost": await cost_of_stop()}

    @_as_page
    async def logs(request: Request) -> Mapping[str, Any]:
        return {"template": "logs.html", "title": "Log", "level": request.query_params.get("level", "")}

    @_as_page
    async def find(request: Request) -> Mapping[str, Any]:
        query, found, more = request.query_params, None, ""
        if query.get("contains"):
            with audited(request, "", "search", ""):
                found = await search(everything(), query)
            more = urlencode({**query, "after": found["next"]})
        return {"template": "find.html", "title": "Find a message", "found": found, "more": more}

    @_as_page
    async def trace(request: Request) -> Mapping[str, Any]:
        return {"template": "trace.html", "title": "Trace", "name": request.query_params.get("name", "")}

    return [
        Route("/", front),
        Route("/store", store),
        Route("/restart", restart),
        Route("/logs", logs),
        Route("/find", find),
        Route("/trace", trace),
        *(Route(f"/{kind.name}", page(partial(_list, data_dir), kind)) for kind in KINDS.values()),
        *(Route(f"/{kind.name}/{{rest:names}}", page(_one, kind)) for kind in KINDS.values()),
        *files.routes(),
    ]


def _as_page(make: Callable[[Request], Awaitable[Mapping[str, Any]]]) -> Endpoint:
    """An endpoint that answers with the template and the values that `make` returns."""

    async def endpoint(request: Request) -> Response:
        began = time.thread_time()
        values = await make(request)
        least = LIVE_SECONDS if request.query_params.get("live") else POLL_SECONDS
        poll = min(max(least, SHARE * (time.thread_time() - began)), POLL_SECONDS_MAX)
        return _answer(request, 200, {"poll": round(poll, 1), **values})

    return endpoint


def problem(request: Request, status: int, text: str) -> Response | None:
    """The error page for a browser that asks for a view; None for other requests."""
    looks = request.method in LOOKING and "text/html" in request.headers.get("accept", "")
    if not looks or request.url.path.startswith("/api/"):
        return None
    values = {"template": "problem.html", "title": "Not shown", "text": text, "poll": POLL_SECONDS_MAX}
    return _answer(request, status, values)


def _answer(request: Request, status: int, values: Mapping[str, Any]) -> Response:
    here = "/" + request.url.path.split("/")[1]
    places = _places()
    common = {
        "places": places,
        "here": here if here in {place.path for place in places} else "/",
        "user": request.scope.get("brokers.user", ""),
        "manages": request.scope.get("brokers.manages", False),
        "query": request.query_params,
    }
    return HTMLResponse(shown.render(**common, **values), status)


def _places() -> list[MenuEntry]:
    kinds = [name for name in ORDER if name in KINDS]
    kinds += [name for name in KINDS if name not in ORDER]
    return [
        MenuEntry("Overview", "/"),
        *(MenuEntry(shown.label(name), f"/{name}") for name in kinds),
        MenuEntry("Store and memory", "/store"),
        MenuEntry("Log", "/logs"),
        MenuEntry("Find a message", "/find"),
        MenuEntry("Trace", "/trace"),
    ]


# The overview.


def _state(found: Mapping[str, Any]) -> Mapping[str, Any]:
    flows = found.get("flows", {})
    produced = (
        value
        for totals in found.get("totals", {}).values()
        for name, value in totals.items()
        if name.endswith(("_produced", "_published"))
    )
    begun = any(flows.get("messages_in", {}).values())
    return {
        "flows": flows,
        "quiet": not begun and not any(produced),
    }


# Lists.


async def _list(
    data_dir: Callable[[], str],
    kind: ObjectKind,
    of: Callable[[ObjectKind], ObjectsByProtocol],
    request: Request,
) -> Mapping[str, Any]:
    of_kind = of(kind)
    query = {name: value for name, value in request.query_params.items() if value}
    wanted = ListQuery.parse(kind, of_kind, query, ("page",))
    text = query.get("page", "1")
    if not (is_number(text) and int(text) >= 1):
        raise HTTPException(400, "page is a number from 1")
    number = int(text)
    selection = await selected(kind, of_kind, wanted, (number - 1) * ROWS, ROWS)
    narrow = sorted({name for _, each in of_kind for name in each.narrow})
    filtered = bool(wanted.match or wanted.filters or wanted.narrow)
    columns = _filled(kind, selection.items, wanted.sort)
    return {
        "template": "list.html",
        "title": shown.label(kind.name),
        "kind": kind,
        "heads": [_head(kind, column, wanted, query) for column in columns],
        "body": await _body(kind, selection.items, columns),
        "shown": len(selection.items),
        "total": selection.total,
        "first": (number - 1) * ROWS + 1,
        "previous": _with(query, page=number - 1 if number > 2 else None) if number > 1 else None,
        "following": _with(query, page=number + 1) if number * ROWS < selection.total else None,
        "filtered": filtered,
        "protocols": sorted(protocol for protocol, _ in of_kind),
        "filters": [name for name in kind.filters if name != "protocol"] + narrow,
        "makes": [
            ActionForm(
                action, f"{ROOT}/{kind.name}", "POST", "", protocol=protocol if kind.by_protocol else ""
            )
            for protocol, each in of_kind
            for action in each.makes
        ],
        "data_dir": data_dir(),
        "begins": [each.begin for _, each in of_kind if each.begin],
        "downloads": f"{ROOT}/definitions" if kind is SETTINGS else "",
    }


def _head(kind: ObjectKind, column: KindColumn, wanted: ListQuery, query: Mapping[str, str]) -> Heading:
    if not sorts(column):
        return Heading(column, None, None)
    key = column.name
    sorted_by = wanted.sort or ("" if kind.by_protocol else kind.columns[0].name)
    order = ("descending" if wanted.descending else "ascending") if sorted_by == key else None
    largest_first = column.unit not in ("", "flag")
    descending = largest_first if order is None else not wanted.descending
    return Heading(column, _with(query, sort=("-" if descending else "") + key, page=None), order)


def _with(query: Mapping[str, str], **changes: Any) -> str:
    """The URL of this view with another query."""
    rest = {name: value for name, value in {**query, **changes}.items() if value is not None}
    return "?" + urlencode(rest)


def _filled(kind: ObjectKind, rows: Sequence[Row], sort: str = "") -> list[KindColumn]:
    """The columns with a value in some row; without nested tables where there are many columns."""
    if kind is ATTENTION:  # its last column is where a cell leads
        return list(kind.columns[:-1])
    roomy = len(kind.columns) <= COLUMNS_FEW
    return [
        column
        for column in kind.columns
        if column.name in (sort, *kind.parts)
        or ((roomy or column.unit != "table") and any(row[column.name] not in (None, "", []) for row in rows))
    ]


async def _body(kind: ObjectKind, rows: Sequence[Row], columns: Sequence[KindColumn]) -> Markup:
    """The rows of a table, in turns: 100 of them take 10 ms."""
    parts: list[str] = []
    turn = TaskTurn()
    for batch in batched(rows):
        parts.append(shown.render("rows.html", rows=[_row(kind, row, columns) for row in batch]))
        if turn.over_now():
            await turn.others()
    return Markup("".join(parts))


def _row(
    kind: ObjectKind, row: Row, columns: Sequence[KindColumn]
) -> list[tuple[KindColumn, Any, str | None]]:
    """The cells of a row: column, value, and link."""
    own = next(part for part in kind.parts if (kind.name, part) not in LINKS)
    cells: list[tuple[KindColumn, Any, str | None]] = []
    for column in columns:
        value = row[column.name]
        link = None
        if kind is ATTENTION:
            link = row["link"] if column.name == "object" else None
        elif column.name == own:
            link = path_of(kind, row)
        elif value is not None and (other := LINKS.get((kind.name, column.name))):
            named = {**row, KINDS[other].parts[-1]: value}
            link = path_of(KINDS[other], named)
        cells.append((column, value, link))
    return cells


# One object.


async def _one(
    kind: ObjectKind, of: Callable[[ObjectKind], ObjectsByProtocol], request: Request
) -> Mapping[str, Any]:
    protocol, objects, item = object_at(kind, of(kind), parts_behind(request, f"/{kind.name}"))
    row = await row_of(protocol, objects, item, LOOK_AT_ONE_SECONDS)
    if row is None:
        raise ObjectMissing(f"{kind.name}: there is none of this name")
    path = path_of(kind, row)
    names = [part for part in kind.columns if part.name in kind.parts]
    return {
        "template": "one.html",
        "title": ", ".join(shown.text(row[part.name]) for part in names),
        "kind": kind,
        "facts": [
            each
            for each in _row(kind, row, kind.columns)
            if each[0].name not in kind.parts or (kind.name, each[0].name) in LINKS
        ],
        "actions": sorted(
            (_action_form(action, path, row, kind) for action in objects.actions if not action.looks),
            key=lambda form: form.dangerous,  # the same order for all protocols' queues
        ),
        "api": f"{ROOT}{path}",
        "charts": [(chart.column, kind.chart_unit(chart)) for chart in kind.charts],
        "span": request.query_params.get("span", SPANS[0]),
        "spans": SPANS,
        "seen": await _seen(objects, item, request),
        "related": [
            await _related(KINDS[other], of, protocol, column, str(row[kind.parts[-1]]))
            for other, column in RELATED.get(kind.name, ())
            if any(owner == protocol for owner, _ in of(KINDS[other]))
        ],
    }


def _action_form(action: Action, path: str, row: Row, kind: ObjectKind) -> ActionForm:
    subject = " ".join(str(row[part]) for part in kind.parts)
    if action.name in ("delete", "kick"):
        return ActionForm(action, f"{ROOT}{path}", "DELETE", subject, leaves=f"/{kind.name}")
    idle = {"pause": True, "resume": False}.get(action.name)
    possible = idle is None or row.get("paused", row.get("state") == "paused") is not idle
    present = {**row, **(row.get("settings") or {})} if action.name == "change" else {}
    return ActionForm(action, f"{ROOT}{path}/{action.name}", "POST", subject, possible, present=present)


async def _seen(objects: Objects, found: Any, request: Request) -> Mapping[str, Any] | None:
    """The result of a read-only action: that of the query's `show`, or the first."""
    query = request.query_params
    looks = [action for action in objects.actions if action.looks and action.name != HISTORY.name]
    action = next((each for each in looks if each.name == query.get("show")), looks[0] if looks else None)
    if action is None:
        return None
    given = {name: query[name] for name in action.takes if query.get(name)}
    arguments: dict[str, Any] = {"limit": MESSAGES} if "limit" in action.takes else {}
    if "newest" in action.takes and "show" not in query and not given:
        arguments["newest"] = True
    arguments |= queried(action.takes, given)
    if isinstance(arguments.get("limit"), int):
        arguments["limit"] = min(arguments["limit"], MESSAGES_MAX)
    answer: Mapping[str, Any] = {}
    wrong = None
    if arguments:  # others are run when the user submits the form
        try:
            answer = await action.call(found, arguments, False)
        except BrokerError as error:
            wrong = str(error)
    following = answer.get("next")
    more = {"show": action.name, **given, "from": following}
    items = answer.get("items") if arguments else None
    if arguments.get("newest"):
        following = items[-1]["position"] if items and len(items) == arguments.get("limit") else None
        back = arguments.get("records_back", arguments.get("limit", 0)) + arguments.get("limit", 0)
        more = {"show": action.name, **given, "newest": 1, "records_back": back}
    return {
        "action": action,
        "others": [each.name for each in looks if each is not action],
        "fields": [(name, each, arguments.get(name, "")) for name, each in action.takes.items()],
        "wrong": wrong,
        "messages": items,
        "live": bool(query.get("live")) if "newest" in action.takes else None,
        "touched": any("position" in action.takes for action in objects.actions),
        "download": urlencode({**given, "limit": DOWNLOADED}),
        "answer": answer if "items" not in answer else {},
        "following": None if following is None else "?" + urlencode(more),
    }


async def _related(
    kind: ObjectKind,
    of: Callable[[ObjectKind], ObjectsByProtocol],
    protocol: str,
    column: str,
    name: str,
) -> Mapping[str, Any]:
    narrowed = {column: name, "protocol": protocol}
    page = await listed(kind, of(kind), {**narrowed, "limit": str(RELATED_ROWS)})
    rows: Sequence[Row] = page["items"]
    columns = _filled(kind, rows)
    return {
        "kind": kind,
        "heads": [Heading(each, None, None) for each in columns],
        "body": await _body(kind, rows, columns),
        "shown": len(rows),
        "more": f"/{kind.name}?" + urlencode(narrowed) if page["next"] is not None else None,
    }
