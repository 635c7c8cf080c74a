"""`brokers kqmsgq ...`: the protocol's own commands. Each returns what it found; the host shows it."""

import os
from collections.abc import AsyncIterable, AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Annotated, Any

import trio
from cyclopts import Parameter

from kqmsgq.client import Consumer, Message, open_consumer, open_producer
from shared.cli.app import protocol_app
from shared.cli.commands import Remaining, bodies_shown, lost_is_refused, send_given, waiting_is_told
from shared.cli.options import Json, Max, Messages, Raw, Server, Whole, Words, bound_port, flag
from shared.client.dial import Address, Disconnected
from shared.client.nursery import open_nursery
from shared.errors import RemoteProtocolError, UsageError
from shared.plugin import AdminApi, ApiRequest, ServeRequest

app, command = protocol_app(
    "kqmsgq",
    "Queues by name, fanned out from memory to every consumer that subscribes.",
    "serve 8000",
    "consume -q orders",
    "produce -q orders -m hello",
    "consume --all --json | jq .message",
)

PROBE = b"\r\n\r\n(is this a KqueueMsgQ server?)".ljust(60, b".")
"""A name to unsubscribe from, which nobody has subscribed to. It shows what the server speaks.

KqueueMsgQ does nothing and sends nothing; any other protocol answers or closes. For HTTP it has two ends of a
line. Pub/sub finds a wrong type of command in it."""
LOOK_SECONDS = 0.01
"""For what the server has said to the probe before it had read all messages."""


@command("serve 8000", "serve --host 0.0.0.0 --insecure")
def serve(
    port: Annotated[int | None, bound_port(8000)] = None,
) -> ServeRequest:
    """Serve KqueueMsgQ alone, until SIGTERM, SIGINT or the line "exit"."""
    return ServeRequest("kqmsgq", {"kqmsgq": {"port": port}})


@command(
    'produce -q orders -m hello -m "a second one"',
    "seq 1000000 | brokers kqmsgq produce -q numbers",
    "produce -q files --whole < picture.png",
)
async def produce(
    queue: Annotated[str, Parameter(name=("--queue", "-q"), help="The queue.")],
    *words: Words,
    message: Messages = (),
    whole: Whole = False,
    server: Server,
    json: Json = False,
) -> Mapping[str, Any]:
    """Send messages to a queue, and show how many the server has read.

    Only consumers that are subscribed at that moment get them. Exit code 1: the
    server did not take all, for example because no rule allows that to the user.
    """
    name = _named(queue, server)
    done = 0
    with lost_is_refused():
        async with _probed(server) as probe, open_nursery() as nursery:
            nursery.start_soon(_first_words, probe, server)
            async with open_producer(**_place(server)) as producer:
                done = await send_given(
                    lambda bodies: producer.send_many((name, body) for body in bodies),
                    (*words, *message),
                    whole=whole,
                )
            await trio.sleep(LOOK_SECONDS)
            nursery.cancel_scope.cancel()
    return {"queue": queue, "messages": done}


@asynccontextmanager
async def _probed(server: Server) -> AsyncIterator[Consumer]:
    """A consumer that has asked what the server speaks."""
    async with open_consumer(**_place(server)) as consumer:
        await consumer.unsubscribe(PROBE)
        yield consumer


async def _first_words(consumer: Consumer, server: Server) -> list[Message]:
    """Its first messages. Raises Unreachable where the server does not speak KqueueMsgQ."""
    try:
        return await consumer.batch()
    except (Disconnected, RemoteProtocolError) as error:
        address = Address(server.host, server.port, kind="KqueueMsgQ")
        raise address.not_answered(error) from error


@command(
    "consume -q orders -q returns", "consume --all --json", "consume -q files --raw --max 1 > picture.png"
)
async def consume(
    queue: Annotated[
        tuple[str, ...],
        Parameter(name=("--queue", "-q"), help="Queues.", negative="", show_default=False),
    ] = (),
    *,
    all_: Annotated[bool, flag("All queues.", "--all")] = False,
    max_: Max = None,
    raw: Raw = False,
    server: Server,
    json: Json = False,
) -> AsyncIterable[Any]:
    """Show messages as they come, one a line, until interrupted.

    With --json each has its queue beside it.
    """
    if not queue and not all_:
        raise UsageError("--queue", "name at least one queue, or say --all")
    if raw and json:
        raise UsageError("--raw", "is the bytes alone; --json shows more")
    names = [_named(name, server) for name in queue]

    async def shown() -> AsyncIterator[Any]:
        left = Remaining(max_)
        with lost_is_refused():
            async with _probed(server) as consumer:
                if all_:
                    await consumer.subscribe_all()
                if names:
                    await consumer.subscribe(*names)
                async with waiting_is_told(", ".join(queue) or "any queue"):
                    messages = await _first_words(consumer, server)
                while True:
                    for item in _shown(left.of(messages), json=json, raw=raw):
                        yield item
                    if not left:
                        break
                    messages = await consumer.batch()

    return shown()


@command("consumers", "consumers --dropped --json")
def consumers(
    *,
    dropped: Annotated[bool, flag("Only those that lost messages because they did not read.")] = False,
    json: Json = False,
) -> ApiRequest:
    """List the consumers: their subscriptions, what waits for them, what they lost."""

    def ask(api: AdminApi) -> Sequence[Mapping[str, Any]]:
        rows = api.rows("sessions", protocol="kqmsgq")
        return [row for row in rows if row["dropped"] or not dropped]

    return ApiRequest(ask, lists="sessions")


def _place(server: Server) -> dict[str, Any]:
    """The client's arguments with the limits, because a server closes silently on what exceeds its own."""
    return {
        **server.given(),
        "name_bytes_max": server.settings.name_bytes_max,
        "message_bytes_max": server.settings.message_bytes_max,
    }


def _named(queue: str, server: Server) -> bytes:
    """Raises UsageError."""
    name, most = os.fsencode(queue), server.settings.name_bytes_max
    if not name:
        raise UsageError("--queue", "a queue has a name")
    if len(name) > most:
        raise UsageError("--queue", f"a name of {len(name)} bytes: {most} at most (kqmsgq.name_bytes_max)")
    return name


def _shown(messages: Sequence[Message], *, json: bool, raw: bool) -> Sequence[Any]:
    """Messages for the host to show: rows, lines on a terminal, or their bytes."""
    if json:
        return [{"queue": message.queue, "message": message.body} for message in messages]
    return bodies_shown([message.body for message in messages], raw=raw)
