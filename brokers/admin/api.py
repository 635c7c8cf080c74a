"""Version 1 of the API, `/api/v1`: lists the objects of every protocol, shows one, and acts on it.

docs/reference/api.md lists its requests. A list takes `limit`, `after`, `match`, filters of its kind and
`sort`, a column (`-ready`: the largest first). GET runs an action that changes nothing, with its arguments as
the query, and DELETE runs `delete`, or `kick`.

Where several protocols create such objects, the body's `protocol` says which one does. Of several actions of
a list the first counts that takes all arguments. `shared.objects` and the protocols describe kinds, columns
and actions. Each part of a name is percent-encoded; `.` and `..`, which clients take out of a path, are
`%FF.` and `%FF..`. The audit log gets a line for each action that changes something.
"""

import json
import os
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import aclosing, contextmanager, nullcontext
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal

import attrs
from starlette.convertors import PathConvertor, register_url_convertor
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from brokers.admin.listing import LOOK_AT_ONE_SECONDS, is_number, listed, row_of
from brokers.commands.control import ROOT, name_in
from brokers.commands.render import json_value
from brokers.host import logs
from shared.objects import (
    KINDS,
    MESSAGES,
    Action,
    Argument,
    ArgumentKind,
    BadValue,
    KindColumn,
    ObjectKind,
    ObjectMissing,
    Objects,
    ObjectsByProtocol,
    key_of,
)

BODY_BYTES_MAX = 1 << 20
"""The body of an action: a few arguments, or one message. A larger body is refused while it is read."""

LOOKING = ("GET", "HEAD")

Endpoint = Callable[[Request], Awaitable[Response]]


@attrs.frozen
class Operation:
    """A request outside the lists, at `ROOT` + `path`. The OpenAPI document describes it.

    `query`: its parameters, with their help; `takes`: the members of its JSON body.
    """

    path: str
    help: str
    endpoint: Endpoint
    method: Literal["GET", "POST"] = "GET"
    query: Mapping[str, str] = {}
    takes: Mapping[str, Argument] = {}


class _Names(PathConvertor):
    """The rest of a path: unlike `path`, over line feeds, which a queue's name may have."""

    regex = "(?s:.*)"


register_url_convertor("names", _Names())


def routes(
    everything: Callable[[], ObjectsByProtocol], own: Sequence[Operation], backups: Path
) -> list[Route]:
    """The routes of the API. `everything` returns (protocol, its objects of one kind) pairs. `backups`: the
    folder of the files that are written and read over TCP."""

    async def describe(_: Request) -> Response:
        return as_json(openapi(everything(), operations))

    async def answer(request: Request) -> Response:
        parts = parts_behind(request, ROOT)
        for name, count in Counter(name for name, _ in request.query_params.multi_items()).items():
            if count > 1:
                raise HTTPException(400, f"{name} is given twice")
        by_method = {str(each.method): each for each in operations if each.path == f"/{'/'.join(parts)}"}
        if by_method:
            return await _operate(by_method, request)
        kind = KINDS.get(parts[0])
        if kind is None:
            raise HTTPException(404, f"there is no {parts[0]} here; there are {', '.join(sorted(KINDS))}")
        of_kind = [(protocol, each) for protocol, each in everything() if each.kind is kind]
        if len(parts) > 1:
            return await _answer_one(kind, of_kind, parts[1:], request, backups)
        if request.method in LOOKING:
            return as_json(await listed(kind, of_kind, request.query_params))
        return await _create(of_kind, request, backups)

    operations = (*own, Operation("/openapi.json", "This document.", describe))
    return [_AnyMethod(f"{ROOT}/{{rest:names}}", answer)]


class _AnyMethod(Route):
    """A route that leaves it to its endpoint which methods its paths have."""

    def __init__(self, path: str, endpoint: Endpoint) -> None:
        super().__init__(path, endpoint)
        self.methods = None


