"""`brokers dmp ...`: the protocol's own commands. Each returns what it found; the host shows it."""

import os
from collections.abc import AsyncIterable, AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Annotated, Any, Literal

import attrs
from cyclopts import Parameter

from dmp.actions import CHANGE
from dmp.amqp_client import Client, Deliveries, Delivery, open_amqp
from dmp.client import Message, open_feed
from dmp.data_types import SHORT_BYTES_MAX
from dmp.shown_properties import read
from shared.actions import CANCEL, JOB, PURGE, RESCHEDULE
from shared.cli.app import protocol_app
from shared.cli.commands import Remaining, bodies_shown, keyed, lost_is_refused, send_given, waiting_is_told
from shared.cli.confirm import DryRun, destroys
from shared.cli.objects import QueueName, action_command, listed, queue_commands
from shared.cli.options import Json, Max, Messages, Raw, Server, Timeout, Whole, Words, bound_port, flag
from shared.cli.output_reader import OutputReader
from shared.errors import NotThere, UsageError
from shared.objects import BadArgument
from shared.plugin import AdminApi, ApiRequest, ServeRequest

AMQ_DEFAULT = "amq.default"
"""What lists call the default exchange, which has no name."""
PREFETCH = 64

app, command = protocol_app(
    "dmp",
    "AMQP 0-9-1 exchanges and queues, and bulk messages over leased connections.",
    "serve",
    "declare queue jobs",
    "bind jobs amq.topic -k 'orders.#'",
    "consume jobs --max 1",
    "get mine --bind amq.topic:stocks.#",
    "put amq.topic -k stocks.acme -m 17.20",
    "queues --json",
)


Key = Annotated[str, Parameter(name=("--key", "-k"), help="The routing key.", show_default=False)]


def _given(server: Server) -> dict[str, Any]:
    """The arguments of the client's functions. BROKERS_DMP_USER and BROKERS_DMP_PASSWORD are the login where
    neither a flag nor a common variable gives one.
    """
    user, password = os.environ.get("BROKERS_DMP_USER"), os.environ.get("BROKERS_DMP_PASSWORD")
    if not (user or password) or server.user or server.login():
        return server.given()
    return {
        **attrs.evolve(server, user=None).given(),
        "user": user or "guest",
        "password": password or "guest",
    }


@command("serve", "serve 5672 --host 0.0.0.0 --insecure")
def serve(
    port: Annotated[int | None, bound_port(5672)] = None,
) -> ServeRequest:
    """Serve AMQP 0-9-1 and DMP alone, until SIGTERM, SIGINT or the line "exit"."""
    return ServeRequest("dmp", {"dmp": {"port": port}})


@command(
    "put amq.topic -k stocks.acme -m 17.20",
    "seq 1000000 | brokers dmp put amq.fanout",
    "put files -k picture --whole < picture.png",
    "put '' -k jobs -m 'order 42'",
    "put '' -k calls 'call Ann' --header x-delay=3600000",
)
async def put(
    sink: Annotated[str, Parameter(name=("--exchange", "--sink"), help="The exchange, which must be there.")],
    *words: Words,
    key: Key = "",
    message: Messages = (),
    header: Annotated[
        tuple[str, ...],
        Parameter(
            help="NAME=VALUE, of each message; a value that is JSON is read as JSON; repeatable.",
            negative="",
            show_default=False,
        ),
    ] = (),
    whole: Whole = False,
    server: Server,
    json: Json = False,
) -> Mapping[str, Any]:
    """Publish messages, and show how many the server has confirmed.

    It is an error where no queue takes one: the server may have those before it.
    The exchange '' (amq.default) brings a message to the queue that --key names.
    """
    name = _short("--key", os.fsencode(key))
    exchange = b"" if sink == AMQ_DEFAULT else _short("--exchange", sink.encode())
    headers = {"properties": {"headers": keyed("--header", header)}} if header else {}
    try:
        properties = read(headers, persistent=True)
    except BadArgument as error:
        raise UsageError("--header", str(error)) from None
    async with _amqp(server) as client:
        done = await send_given(
            lambda bodies: client.publish_many(
                [Message(exchange, name, body, properties) for body in bodies], mandatory=True
            ),
            (*words, *message),
            whole=whole,
        )
    return {"sink": sink, "messages": done}


