"""`brokers logmq ...`: the protocol's own commands. Each returns what it found; the host shows it."""

import os
import sys
import time
from collections.abc import AsyncIterable, AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from typing import Annotated, Any

import trio
from cyclopts import Parameter

from logmq.client import Client, LogmqError, Record, Unreachable, connect
from shared.cli.app import protocol_app
from shared.cli.commands import Remaining, bodies_shown, line_runs, lost_is_refused
from shared.cli.options import DataDir, Json, Max, Messages, Server, Words, flag
from shared.cli.output_reader import OutputReader
from shared.cli.progress import counting
from shared.errors import UsageError
from shared.plugin import ServeRequest, VerbRequest
from shared.units import moment_ms

app, command = protocol_app(
    "logmq",
    "A log of records on disk for each topic, read by offset.",
    "serve",
    "produce orders hello",
    "consume orders",
    "tail orders --json | jq .message",
)


Topic = Annotated[str, Parameter(name=("--topic", "-t"), help="A topic.")]
TIMES = "30m ago, 1h, 2d; 2026-01-31T12:00 (local unless it says); or Unix milliseconds"
From = Annotated[
    str | None,
    Parameter(name="--from", help="An offset, first (kept), end, or a time, as 1h.", show_default=False),
]
Offsets = Annotated[bool, flag("Show each message's offset beside it.")]


ANSWER_SECONDS = 10.0
"""For the first answer; as long as a connection may take."""


@asynccontextmanager
async def _connected(server: Server) -> AsyncIterator[Client]:
    """A client. A server that cannot be reached, now or later, is a ConnectionRefusedError."""
    with lost_is_refused(Unreachable):
        async with connect(**server.given()) as client:
            # Most verbs wait without a limit, so a server that does not answer is found here.
            await client.check_answers(ANSWER_SECONDS)
            yield client


@command("serve", "serve --port 0 --data-dir /var/lib/logmq")
def serve(
    *,
    port: Annotated[int | None, Parameter(help="Bind this port (8080 unless set); 0 picks one.")] = None,
) -> ServeRequest:
    """Serve LogMQ alone, until SIGTERM, SIGINT or the line "exit"."""
    return ServeRequest("logmq", {"logmq": {"port": port}})


@command('produce orders hello "a second one"', "seq 1000000 | brokers logmq produce numbers --json")
async def produce(
    topic: Topic,
    *words: Words,
    message: Messages = (),
    server: Server,
    json: Json = False,
) -> Sequence[Mapping[str, Any]] | Mapping[str, Any]:
    """Write messages to a topic. A missing topic is made.

    Shows the offset of each message given as an argument. Of standard input it
    shows the number of lines and their first and last offset. Lines are written
    once and in order, even where the connection is lost meanwhile.
    """
    async with _connected(server) as client:
        if given := (*words, *message):
            offsets = await client.produce_many(topic, map(os.fsencode, given))
            return [{"topic": topic, "offset": offset} for offset in offsets]
        return await _produce_lines(client, topic)


async def _produce_lines(client: Client, topic: str) -> Mapping[str, Any]:
    first: int | None = None
    last: int | None = None
    done = size = 0
    with counting("messages") as update:

        def on_written(_: int, offsets: Sequence[int]) -> None:
            nonlocal first, last, done
            first = offsets[0] if first is None else first
            last = offsets[-1]
            done += len(offsets)
            update(done, size)

        async with (
            client.producer(topic, on_written=on_written) as producer,
            aclosing(line_runs(trio.wrap_file(sys.stdin.buffer))) as runs,
        ):
            async for lines in runs:
                for line in lines:
                    size += len(line)
                    await producer.send(line)
    return {"topic": topic, "messages": done, "first": first, "last": last}


@command(
    "consume orders",
    "consume orders --from 128 --max 10 --offsets",
    "consume orders --group billing --commit --follow",
)
async def consume(
    topic: Topic,
    *,
    from_: From = None,
    max_: Max = None,
    group: Annotated[str | None, Parameter(help="Begin where this group has committed.")] = None,
    commit: Annotated[bool, flag("Commit the group's offset once shown.")] = False,
    follow: Annotated[bool, flag("Wait for more at the end.")] = False,
    offsets: Offsets = False,
    server: Server,
    json: Json = False,
) -> AsyncIterable[Any]:
    """Show a topic's messages, one a line, to its end.

    Begins at the first kept message, unless --from or --group says otherwise. With
    --commit into a pipe, a message counts as shown once it is read from the pipe.
    """
    reader = OutputReader()
    if commit and group is None:
        raise UsageError("--commit", "needs a --group whose offset it is")

    async def shown() -> AsyncIterator[Any]:
        left = Remaining(max_)
        async with _connected(server) as client, AsyncExitStack() as stack:
            # With --follow the client's next FETCH waits, and so would requests behind it.
            beside = await stack.enter_async_context(_connected(server)) if commit and follow else client
            start = await _start(client, topic, from_, group, missing=0 if follow else None)
            records = client.records(topic, start, follow=follow)
            while left and (chunk := left.of(await records.chunk())):
                taken: int | None = None
                try:
                    for portion in reader.portions(chunk) if commit else [chunk]:
                        for item in _shown(portion, json=json, offsets=offsets):
                            yield item
                        if commit:
                            await reader.wait_taken()
                            taken = portion[-1].next_offset
                finally:
                    if taken is not None and group is not None:
                        await beside.commit(group, topic, taken)

    return shown()