async def _operate(by_method: Mapping[str, Operation], request: Request) -> Response:
    """Answer with an operation. Unknown parameters are refused: a mistyped dry run must not run for real."""
    operation = by_method.get("GET" if request.method == "HEAD" else request.method)
    if operation is None:
        allowed = [*(LOOKING if "GET" in by_method else ()), *(["POST"] if "POST" in by_method else ())]
        raise _not_allowed(request, allowed, f"there is {', '.join(by_method)}")
    refuse_unknown(operation.path, request.query_params, operation.query)
    return await operation.endpoint(request)


def _not_allowed(request: Request, allowed: Iterable[str], why: str) -> HTTPException:
    """The error (405) for a method that a path does not have."""
    return HTTPException(405, f"{request.method} does nothing here; {why}", {"Allow": ", ".join(allowed)})


def refuse_unknown(name: str, given: Iterable[str], takes: Collection[str]) -> None:
    """Raise HTTPException (400) for the first given argument that `name` does not take."""
    if unknown := sorted(set(given) - set(takes)):
        raise HTTPException(400, f"{unknown[0]}: no such argument; {name} takes {', '.join(takes) or 'none'}")


def as_json(value: Any) -> Response:
    return Response(json.dumps(value, default=json_value), media_type="application/json")


async def body_of(request: Request, bytes_max: int) -> bytes:
    """The whole body of a request. Raises HTTPException (413) above `bytes_max`: at once where that is
    announced, and the connection is closed.
    """
    refusal = HTTPException(413, f"a body above {bytes_max} bytes")
    if int(request.headers.get("content-length", "0")) > bytes_max:  # a number: the parser refuses others
        raise refusal
    body = bytearray()
    async with aclosing(request.stream()) as parts:
        async for part in parts:
            body += part
            if len(body) > bytes_max:
                raise refusal
    return bytes(body)


def is_dry_run(request: Request) -> bool:
    """Whether the query asks for a dry run. Raises HTTPException (400) unless it says 0, 1, false or true."""
    flag = request.query_params.get("dry_run", "0").lower()
    if flag not in ("0", "false", "1", "true"):
        raise HTTPException(400, "dry_run is 1 (true) or 0 (false)")
    return flag in ("1", "true")


async def arguments_of(request: Request) -> Mapping[str, Any]:
    """The JSON object in a request's body; {} for an empty body. Raises HTTPException (400, 413)."""
    body = await body_of(request, BODY_BYTES_MAX)
    try:
        arguments = json.loads(body or b"{}")
        json.dumps(arguments, ensure_ascii=False).encode()
    except UnicodeEncodeError:  # a lone surrogate: no wire can carry it in a name
        raise HTTPException(400, "the body has text that is not Unicode") from None
    except (ValueError, RecursionError):  # RecursionError: nested thousands of levels deep
        raise HTTPException(400, "the body is not JSON") from None
    if not isinstance(arguments, dict):
        raise HTTPException(400, "the body is not a JSON object")
    return arguments


async def _create(those: ObjectsByProtocol, request: Request, backups: Path) -> Response:
    makers = [(protocol, action) for protocol, each in those for action in each.makes]
    if not makers:
        raise _not_allowed(request, LOOKING, "these cannot be made here")
    if request.method != "POST":
        raise _not_allowed(request, (*LOOKING, "POST"), "POST makes one")
    arguments = dict(await arguments_of(request))
    protocol, action = _maker(makers, arguments)
    name = key_of(*(str(arguments.get(each, "")) for each in action.named_by))
    return await _run_action(protocol, action, None, name, arguments, request, backups)


def _maker(makers: Sequence[tuple[str, Action]], arguments: dict[str, Any]) -> tuple[str, Action]:
    """The action on a list that is meant. `protocol` is taken out of the arguments. Raises HTTPException
    (400) and BadArgument."""
    owners = {protocol for protocol, _ in makers}
    wanted = arguments.pop("protocol", None)
    if wanted is not None and wanted not in owners:
        raise BadValue(f"protocol is one of {', '.join(sorted(owners))}")
    possible = [each for each in makers if wanted in (None, each[0])]
    fitting = [each for each in possible if arguments.keys() <= each[1].takes.keys()]
    if wanted is None and len({protocol for protocol, _ in fitting}) > 1:
        raise BadValue(f"protocol is missing: one of {', '.join(sorted(owners))}")
    return (fitting or possible)[0]