@command(
    "get mine --bind amq.topic:stocks.# amq.fanout:",
    "get mine --bind amq.topic:# --json | jq .key",
    "get mine --bind files:picture --raw --max 1 > picture.png",
)
async def get(
    feed: Annotated[
        str,
        Parameter(
            name=("--queue", "-q", "--feed"),
            help="A name for the queue, which is made, and deleted when the command ends.",
        ),
    ],
    *,
    bind: Annotated[
        tuple[str, ...] | None,
        Parameter(help="EXCHANGE:KEY, one or more.", negative="", consume_multiple=True, show_default=False),
    ] = None,
    max_: Max = None,
    raw: Raw = False,
    server: Server,
    json: Json = False,
) -> AsyncIterable[Any]:
    """Show messages as they come, one a line, until interrupted.

    Without --bind they are those that are sent to the queue by its name. With
    --json each has its exchange and key beside it. "consume" reads a queue that
    is there.
    """
    if raw and json:
        raise UsageError("--raw", "is the bytes alone; --json shows more")
    if bind == ():
        raise UsageError("--bind", "needs EXCHANGE:KEY behind it")
    _short("--queue", feed.encode())
    bindings = [_binding(word) for word in bind or ()]

    async def shown() -> AsyncIterator[Any]:
        left = Remaining(max_)
        with lost_is_refused():
            async with (
                open_feed(bindings, queue=feed, **_given(server)) as opened,
                waiting_is_told(feed) as came,
            ):
                while left:
                    messages = left.of(await opened.batch())
                    came()
                    for item in _shown(messages, json=json, raw=raw):
                        yield item

    return shown()


@command(
    "consume jobs --max 1",
    "consume jobs --timeout 1 --json | jq -r .message",
    "consume pictures --max 1 --raw > picture.png",
)
async def consume(
    queue: QueueName,
    *,
    max_: Max = None,
    timeout: Timeout = None,
    raw: Raw = False,
    server: Server,
    json: Json = False,
) -> AsyncIterable[Any]:
    """Take messages out of a queue that exists, and show them, one a line, until interrupted.

    Each is acknowledged once it is shown; in a pipe, once it is read. All others
    go back to the queue at the end. With --json each has its exchange and key.
    """
    if raw and json:
        raise UsageError("--raw", "is the bytes alone; --json shows more")
    left, reader = Remaining(max_), OutputReader()
    prefetch = PREFETCH if max_ is None else min(max_, PREFETCH)

    async def shown() -> AsyncIterator[Any]:
        async with (
            _amqp(server, queue) as client,
            client.consume(queue, prefetch=prefetch) as deliveries,
            waiting_is_told(queue) as came,
        ):
            while left and (taken := await left.within(timeout, _next(deliveries))):
                came()
                for portion in reader.portions(taken):
                    for item in _shown(portion, json=json, raw=raw):
                        yield item
                    await reader.wait_taken()
                    for delivery in portion:
                        await delivery.ack()

    return shown()


async def _next(deliveries: Deliveries) -> Sequence[Delivery]:
    return [await anext(deliveries)]


What = Annotated[Literal["queue", "exchange"], Parameter(help="Which of the two.")]
Name = Annotated[str, Parameter(help="Its name.")]
ExchangeName = Annotated[str, Parameter(name=("--exchange", "-e"), help="The exchange.")]
Arguments = Annotated[
    tuple[str, ...],
    Parameter(
        name=("--argument", "-a"),
        help="KEY=VALUE; a value that is JSON is read as JSON; repeatable.",
        negative="",
        show_default=False,
    ),
]


