"""Commands made from what the API declares: lists of a kind, and actions on an object."""

import inspect
from collections.abc import Callable, Collection, Mapping, Sequence
from keyword import iskeyword
from typing import Annotated, Any, Literal

from cyclopts import Parameter

from shared.actions import DISCARD, MOVE, PAUSE, PEEK, PEEK_MAX, REDRIVE, REQUEUE, RESUME
from shared.cli.commands import keyed
from shared.cli.confirm import DryRun, destroys
from shared.cli.options import Json
from shared.errors import UsageError
from shared.objects import KINDS, MESSAGES, Argument, Declaration
from shared.plugin import AdminApi, ApiRequest

QueueName = Annotated[str, Parameter(name=("--queue", "-q"), help="The queue.")]


def _is_shown(_: type, number: int | None) -> None:
    if number is not None and not 1 <= number <= PEEK_MAX:
        raise ValueError(f"1 to {PEEK_MAX}")


ARGUMENTS: Mapping[str, Any] = {
    "limit": Annotated[
        int | None,
        Parameter(name=("--max", "-n"), help="Messages at most.", validator=_is_shown),
    ]
}
"""The flags of arguments that are no plain ones."""
Unset = Annotated[
    tuple[str, ...],
    Parameter(
        name="--unset",
        help="Take back what a flag has set: its name.",
        negative="",
        show_default=False,
    ),
]
FIRST_SHOWN = ("position", "time", "bytes", "text", "base64")
"""Columns of messages that come first: the rest may not fit on a terminal."""


def listed(kind: str, protocol: str, **query: str | None) -> ApiRequest:
    """The result of a command that lists a protocol's objects; `query` narrows the list."""
    narrowed = {name: value for name, value in query.items() if value is not None}
    return ApiRequest(lambda api: api.rows(kind, protocol=protocol, **narrowed), kind)


def action_command(
    protocol: str,
    kind: str,
    declared: Declaration,
    parts: Mapping[str, Any],
    *,
    question: str = "",
    makes: bool = False,
    unsets: bool = False,
) -> Callable[..., ApiRequest]:
    """The command that runs an action on one object, which the `parts` name: parameter to its type.

    `question`: what is asked on a terminal first (`destroys`). `makes`: it makes the object, whose name is
    the action's argument `name`. `unsets`: arguments may be null.
    """
    named = inspect.Parameter.POSITIONAL_OR_KEYWORD
    takes = {name: each for name, each in declared.takes.items() if not (makes and name == "name")}
    signature = inspect.Signature(
        [
            *(inspect.Parameter(name, named, annotation=type_) for name, type_ in parts.items()),
            *(
                _flag(_parameter(name), ARGUMENTS.get(name) or _plain(name, each), None)
                for name, each in takes.items()
            ),
            *([_flag("unset", Unset, ())] if unsets else []),
            *([_flag("dry_run", DryRun, False)] if declared.dry_runs else []),
            _flag("json", Json, False),
        ],
        return_annotation=ApiRequest,
    )

    def command(*positional: Any, **keywords: Any) -> ApiRequest:
        given = signature.bind(*positional, **keywords).arguments
        name = {part: given[part] for part in parts}
        path = (kind, *([protocol] if KINDS[kind].by_protocol else []), *name.values())
        said = {each: _value(each, argument, given.get(_parameter(each))) for each, argument in takes.items()}
        arguments = {each: value for each, value in said.items() if value is not None}
        arguments |= {_argument(flag, takes): None for flag in given.get("unset", ())}
        dry_run = bool(given.get("dry_run"))

        def ask(api: AdminApi) -> Any:
            if declared.answers == MESSAGES:
                return _messages(api.get(*path, declared.name, **arguments)["items"])
            if makes:
                (own,) = name.values()
                return {**name, **api.post(kind, dry_run=dry_run, **{"name": own, **arguments})}
            if declared.name == "delete":
                return {**name, **api.delete(*path, dry_run=dry_run)}
            return {**name, **api.post(*path, declared.name, dry_run=dry_run, **arguments)}

        return ApiRequest(ask)

    command.__doc__ = declared.help
    command.__signature__ = signature  # type: ignore[attr-defined]
    return destroys(question)(command) if question else command


def queue_commands(add: Callable[..., Callable[[Any], Any]], protocol: str) -> None:
    """Add the commands of a queue's actions to a protocol's app. `add`: the decorator of its commands."""

    def made(declared: Declaration) -> Callable[..., ApiRequest]:
        return action_command(protocol, "queues", declared, {"queue": QueueName})

    add(
        "peek jobs", "peek -q jobs -n 5 --json | jq -r .text", "peek jobs --contains 'order 42'", name="peek"
    )(made(PEEK))
    add("redrive dead --dry-run", "redrive dead --age 10m --rate 100/s", name="redrive")(made(REDRIVE))
    add("move jobs --to others", "move jobs --to others --max 5 --dry-run", name="move")(made(MOVE))
    add("discard jobs --position 7", name="discard")(made(DISCARD))
    add("requeue jobs --position 7", name="requeue")(made(REQUEUE))
    add("pause jobs", name="pause")(made(PAUSE))
    add("resume jobs", name="resume")(made(RESUME))


def _parameter(name: str) -> str:
    """The name of an argument as a parameter's."""
    return f"{name}_" if iskeyword(name) else name.replace("-", "_")


def _plain(name: str, argument: Argument) -> Any:
    """The type of an argument's flag."""
    type_: Any = {"number": int, "flag": bool, "table": tuple[str, ...]}.get(argument.kind, str)
    if argument.choices:
        type_ = Literal[tuple(argument.choices)]
    help_ = argument.help[:1].upper() + argument.help[1:].rstrip(".") + "."
    if argument.kind == "table":
        help_ += " KEY=VALUE; repeatable."
    negative = "" if argument.kind == "table" else None
    how = Parameter(name=_flag_name(name), help=help_, show_default=False, negative=negative)
    return Annotated[type_ | None, how]


def _value(name: str, argument: Argument, given: Any) -> Any:
    """An argument as the API takes it. Raises UsageError."""
    return keyed(_flag_name(name), given) if argument.kind == "table" and given else given


def _flag_name(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _argument(flag: str, takes: Collection[str]) -> str:
    """The argument of a flag that is named. Raises UsageError."""
    names = {name.replace("_", "-"): name for name in takes}
    if flag not in names:
        raise UsageError("--unset", f"{flag!r} is none of {', '.join(names)}")
    return names[flag]


def _flag(name: str, type_: Any, default: Any) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=type_)


def _messages(rows: Sequence[Mapping[str, Any]]) -> Sequence[Mapping[str, Any]]:
    return [{**{name: row[name] for name in FIRST_SHOWN if name in row}, **row} for row in rows]