async def _answer_one(
    kind: ObjectKind, those: ObjectsByProtocol, parts: Sequence[str], request: Request, backups: Path
) -> Response:
    """Answer a request for one object, or for an action on it."""
    length = len(kind.parts) + kind.by_protocol
    name, rest = (parts[:length], parts[length]) if len(parts) == length + 1 else (parts, "")
    protocol, objects, item = object_at(kind, those, name)
    reads = request.method in LOOKING
    if reads and not rest:
        refuse_unknown("/".join(parts), request.query_params, ())
        row = await row_of(protocol, objects, item, LOOK_AT_ONE_SECONDS)
        if row is None:
            raise _missing(kind, name)
        return as_json(row)
    action = _action_of(request, {action.name: action for action in objects.actions}, rest)
    if reads:
        arguments = queried(action.takes, request.query_params)
    else:
        arguments = await arguments_of(request)
        # While the body came it may have been deleted, and made anew.
        protocol, objects, item = object_at(kind, those, name)
    return await _run_action(protocol, action, item, objects.name(item), arguments, request, backups)


def queried(takes: Mapping[str, Argument], query: Mapping[str, str]) -> Mapping[str, Any]:
    """The arguments of an action that are given as the parameters of a query."""
    read: Mapping[ArgumentKind, Callable[[str], Any]] = {
        "number": lambda text: int(text) if is_number(text) else text,
        "flag": lambda text: {"1": True, "true": True, "0": False, "false": False}.get(text, text),
        "list": str.splitlines,
    }
    return {
        name: read.get(takes[name].kind, str)(text) if name in takes else text for name, text in query.items()
    }


def _action_of(request: Request, actions: Mapping[str, Action], name: str) -> Action:
    """The action `name`; without a name, that of DELETE. Raises HTTPException (404, 405)."""
    can = ", ".join(sorted(actions)) or "nothing"
    if name and name not in actions:
        raise HTTPException(404, f"no such action here; there is {can}")
    action = actions[name] if name else actions.get("delete") or actions.get("kick")
    allowed: tuple[str, ...]
    if name:
        assert action is not None
        allowed = (*LOOKING, "POST") if action.looks else ("POST",)
    else:
        allowed = LOOKING if action is None else (*LOOKING, "DELETE")
    if action is None or request.method not in allowed:
        raise _not_allowed(request, allowed, f"there is {can}")
    return action


def _missing(kind: ObjectKind, name: Sequence[str]) -> ObjectMissing:
    protocol, own = (f" in {name[0]}", name[1:]) if kind.by_protocol else ("", name)
    return ObjectMissing(f"there is no {kind.name.removesuffix('s')} {'/'.join(own)}{protocol}")


def object_at(kind: ObjectKind, those: ObjectsByProtocol, name: Sequence[str]) -> tuple[str, Objects, Any]:
    """The object that `name` names, as (protocol, its objects, the object).

    Raises ObjectMissing, and HTTPException (404) for a name with too few or too many parts.
    """
    length = len(kind.parts) + kind.by_protocol
    if len(name) != length:
        raise HTTPException(404, f"of {kind.name} a name has {length} parts, and one action may follow")
    own = name[1:] if kind.by_protocol else name
    for protocol, each in those:
        if (not kind.by_protocol or protocol == name[0]) and (item := each.find(own)) is not None:
            return protocol, each, item
    raise _missing(kind, name)