@command("declare queue jobs -a x-dead-letter-exchange=dead", "declare exchange logs --type topic")
def declare(
    what: What,
    name: Name,
    *,
    type_: Annotated[
        Literal["direct", "topic", "fanout", "headers"] | None,
        Parameter(name="--type", help="Of an exchange; direct unless said.", show_default=False),
    ] = None,
    transient: Annotated[bool, flag("Of an exchange: it ends with the server.")] = False,
    auto_delete: Annotated[bool, flag("It is deleted when nobody uses it any more.")] = False,
    argument: Arguments = (),
    json: Json = False,
) -> ApiRequest:
    """Make a durable queue, or an exchange, durable without --transient.

    One that is there and is the same stays as it is; one that differs is an error.
    """
    arguments = keyed("--argument", argument)
    shown = {what: name, "declared": True}
    if what == "queue":
        for option, given in (("--type", type_), ("--transient", transient)):
            if given:
                raise UsageError(option, "is for exchanges")
        row = {"name": name, "auto_delete": auto_delete, "arguments": arguments}
        return ApiRequest(lambda api: _defined(api, "queues", row) and shown)
    kind: dict[str, Any] = {"durable": not transient, "auto_delete": auto_delete}
    if "alternate-exchange" in arguments:
        kind["alternate"] = arguments.pop("alternate-exchange")
    if arguments:
        raise UsageError("--argument", f"exchanges have no {next(iter(arguments))}")
    return ApiRequest(lambda api: api.post("exchanges", name=name, type=type_ or "direct", **kind) and shown)


def _defined(api: AdminApi, section: str, row: Mapping[str, Any]) -> Mapping[str, Any]:
    """Make what a row of definitions describes. Raises NotThere if it cannot be made."""
    document: dict[str, Any] = {section: [{"protocol": "dmp", **row}]}
    answer: Mapping[str, Any] = api.post("definitions", **document)
    if answer["left_out"]:
        raise NotThere("; ".join(answer["told"]))
    return answer


@command("delete queue jobs", "delete exchange logs", "delete queue jobs --dry-run")
@destroys("delete {what} {name}, with its bindings and messages")
def delete(what: What, name: Name, *, dry_run: DryRun = False, json: Json = False) -> ApiRequest:
    """Delete a queue or an exchange, with its bindings and messages, for good."""
    shown = {what: name, "deleted": not dry_run}

    def ask(api: AdminApi) -> Mapping[str, Any]:
        if what == "exchange":
            api.delete("exchanges", name, dry_run=dry_run)
            return shown
        return {**shown, "messages": api.delete("queues", "dmp", name, dry_run=dry_run)["messages"]}

    return ApiRequest(ask)


BoundTo = Annotated[
    Literal["queue", "exchange"],
    Parameter(help="What is bound: QUEUE is a queue, or the name of another exchange."),
]


@command(
    "bind jobs amq.topic -k 'orders.#'",
    "bind both amq.headers -a x-match=all -a kind=order",
    "bind copies amq.topic -k '#' --to exchange",
)
def bind(
    queue: QueueName,
    exchange: ExchangeName,
    *,
    key: Key = "",
    argument: Arguments = (),
    to: BoundTo = "queue",
    json: Json = False,
) -> ApiRequest:
    """Have a queue, or an exchange, take what comes to an exchange with this key."""
    place = {_ENDS[to]: queue, "exchange": exchange, "key": key}
    row: dict[str, Any] = {**place, "arguments": keyed("--argument", argument)}
    return ApiRequest(lambda api: api.post("bindings", **row) and {**place, "bound": True})


@command("unbind jobs amq.topic -k 'orders.#'", "unbind copies amq.topic -k '#' --to exchange")
def unbind(
    queue: QueueName,
    exchange: ExchangeName,
    *,
    key: Key = "",
    argument: Arguments = (),
    to: BoundTo = "queue",
    json: Json = False,
) -> ApiRequest:
    """Remove the binding with this key and these arguments."""
    arguments = keyed("--argument", argument)
    shown = {_ENDS[to]: queue, "exchange": exchange, "key": key, "bound": False}

    def ask(api: AdminApi) -> Mapping[str, Any]:
        api.get(*(("queues", "dmp", queue) if to == "queue" else ("exchanges", queue)))
        api.get("exchanges", exchange)
        for row in api.rows("bindings", exchange=exchange):
            if (row[_ENDS[to]], row["key"], row["arguments"]) == (queue, key, arguments):
                api.delete("bindings", row["id"])
        return shown

    return ApiRequest(ask)