@command("tail orders", "tail orders --from first --json")
async def tail(
    topic: Topic,
    *,
    from_: From = None,
    max_: Max = None,
    offsets: Offsets = False,
    server: Server,
    json: Json = False,
) -> AsyncIterable[Any]:
    """Show messages as they are written, from the end on, until interrupted."""

    async def shown() -> AsyncIterator[Any]:
        left = Remaining(max_)
        async with _connected(server) as client:
            start = await _start(client, topic, from_ or "end", None, missing=0)
            async with client.tail(topic, start) as records:
                while left:
                    for item in _shown(left.of([await anext(records)]), json=json, offsets=offsets):
                        yield item

    return shown()


@command("topics", "topics --json | jq .topic")
async def topics(*, server: Server, json: Json = False) -> Sequence[Mapping[str, Any]]:
    """List the topics: the first offset that is kept, the end, and the bytes between."""
    async with _connected(server) as client:
        return [
            {"topic": row.name, "first": row.first, "end": row.end, "bytes": row.end - row.first}
            for row in await client.topics()
        ]


@command("offsets orders")
async def offsets(topic: Topic, *, server: Server, json: Json = False) -> Mapping[str, Any]:
    """Show a topic's first offset that is kept, and its end."""
    async with _connected(server) as client:
        found = await client.offsets(topic)
    return {"topic": topic, "first": found.first, "end": found.end}


@command("seek orders 1h", "seek orders 2026-01-31T12:00", "seek orders 1769860800000 --json | jq .offset")
async def seek(
    topic: Topic,
    when: Annotated[str, Parameter(help=f"A time: {TIMES}.")],
    *,
    server: Server,
    json: Json = False,
) -> Mapping[str, Any]:
    """Find the offset of the first message at or after a time."""
    unix_ms = _time("WHEN", when)
    async with _connected(server) as client:
        return {"topic": topic, "offset": await client.seek(topic, unix_ms)}


@command("groups", "groups --topic orders --json")
def groups(
    *,
    topic: Annotated[str | None, Parameter(help="Only of this topic.")] = None,
    group: Annotated[str | None, Parameter(help="Only of this group.")] = None,
    data_dir: DataDir = None,
    json: Json = False,
) -> VerbRequest:
    """List the groups: what they have committed, and how far they are behind.

    This is no request of the protocol: the server is asked over the control socket
    in its data folder.
    """
    return VerbRequest("logmq", "groups", {"topic": topic, "group": group}, data_dir)


@command("delete orders")
async def delete(topic: Topic, *, server: Server, json: Json = False) -> Mapping[str, Any]:
    """Delete a topic for good: its messages, its groups' offsets and its writers."""
    async with _connected(server) as client:
        await client.delete(topic)
    return {"topic": topic, "deleted": True}


def _time(argument: str, said: str) -> int:
    """A time in Unix milliseconds. Raises UsageError."""
    try:
        return moment_ms(said, time.time_ns() // 1_000_000)
    except ValueError as error:
        raise UsageError(argument, str(error)) from None


async def _start(
    client: Client, topic: str, said: str | None, group: str | None, *, missing: int | None
) -> int:
    """The offset to begin at. `missing`: that of a topic that does not exist (None: an error)."""
    if said is not None and said.isdigit():
        return int(said)
    since = None if said in (None, "first", "end") else _time("--from", said)
    try:
        if since is not None:
            return await client.seek(topic, since)
        found = await client.offsets(topic)
        if said is None and group is not None:
            committed = await client.committed(group, topic)
            if committed is not None:
                return max(committed, found.first)  # retention may have dropped what is before
    except LogmqError as error:
        if error.code == "NO_TOPIC" and missing is not None:
            return missing
        raise
    return found.end if said == "end" else found.first


def _shown(records: Sequence[Record], *, json: bool, offsets: bool) -> Sequence[Any]:
    """Records for the host to show: rows, lines on a terminal, or their bytes."""
    if json or offsets:
        return [{"offset": record.offset, "message": record.payload} for record in records]
    return bodies_shown(record.payload for record in records)
