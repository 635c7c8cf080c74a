"""`brokers logmq ...`: the protocol's own commands. Each returns what it found; the host shows it."""

import os
import time
from base64 import b64decode
from collections import deque
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from functools import partial
from typing import Annotated, Any, TypeAlias

import trio
from cyclopts import App, Parameter

from logmq.actions import CHANGE, CREATE
from logmq.client import Client, LogmqError, Record, Unreachable, connect
from shared.actions import FORGET
from shared.cli.app import examples, protocol_app
from shared.cli.commands import (
    Remaining,
    StandardInput,
    bodies_shown,
    counting_input,
    line_runs,
    lost_is_refused,
    warn,
)
from shared.cli.confirm import DryRun, destroys
from shared.cli.objects import action_command, listed
from shared.cli.options import Json, Max, Messages, Server, Words, bound_port, flag, speaks_for
from shared.cli.output_reader import OutputReader
from shared.errors import BrokerError, UsageError
from shared.plugin import AdminApi, ApiRequest, ServeRequest
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
TopicPlace: TypeAlias = tuple[str, int]
"""A place in a topic: `first` or `end`, or `offset`, `last` (so many messages) or `time` and its number."""
From = Annotated[
    str | None,
    Parameter(
        name="--from", help="An offset, first (kept), end, last:N, or a time, as 1h.", show_default=False
    ),
]
Offsets = Annotated[bool, flag("Show each message's offset beside it.")]

COMMIT_SECONDS = 5.0
"""How often --commit commits while a reader takes what is fetched."""
LAST_MAX = 1_000_000
"""Messages of `last:N`: all their offsets are held in memory."""
BACK_BYTES = 256 * 1024
"""The last messages are first looked for in so many bytes before the end, then in four times as many."""
API_RECORDS = 100
"""Messages that the API is asked for at once."""


class CutShort(BrokerError):
    """The API shows only the beginning of a message."""


@asynccontextmanager
async def _connected(server: Server) -> AsyncIterator[Client]:
    """A client. A server that cannot be reached, now or later, is a ConnectionRefusedError."""
    with lost_is_refused(Unreachable):
        async with connect(**server.given()) as client:
            # Most commands wait without a limit, so a server that does not answer is found here.
            await client.check_answers()
            yield client