_ENDS: Mapping[str, str] = {"queue": "queue", "exchange": "to_exchange"}
"""How the API calls what a binding leads to."""


command("purge jobs", "purge jobs --dry-run", name="purge")(
    action_command(
        "dmp", "queues", PURGE, {"queue": QueueName}, question="delete all messages of queue {queue}"
    )
)


@command("bindings", "bindings --queue jobs --json")
def bindings(
    *,
    queue: Annotated[str | None, Parameter(name=("--queue", "-q"), help="Only to this queue.")] = None,
    exchange: Annotated[
        str | None, Parameter(name=("--exchange", "-e"), help="Only of this exchange.")
    ] = None,
    json: Json = False,
) -> ApiRequest:
    """List the bindings: from which exchange, under which key, to which queue or exchange."""
    wanted = {"queue": queue, "exchange": exchange}
    query = {name: value for name, value in wanted.items() if value is not None}

    def ask(api: AdminApi) -> Sequence[Mapping[str, Any]]:
        rows = api.rows("bindings", protocol="dmp", **query)
        return [{name: row[name] for name in BINDING_COLUMNS} for row in rows]

    return ApiRequest(ask)


BINDING_COLUMNS = ("exchange", "key", "queue", "to_exchange", "arguments")


@asynccontextmanager
async def _amqp(server: Server, queue: str = "") -> AsyncIterator[Client]:
    """An AMQP client. Raises UsageError where the queue's name is too long, and what the client raises."""
    _short("QUEUE", queue.encode())
    with lost_is_refused():
        async with open_amqp(**_given(server)) as client:
            yield client


queue_commands(command, "dmp")
command("change jobs --x-max-length 1000 --dry-run", "change jobs --unset x-max-length", name="change")(
    action_command("dmp", "queues", CHANGE, {"queue": QueueName}, unsets=True)
)
for declared, example in (
    (JOB, "job mails --dedup mail-41 --json"),
    (CANCEL, "cancel mails --dedup mail-41"),
    (RESCHEDULE, "reschedule mails --dedup mail-41 --delay 1h"),
):
    command(example, name=declared.name)(action_command("dmp", "queues", declared, {"queue": QueueName}))


@command("leases", "leases --json")
def leases(*, json: Json = False) -> ApiRequest:
    """List the leases that are given and not used yet: their targets and ages.

    The leases themselves, which are secrets, are not shown.
    """
    return listed("leases", "dmp")


@command("queues", "queues --json")
def queues(*, json: Json = False) -> ApiRequest:
    """List the queues of the running server, with the columns of the API."""
    return listed("queues", "dmp")


@command("exchanges", "exchanges --json")
def exchanges(*, json: Json = False) -> ApiRequest:
    """List the exchanges of the running server: types and bindings."""
    return listed("exchanges", "dmp")


def _binding(said: str) -> tuple[str, str]:
    """EXCHANGE:KEY. The last colon divides it: an exchange's name may have colons, the key may not."""
    exchange, colon, key = said.rpartition(":")
    if not colon:
        raise UsageError("--bind", f"{said!r} is not EXCHANGE:KEY")
    _short("--bind", exchange.encode())
    _short("--bind", key.encode())
    return exchange, key


def _short(argument: str, name: bytes) -> bytes:
    """The name, if it fits a short string of the wire. Raises UsageError."""
    if len(name) > SHORT_BYTES_MAX:
        raise UsageError(argument, f"a name of {len(name)} bytes: {SHORT_BYTES_MAX} at most")
    return name


def _shown(messages: Sequence[Message | Delivery], *, json: bool, raw: bool) -> Sequence[Any]:
    """Messages as the host shows them: rows, lines on a terminal, or just their bytes."""
    if json:
        return [
            {"exchange": message.exchange, "key": message.key, "message": message.body}
            for message in messages
        ]
    return bodies_shown([message.body for message in messages], raw=raw)