async def _run_action(
    protocol: str,
    action: Action,
    found: Any,
    name: str,
    arguments: Mapping[str, Any],
    request: Request,
    backups: Path,
) -> Response:
    """Run an action. One that changes something, or shows messages, leaves a line in the audit log."""
    refuse_unknown(action.name, arguments, action.takes)
    if missing := [name for name, each in action.takes.items() if each.required and name not in arguments]:
        raise BadValue(f"{missing[0]} is missing")
    for argument, value in arguments.items():
        choices = action.takes[argument].choices
        if choices and value is not None and value not in choices:
            raise HTTPException(400, f"{argument}: it is one of {', '.join(choices)}")
    given = {key: arguments[key] for key in action.paths if isinstance(arguments.get(key), str)}
    paths = {key: str(server_path(request, backups, text)) for key, text in given.items()}
    arguments = {**arguments, **paths}
    if request.method not in LOOKING:
        refuse_unknown(f"the address of {action.name}", request.query_params, ("dry_run",))
    dry_run = request.method not in LOOKING and is_dry_run(request)
    if dry_run and not action.dry_runs:
        raise HTTPException(400, f"{action.name} cannot say what it would do: no dry_run")
    if action.looks and not request.scope.get(READS, True):
        raise HTTPException(403, "denied")
    shows = action.answers == MESSAGES
    unseen = dry_run or (action.looks and not shows)
    with nullcontext() if unseen else audited(request, protocol, action.name, name):
        return as_json(await action.call(found, arguments, dry_run))


def server_path(request: Request, backups: Path, given: str) -> Path:
    """What a path on the server's machine stands for. Over TCP it is one below `backups`, which is made.

    The control socket is its owner's, who may write there anyway.
    """
    if PEER not in request.scope:
        return Path(given)
    if "\0" in given:
        raise HTTPException(400, "a path has no NUL")
    folder = Path(os.path.realpath(backups))
    path = Path(os.path.realpath(folder / given))
    if folder not in path.parents:
        raise HTTPException(403, f"over TCP files stand in {folder} alone: give a name that stands there")
    folder.mkdir(mode=0o700, exist_ok=True)
    return path


PEER = "brokers.peer"
"""The key of a request's scope with the client's address. Requests on the control socket have no such key."""
READS = "brokers.reads"
"""The key of whether the caller may read. The control socket and the token have none."""
CONTROL = "control"
"""Stands for the address of clients on the control socket."""


def caller_of(request: Request) -> tuple[str, str]:
    """Who sent the request: (user, address or `CONTROL`). The user is "" where nobody logged in."""
    return request.scope.get("brokers.user", ""), request.scope.get(PEER, CONTROL)


@contextmanager
def audited(request: Request, protocol: str, action: str, name: str) -> Iterator[None]:
    """Write a line in the audit log when the block ends: `done`, or `refused` if it raised."""
    user, peer = caller_of(request)
    result = "refused"
    try:
        yield
        result = "done"
    finally:
        logs.audit(user=user, peer=peer, protocol=protocol, action=action, name=name, result=result)


def parts_behind(request: Request, root: str) -> list[str]:
    """The parts of the path after `root`, decoded. A slash within a name arrives encoded, so it splits
    nothing."""
    raw = request.scope.get("raw_path") or request.url.path.encode()
    path = raw.partition(b"?")[0].decode("latin-1").removeprefix(root).strip("/")
    try:
        return [name_in(part) for part in path.split("/")]
    except UnicodeDecodeError:
        raise HTTPException(400, "the path is not UTF-8") from None


# The OpenAPI document.

