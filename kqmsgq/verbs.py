"""`brokers kqmsgq ...`: the protocol's own commands. Each returns what it found; the host shows it."""

import os
from collections.abc import AsyncIterable, AsyncIterator, Mapping, Sequence
from typing import Annotated, Any

from cyclopts import App, Parameter

from kqmsgq.client import Message, open_consumer, open_producer
from shared.commands import bodies_shown, lost_is_refused, send_given
from shared.errors import UsageError
from shared.options import DataDir, Json, Max, Messages, Raw, Server, Whole, Words, flag
from shared.plug import ServeRequest, VerbRequest

app = App(
    name="kqmsgq",
    help="Queues by name, fanned out from memory to every consumer that subscribes.",
    help_epilogue="""Examples:

    brokers kqmsgq serve 8000
    brokers kqmsgq consume -q orders
    brokers kqmsgq produce -q orders -m hello
    brokers kqmsgq consume --all --json | jq .message""",
    help_format="plaintext",
)


@app.command(
    help_epilogue="""Examples:

    brokers kqmsgq serve 8000
    brokers kqmsgq serve --host 0.0.0.0 --insecure"""
)
def serve(
    port: Annotated[int | None, Parameter(help="Bind this port (8000 unless set); 0 picks one.")] = None,
) -> ServeRequest:
    """Serve KqueueMsgQ alone, until SIGTERM, SIGINT or the line "exit"."""
    return ServeRequest("kqmsgq", {"kqmsgq": {"port": port}})


@app.command(
    help_epilogue="""Examples:

    brokers kqmsgq produce -q orders -m hello -m "a second one"
    seq 1000000 | brokers kqmsgq produce -q numbers
    brokers kqmsgq produce -q files --whole < picture.png"""
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

    Who is subscribed at that moment gets them; nobody else ever will.
    """
    name = os.fsencode(queue)
    with lost_is_refused():
        async with open_producer(server.host, server.port, ssl_context=server.ssl_context()) as producer:
            done = await send_given(
                lambda bodies: producer.send_many((name, body) for body in bodies),
                (*words, *message),
                whole=whole,
            )
    return {"queue": queue, "messages": done}


@app.command(
    help_epilogue="""Examples:

    brokers kqmsgq consume -q orders -q returns
    brokers kqmsgq consume --all --json
    brokers kqmsgq consume -q files --raw --max 1 > picture.png"""
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

    async def shown() -> AsyncIterator[Any]:
        left = max_
        with lost_is_refused():
            async with open_consumer(server.host, server.port, ssl_context=server.ssl_context()) as consumer:
                if all_:
                    await consumer.subscribe_all()
                if queue:
                    await consumer.subscribe(*map(os.fsencode, queue))
                while left is None or left > 0:
                    messages = await consumer.batch()
                    if left is not None:
                        messages = messages[:left]
                        left -= len(messages)
                    for item in _shown(messages, json=json, raw=raw):
                        yield item

    return shown()


@app.command(
    help_epilogue="""Examples:

    brokers kqmsgq consumers
    brokers kqmsgq consumers --dropped --json"""
)
def consumers(
    *,
    dropped: Annotated[bool, flag("Only those that lost messages because they did not read.")] = False,
    data_dir: DataDir = None,
    json: Json = False,
) -> VerbRequest:
    """List the consumers: their subscriptions, what waits for them, what they lost.

    The wire has no word for it: the server is asked over the control socket in
    its data folder.
    """
    return VerbRequest("kqmsgq", "consumers", {"dropped": dropped}, data_dir)


def _shown(messages: Sequence[Message], *, json: bool, raw: bool) -> Sequence[Any]:
    """Messages as the host shows them: rows, lines on a terminal, or just their bytes."""
    if json:
        return [{"queue": message.queue, "message": message.body} for message in messages]
    return bodies_shown([message.body for message in messages], raw=raw)