@command("serve", "serve --port 0 --data-dir /var/lib/logmq")
def serve(
    port: Annotated[int | None, bound_port(8080)] = None,
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
    with counting_input() as update:

        def on_written(_: int, offsets: Sequence[int]) -> None:
            nonlocal first, last, done
            first = offsets[0] if first is None else first
            last = offsets[-1]
            done += len(offsets)
            update(done, size)

        async with (
            client.producer(topic, on_written=on_written) as producer,
            aclosing(line_runs(StandardInput())) as runs,
        ):
            async for lines in runs:
                for line in lines:
                    size += len(line)
                    await producer.send(line)
    return {"topic": topic, "messages": done, "first": first, "last": last}


@command(
    "consume orders",
    "consume orders --from 128 --max 10 --offsets",
    "consume orders --from last:10",
    "consume orders --group billing --commit --follow",
    "consume orders --from 1h --url https://broker:15800",
)
@speaks_for("commit", "follow")
async def consume(
    topic: Topic,
    *,
    from_: From = None,
    max_: Max = None,
    group: Annotated[str | None, Parameter(help="Begin where this group has committed.")] = None,
    commit: Annotated[bool, flag("Commit the group's offset once shown.")] = False,
    follow: Annotated[bool, flag("Wait for more at the end.")] = False,
    offsets: Offsets = False,
    server: Server | None,
    json: Json = False,
) -> AsyncIterable[Any] | ApiRequest:
    """Show a topic's messages, one a line, to its end.

    Begins at the first kept message, unless --from or --group says otherwise. With
    --commit into a pipe, a message counts as shown once it is read from the pipe.
    The commit is made at least every 5 s, and at the end, also at Ctrl-C and
    SIGTERM.
    """
    reader = OutputReader()
    if commit and group is None:
        raise UsageError("--commit", "needs a --group whose offset it is")
    place = None if from_ is None else _place("--from", from_)
    if server is None:
        return _through_api(topic, place, group, Remaining(max_), json=json, offsets=offsets)

    async def shown() -> AsyncIterator[Any]:
        left = Remaining(max_)
        async with _connected(server) as client, AsyncExitStack() as stack:
            # With --follow the client's next FETCH waits, and so would requests behind it.
            beside = await stack.enter_async_context(_connected(server)) if commit and follow else client
            start = await _start(client, topic, place, group, missing=0 if follow else None)
            records = client.records(topic, start, follow=follow)
            committed = taken = start
            commit_at = trio.current_time() + COMMIT_SECONDS

            async def commit_taken() -> None:
                nonlocal committed, commit_at
                if taken != committed and group is not None:
                    await beside.commit(group, topic, taken)
                    committed = taken
                commit_at = trio.current_time() + COMMIT_SECONDS

            try:
                while left and (chunk := left.of(await records.chunk())):
                    if not commit:
                        for item in _shown(chunk, json=json, offsets=offsets):
                            yield item
                        continue
                    for portion in reader.portions(chunk):
                        for item in _shown(portion, json=json, offsets=offsets):
                            yield item
                        while not await reader.was_taken(commit_at):
                            await commit_taken()
                        taken = portion[-1].next_offset
                    await commit_taken()
            finally:
                await commit_taken()

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
    place = _place("--from", from_ or "end")

    async def shown() -> AsyncIterator[Any]:
        left = Remaining(max_)
        async with _connected(server) as client:
            start = await _start(client, topic, place, None, missing=0)
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
        bounds = await client.offsets(topic)
    return {"topic": topic, "first": bounds.first, "end": bounds.end}


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


groups_app = App(
    name="groups",
    help_format="plaintext",
    help_epilogue=examples(
        "brokers logmq",
        "groups",
        "groups --topic orders --json",
        "groups reset billing orders first",
        "groups delete billing orders",
    ),
)
app.command(groups_app)


@groups_app.default
def groups(
    *,
    topic: Annotated[str | None, Parameter(help="Only of this topic.")] = None,
    group: Annotated[str | None, Parameter(help="Only of this group.")] = None,
    json: Json = False,
) -> ApiRequest:
    """List the groups: what they have committed, and how far they are behind."""
    return listed("groups", "logmq", topic=topic, group=group)


Group = Annotated[str, Parameter(help="A group.")]


@groups_app.command(
    help_epilogue=examples(
        "brokers logmq",
        "groups reset billing orders first",
        "groups reset billing orders 30m --dry-run",
        "groups reset billing orders last:100",
    )
)
def reset(
    group: Group,
    topic: Topic,
    where: Annotated[
        str,
        Parameter(name=("--to", "--where"), help="An offset, first (kept), end, last:N, or a time, as 1h."),
    ],
    *,
    dry_run: DryRun = False,
    json: Json = False,
) -> ApiRequest:
    """Set where a group goes on in a topic."""
    place = _place("--to", where)

    def ask(api: AdminApi) -> Mapping[str, Any]:
        arguments = _for_api(place, lambda: api.get("topics", topic))
        answer = api.post("groups", group, topic, "reset", dry_run=dry_run, **arguments)
        return {"group": group, "topic": topic, **answer}

    return ApiRequest(ask)


groups_app.command(
    action_command(
        "logmq",
        "groups",
        FORGET,
        {"group": Group, "topic": Topic},
        question="forget what group {group} has committed in topic {topic}",
    ),
    name="delete",
    help_epilogue=examples("brokers logmq", "groups delete billing orders --dry-run"),
)


command("create orders --retention-seconds 86400", "create audit --durability always", name="create")(
    action_command("logmq", "topics", CREATE, {"topic": Topic}, makes=True)
)
command("change orders --retention-bytes 0", "change orders --unset retention-bytes", name="change")(
    action_command("logmq", "topics", CHANGE, {"topic": Topic}, unsets=True)
)


@command("trim orders 1048576 --dry-run", "trim orders end")
@destroys("drop all messages of topic {topic} below {offset}")
def trim(
    topic: Topic,
    offset: Annotated[
        str,
        Parameter(name=("--offset", "--to"), help="The first offset to keep; end keeps nothing."),
    ],
    *,
    dry_run: DryRun = False,
    json: Json = False,
) -> ApiRequest:
    """Drop a topic's messages below an offset, for good. Other offsets stay as they are."""
    if offset != "end" and not _is_number(offset):
        raise UsageError("OFFSET", f"{offset!r} is neither a number nor the word end")

    def ask(api: AdminApi) -> Mapping[str, Any]:
        first = api.get("topics", topic)["end"] if offset == "end" else int(offset)
        return {"topic": topic, **api.post("topics", topic, "trim", dry_run=dry_run, offset=first)}

    return ApiRequest(ask)


@command("delete orders", "delete orders --dry-run")
@destroys("delete topic {topic}, its messages and its groups' offsets")
async def delete(
    topic: Topic, *, dry_run: DryRun = False, server: Server, json: Json = False
) -> Mapping[str, Any]:
    """Delete a topic for good: its messages, its groups' offsets and its writers."""
    async with _connected(server) as client:
        if dry_run:
            bounds = await client.offsets(topic)
            return {"topic": topic, "deleted": False, "bytes": bounds.end - bounds.first}
        await client.delete(topic)
    return {"topic": topic, "deleted": True}


def _time(argument: str, said: str) -> int:
    """A time in Unix milliseconds. Raises UsageError."""
    try:
        return moment_ms(said, time.time_ns() // 1_000_000)
    except ValueError as error:
        raise UsageError(argument, str(error)) from None


def _is_number(said: str) -> bool:
    return said.isascii() and said.isdigit() and len(said) < 20


def _place(argument: str, said: str) -> TopicPlace:
    """Raises UsageError."""
    if said in ("first", "end"):
        return said, 0
    if _is_number(said):
        return "offset", int(said)
    word, colon, number = said.partition(":")
    if word != "last" or not colon:
        return "time", _time(argument, said)
    if not _is_number(number) or not 1 <= int(number) <= LAST_MAX:
        raise UsageError(argument, f"last:N takes 1 to {LAST_MAX:,} messages")
    return word, int(number)


def _for_api(place: TopicPlace, ask: Callable[[], Mapping[str, Any]]) -> Mapping[str, Any]:
    """The place as the API takes it. `ask`: for what the API says of the topic."""
    word, number = place
    if word == "offset":
        return {word: number}
    if word == "last":
        return {"records_back": number}
    if word == "time":
        from shared.objects import time_text  # which takes 10 ms to import

        return {word: time_text(number)}
    return {"offset": ask()[word]}


async def _back(client: Client, topic: str, count: int) -> int:
    """Where the last `count` messages begin; the first offset that is kept where there are fewer."""
    bounds = await client.offsets(topic)
    span = BACK_BYTES
    while True:
        begin = max(bounds.first, bounds.end - span)
        marks = await client.marks(topic, begin, bounds.end)
        begin = max(marks[0].offset, bounds.first) if marks else bounds.first
        last: deque[int] = deque(maxlen=count)
        records = client.records(topic, begin)
        while records.offset < bounds.end and (chunk := await records.chunk()):
            last.extend(record.offset for record in chunk if record.offset < bounds.end)
        if len(last) == count or begin <= bounds.first:
            return last[0] if last else bounds.end
        span *= 4


async def _start(
    client: Client, topic: str, place: TopicPlace | None, group: str | None, *, missing: int | None
) -> int:
    """The offset to begin at. `missing`: that of a topic that does not exist (None: an error)."""
    word, number = place or ("first", 0)
    try:
        if word == "last":
            return await _back(client, topic, number)
        if word == "time":
            return await client.seek(topic, number)
        bounds = await client.offsets(topic)
        if place is None and group is not None:
            return _after(topic, group, await client.committed(group, topic), bounds.first)
    except LogmqError as error:
        if error.code == "NO_TOPIC" and missing is not None:
            warn(f"there is no topic {topic} yet: what is written to it is shown")
            return number if word == "offset" else missing
        raise
    if word == "offset":
        return number
    return bounds.end if word == "end" else bounds.first


def _after(topic: str, group: str, committed: int | None, first: int) -> int:
    """Where a group goes on. `first`: the first kept offset of the topic."""
    if committed is None or committed >= first:
        return first if committed is None else committed
    warn(
        f"group {group} has not read {first - committed} bytes of {topic} that retention or trim dropped: "
        f"offsets {committed} to {first}"
    )
    return first


def _through_api(
    topic: str, place: TopicPlace | None, group: str | None, left: Remaining, *, json: bool, offsets: bool
) -> ApiRequest:
    """Show a topic's messages as the API has them."""
    shown = partial(_shown, json=json, offsets=offsets)

    def rows(api: AdminApi) -> Iterator[Any]:
        found = api.get("topics", topic)
        begin = _for_api(place or ("first", 0), lambda: found)
        if place is None and group is not None:
            committed = [row["offset"] for row in api.rows("groups", group=group, topic=topic)]
            begin = {"offset": _after(topic, group, next(iter(committed), None), found["first"])}
        query = {"from" if name == "offset" else name: value for name, value in begin.items()}
        while left and query.get("from", 0) is not None:
            page = api.get("topics", topic, "records", limit=API_RECORDS, **query)
            yield from shown(left.of([_record(row) for row in page["items"]]))
            query = {"from": page["next"]}

    return ApiRequest(rows)


def _record(row: Mapping[str, Any]) -> Record:
    """A message as the API shows it. Raises CutShort."""
    if row.get("truncated"):
        raise CutShort(
            f"the message at {row['position']} has {row['bytes']:,} bytes, more than the API shows: "
            "ask LogMQ's own port"
        )
    body = row["text"].encode() if "text" in row else b64decode(row["base64"])
    return Record(row["position"], body)


def _shown(records: Sequence[Record], *, json: bool, offsets: bool) -> Sequence[Any]:
    """Records for the host to show: rows, lines on a terminal, or their bytes."""
    if json or offsets:
        return [{"offset": record.offset, "message": record.payload} for record in records]
    return bodies_shown(record.payload for record in records)