_TYPES: Mapping[str, Mapping[str, Any]] = {
    "": {"type": ["string", "null"]},
    "count": {"type": ["integer", "null"]},
    "bytes": {"type": ["integer", "null"], "description": "bytes"},
    "seconds": {"type": ["number", "null"], "description": "seconds"},
    "time": {"type": ["string", "null"], "format": "date-time"},
    "rate": {"type": ["number", "null"], "description": "messages a second"},
    "bytes_rate": {"type": ["number", "null"], "description": "bytes a second"},
    "flag": {"type": ["boolean", "null"]},
    "list": {"type": ["array", "null"], "items": {"type": "string"}},
    "table": {"type": ["object", "null"]},
}
_MESSAGE = {
    "type": "object",
    "properties": {
        "position": {"type": ["integer", "null"], "description": "Its position in the queue or topic."},
        "time": {**_TYPES["time"], "description": "When the broker got it; null where that is not known."},
        "bytes": {"type": "integer", "description": "The size of the whole body."},
        "text": {"type": "string"},
        "base64": {"type": "string", "description": "The body in place of `text`, where it is not UTF-8."},
        "truncated": {"type": "boolean", "description": "Only the beginning of the body is shown."},
        "properties": {"type": "object"},
        "exchange": {"type": "string", "description": "DMP: the exchange it was published to."},
        "key": {"type": "string", "description": "DMP: its routing key."},
        "state": {"type": "string", "description": "Of one asked for by name: ready, waiting or held."},
        "due": {**_TYPES["time"], "description": "DMP: when it may be delivered."},
        "redelivered": {"type": "boolean", "description": "DMP: a consumer may have seen it before."},
    },
    "required": ["position", "time", "bytes"],
}
_FAULT = {
    "description": "A problem.",
    "content": {"application/problem+json": {"schema": {"$ref": "#/components/schemas/Problem"}}},
}


def openapi(everything: ObjectsByProtocol, own: Sequence[Operation]) -> Mapping[str, Any]:
    """The API as an OpenAPI document, with the kinds, columns and actions of the running protocols."""
    paths: dict[str, Any] = {}
    schemas: dict[str, Any] = {
        "Problem": {
            "type": "object",
            "properties": {name: {"type": "string"} for name in ("type", "title", "detail")}
            | {"status": {"type": "integer"}},
        },
        "message": _MESSAGE,
    }
    for kind in KINDS.values():
        of_kind = [each for _, each in everything if each.kind is kind]
        schemas[kind.name] = {
            "type": "object",
            "properties": {column.name: _schema(column) for column in kind.columns},
            "required": [column.name for column in kind.columns],
        }
        paths |= _paths(kind, of_kind)
    for each in own:
        query = [_parameter(name, "query", text) for name, text in each.query.items()]
        takes = None if each.method == "GET" else each.takes
        operation = _operation(each.help, parameters=query, takes=takes)
        paths.setdefault(f"{ROOT}{each.path}", {})[each.method.lower()] = operation
    return {
        "openapi": "3.1.0",
        "info": {"title": "Brokers", "version": version("brokers")},
        "paths": paths,
        "components": {
            "schemas": schemas,
            "securitySchemes": {
                "basic": {"type": "http", "scheme": "basic"},
                "token": {"type": "http", "scheme": "bearer"},
            },
        },
        "security": [{"basic": []}, {"token": []}],
    }


_IN_PATH = "Percent-encoded. Clients take . and .. out of a path: these two are %FF. and %FF.. there."


def _schema(column: KindColumn) -> Mapping[str, Any]:
    unit = _TYPES[column.unit]
    more = f" In {unit['description']}." if "description" in unit else ""
    return {**unit, "description": column.help + more}


def _paths(kind: ObjectKind, those: Sequence[Objects]) -> Iterator[tuple[str, Any]]:
    row = {"$ref": f"#/components/schemas/{kind.name}"}
    page = {
        "type": "object",
        "properties": {"items": {"type": "array", "items": row}, "next": {"type": ["string", "null"]}},
        "required": ["items", "next"],
    }
    narrow = sorted({name for each in those for name in each.narrow})
    query = [
        _parameter(name, "query") for name in ("limit", "after", "match", "sort", *kind.filters, *narrow)
    ]
    listed = {"get": _operation(kind.help, page, query)}
    for each in those:
        for action in each.makes:
            operation = _action_operation(action, ())
            listed["post"] = _either(listed["post"], operation) if "post" in listed else operation
    yield f"{ROOT}/{kind.name}", listed
    one = f"{ROOT}/{kind.name}/" + "/".join(f"{{{column}}}" for column in kind.name_columns)
    named = [_parameter(column, "path", _IN_PATH) for column in kind.name_columns]
    operations = {"get": _operation("One of them.", row, named)}
    actions: dict[str, Action] = {}
    for action in (action for each in those for action in each.actions):
        same = actions.setdefault(action.name, action)
        answers = tuple(dict.fromkeys((*same.answers, *action.answers)))
        actions[action.name] = attrs.evolve(same, takes={**same.takes, **action.takes}, answers=answers)
    for name, action in actions.items():
        if name in ("delete", "kick"):
            operations["delete"] = _action_operation(action, named)
        elif action.looks:
            query = [_parameter(argument, "query", each.help) for argument, each in action.takes.items()]
            looking = _operation(action.help, _answer_schema(action), [*named, *query])
            yield f"{one}/{name}", {"get": looking, "post": _action_operation(action, named)}
        else:
            yield f"{one}/{name}", {"post": _action_operation(action, named)}
    yield one, operations


def _action_operation(action: Action, named: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    dry_run = _parameter("dry_run", "query", "1: change nothing, and answer what would change")
    parameters = [*named, dry_run] if action.dry_runs else named
    return _operation(action.help, _answer_schema(action), parameters, action.takes)


_ARGUMENTS: Mapping[ArgumentKind, Mapping[str, Any]] = {
    "number": {"type": "integer"},
    "flag": {"type": "boolean"},
    "table": {"type": "object"},
    "list": {"type": "array", "items": {"type": "string"}},
    "rows": {"type": "array", "items": {"type": "object"}},
}


def _argument_schema(argument: Argument) -> Mapping[str, Any]:
    schema = _ARGUMENTS.get(argument.kind, {"type": "string"})
    choices = {"enum": list(argument.choices)} if argument.choices else {}
    return {**schema, **choices, "description": argument.help}


def _either(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    """The operation of a list that has several actions: arguments and answers of both."""

    def both(name: str, *path: str) -> Mapping[str, Any]:
        found: list[Any] = [one, other]
        for key in path:
            found = [each[key] for each in found]
        return {**found[0].get(name, {}), **found[1].get(name, {})}

    body, answer = ("content", "application/json", "schema"), ("responses", "200")
    takes = {"type": "object", "properties": both("properties", "requestBody", *body)}
    answers = {"type": "object", "properties": both("properties", *answer, *body)}
    merged = _operation(f"{one['summary']} {other['summary']}", answers, one["parameters"])
    merged["requestBody"] = {"content": {"application/json": {"schema": takes}}}
    return merged


def _answer_schema(action: Action) -> Mapping[str, Any]:
    """The schema of an action's answer."""
    if action.answers == MESSAGES:
        items = {"type": "array", "items": {"$ref": "#/components/schemas/message"}}
        following = {"type": ["integer", "null"], "description": "The next message's position, in a topic."}
        return {"type": "object", "properties": {"items": items, "next": following}, "required": ["items"]}
    counts = {name: {"type": "integer"} for name in action.answers}
    texts = {name: {"type": "string"} for name in action.tells}
    return {"type": "object", "properties": {**counts, **texts}, "required": [*counts][:1]}


def _parameter(name: str, place: str, text: str = "") -> Mapping[str, Any]:
    kind = "integer" if name == "limit" else "string"
    more = {"description": text} if text else {}
    return {"name": name, "in": place, "required": place == "path", "schema": {"type": kind}, **more}


def _operation(
    summary: str,
    answer: Mapping[str, Any] | None = None,
    parameters: Sequence[Mapping[str, Any]] = (),
    takes: Mapping[str, Argument] | None = None,
) -> dict[str, Any]:
    content = {"application/json": {"schema": answer or {"type": "object"}}}
    operation: dict[str, Any] = {
        "summary": summary,
        "parameters": list(parameters),
        "responses": {"200": {"description": "Done.", "content": content}, "default": _FAULT},
    }
    if takes is not None:
        schema = {
            "type": "object",
            "properties": {name: _argument_schema(each) for name, each in takes.items()},
            "required": [name for name, each in takes.items() if each.required],
        }
        operation["requestBody"] = {"content": {"application/json": {"schema": schema}}}
    return operation
