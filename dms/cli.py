"""`brokers dms ...`: the protocol's own commands. Each returns what it found; the host shows it.

Flags and defaults are those of the specification's own server and client, and some are added.
"""

from collections.abc import AsyncIterable, AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from json import JSONDecodeError, loads
from pathlib import Path
from time import time_ns
from typing import Annotated, Any, Literal, cast

import attrs
from cyclopts import Parameter

from dms.actions import CHANGE
from dms.client import (
    Client,
    Disconnected,
    DmsError,
    JobSaid,
    Message,
    QueueExists,
    QueueOptions,
    Unreachable,
    connect,
)
from dms.consumer import Consumer
from dms.feeder import Feeder
from dms.plugin import OWN_FOLDER
from dms.stress import stress as run_stress
from shared.actions import PURGE
from shared.cli.app import protocol_app
from shared.cli.commands import Remaining, bodies_shown, lost_is_refused, send_given, waiting_is_told, warn
from shared.cli.confirm import DryRun, destroys
from shared.cli.objects import action_command, listed, queue_commands
from shared.cli.options import Json, Max, Messages, Server, Timeout, Words, a_path, bound_port, flag
from shared.cli.output_reader import OutputReader
from shared.cli.progress import counting
from shared.errors import NotThere, UsageError
from shared.plugin import ApiRequest, ServeRequest
from shared.schedules import Schedule
from shared.units import moment_ms, parse_quantity

PREFETCH = 64
LEVELS = ("debug", "info", "warning", "error")

app, command = protocol_app(
    "dms",
    "Work queues: a message leaves its queue when a consumer acknowledges it.",
    "serve -P",
    "create -q orders",
    'produce -q orders -m "order 42"',
    "consume -q orders -c",
    before="""Exit codes: 0 done; 1 refused; 2 a mistake on the command line; 66 no such
queue or job; 69 no server answers; 74 the connection was lost, what was under
way may or may not have been done; 75 try again later (no message came in
time, the queue is full); 130 interrupted.

""",
)


QueueName = Annotated[str, Parameter(name=("--queue", "-q"), help="A queue.")]


def _option(help_: str) -> Parameter:
    return Parameter(help=help_, show_default=False)


def _said(
    *,
    delay: str | None = None,
    at: str | None = None,
    ttl: str | None = None,
    header: Sequence[str] = (),
    **others: str | int | None,
) -> JobSaid:
    """What the flags say of a job. Raises UsageError."""
    if delay is not None and at is not None:
        raise UsageError("--delay", "either --delay or --at says when")
    said: dict[str, Any] = {name: value for name, value in others.items() if value is not None}
    for name, flag_, text in (("delay_ms", "--delay", delay), ("ttl_ms", "--ttl", ttl)):
        if text is not None:
            try:
                said[name] = parse_quantity(text, "ms")
            except ValueError as error:
                raise UsageError(flag_, str(error)) from None
    if at is not None:
        try:
            said["at"] = moment_ms(at, time_ns() // 1_000_000)
        except ValueError as error:
            raise UsageError("--at", str(error)) from None
    if header:
        pairs = [pair.partition("=") for pair in header]
        if not all(name and equals for name, equals, _ in pairs):
            raise UsageError("--header", "name=value")
        said["headers"] = {name: value for name, _, value in pairs}
    return cast(JobSaid, said)


@asynccontextmanager
async def _connected(server: Server) -> AsyncIterator[Client]:
    """A client. A server that cannot be reached, now or later, is a ConnectionRefusedError."""
    with lost_is_refused(Unreachable):
        async with connect(**server.given()) as client:
            yield client


@command("serve", "serve -p 9191 -d 5000 -P -D /var/lib/dms", "serve -l 0")
def serve(
    port: Annotated[int | None, bound_port(9090)] = None,
    *,
    depth: Annotated[
        int | None, Parameter(name=("--depth", "-d"), help="Messages in a queue at most (10000 unless set).")
    ] = None,
    timeout: Annotated[
        float | None, Parameter(name=("--timeout", "-t"), help="Seconds a CONSUME waits (30 unless set).")
    ] = None,
    persist: Annotated[
        bool,
        flag("Keep queues on disk; without it all is in memory, and lost at the end.", "--persist", "-P"),
    ] = False,
    data_dir: Annotated[
        Path | None,
        Parameter(
            name=("--data-dir", "-D"), help="The data folder (./dms_data unless set).", converter=a_path
        ),
    ] = None,
    level: Annotated[
        int | None,
        Parameter(
            name=("--level", "-l"), help="Least to log: 0 DEBUG, 1 INFO, 2 WARN, 3 ERROR (1 unless set)."
        ),
    ] = None,
) -> ServeRequest:
    """Serve DMS alone, until SIGTERM, SIGINT or the line "exit".

    This is like the specification's server: without -P nothing is kept, and the
    data folder has only the lock and the control socket. "brokers serve" keeps
    queues unless the settings say otherwise.
    """
    if level is not None and not 0 <= level < len(LEVELS):
        raise UsageError("--level", f"{level} is none of 0 (DEBUG), 1 (INFO), 2 (WARN), 3 (ERROR)")
    own: Mapping[str, Any] = {
        "port": port,
        "depth": depth,
        "consume_seconds": timeout,
        "persist": persist or None,
    }
    host: Mapping[str, Any] = {
        "data_dir": None if data_dir is None else str(data_dir),
        "log_level": None if level is None else LEVELS[level],
    }
    defaults: Mapping[str, Mapping[str, Any]] = {
        "dms": {"persist": False},
        "serve": {"data_dir": OWN_FOLDER},
    }
    flags = {"consume_seconds": "--timeout", "log_level": "--level"}
    return ServeRequest("dms", {"dms": own, "serve": host}, defaults, flags)


@command(
    'produce -q orders -m "order 42"',
    "seq 1000 | brokers dms produce -q numbers --json",
    "tail -f events.log | brokers dms produce -q events --wait --again",
    "produce mails hi --delay 10min --dedup mail-41 --header to=ann",
)
async def produce(
    queue: QueueName,
    *words: Words,
    message: Messages = (),
    wait: Annotated[bool, flag("Try again while the queue is full; the order may change then.")] = False,
    again: Annotated[
        bool, flag("Send again what a lost connection left unanswered; such messages may be there twice.")
    ] = False,
    delay: Annotated[str | None, _option("Not before so long from now (10s, 5min).")] = None,
    at: Annotated[str | None, _option("Not before this time (ISO 8601, Unix milliseconds).")] = None,
    ttl: Annotated[str | None, _option("Dead if not delivered by then (1h).")] = None,
    priority: Annotated[int | None, _option("0 to 9.")] = None,
    key: Annotated[str | None, _option("The job's key.")] = None,
    dedup: Annotated[
        str | None, _option("The job's name: while one of it is there, another is not added.")
    ] = None,
    header: Annotated[
        tuple[str, ...], Parameter(help="name=value, for whoever consumes it.", show_default=False)
    ] = (),
    server: Server,
    json: Json = False,
) -> Mapping[str, Any]:
    """Put messages into a queue, in order.

    Ends with 0 once all are as durable as the queue; with 75 if the queue is full
    (without --wait), with 66 if there is none. Messages before the first refused
    one are in the queue; what follows its piece of input was not sent. The error
    says how many were put.
    """
    said = _said(delay=delay, at=at, ttl=ttl, priority=priority, key=key, dedup=dedup, header=header)
    async with _connected(server) as client:
        feeder = Feeder(client, queue, wait=wait, again=again, **said)
        try:
            await send_given(feeder.put, (*words, *message))
        except DmsError as error:
            error.text += f" ({feeder.messages} messages were put)"
            raise
    return {"queue": queue, "messages": feeder.messages, "sent_again": feeder.sent_again}


@command(
    "consume -q orders",
    "consume -q orders -c",
    "consume -q orders --max 5 --nack",
    "consume -q mails --nack --delay 5min --text 'no such host'",
    "consume -q orders -c --timeout 1",
    "consume -q orders -c --json | jq -r .message",
)
async def consume(
    queue: QueueName,
    *,
    continuous: Annotated[
        bool, flag("Go on until interrupted, and wait for more.", "--continuous", "-c")
    ] = False,
    max_: Annotated[Max, Parameter(help="Take this many (1 without -c).")] = None,
    timeout: Timeout = None,
    about: Annotated[bool, flag("With --json: what is known of each, too, as deliveries and key.")] = False,
    nack: Annotated[
        bool,
        flag("Refuse messages once all are shown: they go back, or die of too many deliveries."),
    ] = False,
    delay: Annotated[str | None, _option("With --nack: they are not delivered before (10s, 5min).")] = None,
    text: Annotated[str | None, _option("With --nack: why; a dead letter has the last one.")] = None,
    server: Server,
    json: Json = False,
) -> AsyncIterable[Any]:
    """Take messages out of a queue and show them, one a line.

    Each is acknowledged once it is shown; in a pipe, once it is read. All others go
    back to the queue at the end. Without -c it takes one, or --max. Where none
    comes within --timeout, or the server's time for a CONSUME, the exit code is 75.
    With -c and --timeout it takes what there is, and ends with 0.
    """
    if nack and continuous:
        raise UsageError("--nack", "needs --max and not --continuous: what goes back comes again")
    if not nack and (delay is not None or text is not None):
        raise UsageError("--nack", "is what --delay and --text go with")
    delay_ms = _said(delay=delay).get("delay_ms", 0)
    reader = OutputReader()
    left = Remaining(max_ if continuous or max_ is not None else 1)

    async def shown() -> AsyncIterator[Any]:
        async with (
            _connected(server) as client,
            client.consume(
                queue, prefetch=PREFETCH if continuous else 1, at_most=left.count, with_about=about
            ) as consumer,
            _nacked(consumer, delay_ms, text or "") as refused,
            waiting_is_told(queue) as has_come,
        ):
            while left:  # it takes no more than that: `at_most`
                if timeout is None and not continuous:
                    message = await consumer.receive()
                    messages = left.of([] if message is None else [message])
                else:
                    messages = await left.within(timeout, consumer.several())
                if not messages:
                    return
                has_come()
                taken: list[Message] = []
                try:
                    for portion in reader.portions(messages):
                        for item in _shown(portion, queue, json=json):
                            yield item
                        await reader.wait_taken()
                        taken += portion
                finally:
                    if nack:
                        refused += taken
                    else:
                        await _ack(consumer, taken, go_on=continuous)

    return shown()


async def _ack(consumer: Consumer, messages: Sequence[Message], *, go_on: bool) -> None:
    """Acknowledge. Where they are not held any more, say so and `go_on`, or raise Disconnected."""
    if not await consumer.ack(*messages):
        why = "the connection was lost, or the queue's ack_ms is over"
        text = f"{why}: some of the last {len(messages)} messages may be delivered again"
        if not go_on:
            raise Disconnected(text)
        warn(text)


@asynccontextmanager
async def _nacked(consumer: Consumer, delay_ms: int, text: str) -> AsyncIterator[list[Message]]:
    """Refuse the messages in the list at the block's end. Earlier, the block would be given them again."""
    refused: list[Message] = []
    try:
        yield refused
    finally:
        if refused:
            await consumer.nack(*refused, delay_ms=delay_ms, text=text)


def _shown(messages: Sequence[Message], queue: str, *, json: bool) -> Sequence[Any]:
    """Messages for the host to show: rows, lines on a terminal, or their bytes."""
    if json:
        return [
            {"queue": queue, "delivery": message.id, **message.about, "message": message.body}
            for message in messages
        ]
    return bodies_shown(message.body for message in messages)


@Parameter(name="*")
@attrs.frozen(kw_only=True)
class CreateOptions:
    """The options of a new queue, as `QueueOptions` has them."""

    depth: Annotated[int | None, _option("Messages at most.")] = None
    ttl_ms: Annotated[int | None, _option("Messages older than this are dead.")] = None
    max_deliveries: Annotated[int | None, _option("Deliveries after which a message is dead.")] = None
    dead_letter: Annotated[str | None, _option("The queue for dead messages; none: dropped.")] = None
    delay_ms: Annotated[int | None, _option("From PRODUCE until the first delivery.")] = None
    retry_ms: Annotated[int | None, _option("From a NACK until the next delivery.")] = None
    retry_max_ms: Annotated[int | None, _option("The delay doubles with each NACK, up to this.")] = None
    ack_ms: Annotated[int | None, _option("For a delivery, then it returns.")] = None
    dedup_ms: Annotated[int | None, _option("A dedup key is known so long, message or not.")] = None
    loss_counts: Annotated[
        Literal["oldest", "all", "none"] | None, _option("Deliveries of a lost connection that count.")
    ] = None
    priorities: Annotated[int | None, _option("How many priorities jobs have (up to 10).")] = None
    per_key: Annotated[int | None, _option("Of a key at a time, unacknowledged.")] = None
    fair: Annotated[bool | None, _option("Keys take turns.")] = None
    rate: Annotated[str | None, _option("Deliveries at most (100/s).")] = None
    schedule: Annotated[
        tuple[str, ...],
        Parameter(
            help='Messages at times, as JSON: {"every": "10m", "body": "go"}; repeatable.',
            show_default=False,
        ),
    ] = ()


@command(
    "create -q orders",
    "create -q orders --max-deliveries 5 --dead-letter orders-dead",
    "create -q mails --retry-ms 1000 --retry-max-ms 60000 --exist-ok",
)
async def create(
    queue: QueueName,
    *,
    options: CreateOptions = CreateOptions(),
    exist_ok: Annotated[bool, flag("No error where it exists; its options stay.")] = False,
    server: Server,
    json: Json = False,
) -> Mapping[str, Any]:
    """Make a queue. Options that are not given are taken from the server's settings."""
    said = {**attrs.asdict(options), "schedule": _schedules(options.schedule)}
    async with _connected(server) as client:
        try:
            await client.create(queue, QueueOptions(**said))
        except QueueExists:
            if not exist_ok:
                raise
            return {"queue": queue, "created": False}
        dead = options.dead_letter
        if dead and dead not in {each.name for each in await client.queues()}:
            warn(f"no queue {dead} is listed: {queue} holds its dead messages back until you create it")
    return {"queue": queue, "created": True}


def _schedules(texts: Sequence[str]) -> Sequence[Mapping[str, str]] | None:
    """What `--schedule` says; None: nothing. Raises UsageError."""
    try:
        return [Schedule.parse(loads(text)).said for text in texts] or None
    except JSONDecodeError as error:
        raise UsageError("--schedule", f"is not JSON: {error}") from None
    except ValueError as error:
        raise UsageError("--schedule", str(error)) from None


JobDedup = Annotated[str | None, Parameter(help="Which job: its name.", show_default=False)]
JobSeq = Annotated[int | None, Parameter(help="Which job: its sequence.", show_default=False)]


@asynccontextmanager
async def _of_one_job(
    server: Server, dedup: str | None, seq: int | None
) -> AsyncIterator[tuple[Client, dict[str, Any]]]:
    """A client, and which job it is to ask for. Raises UsageError unless one of the two says that."""
    if (dedup is None) == (seq is None):
        raise UsageError("--dedup", "either --dedup or --seq says which job")
    async with _connected(server) as client:
        yield client, {"dedup": dedup, "seq": seq}


@command("job -q mails --dedup mail-41 --json")
async def job(
    queue: QueueName, *, dedup: JobDedup = None, seq: JobSeq = None, server: Server, json: Json = False
) -> Mapping[str, Any]:
    """Show a job that is in a queue: its state, its time, and what was said of it."""
    async with _of_one_job(server, dedup, seq) as (client, which):
        found = await client.job(queue, **which)
        return {"queue": queue, **found.about, "message": found.body.decode(errors="backslashreplace")}


@command("cancel -q mails --dedup mail-41")
async def cancel(
    queue: QueueName, *, dedup: JobDedup = None, seq: JobSeq = None, server: Server, json: Json = False
) -> Mapping[str, Any]:
    """Take a job out of a queue, unless a consumer holds it."""
    async with _of_one_job(server, dedup, seq) as (client, which):
        await client.cancel(queue, **which)
        return {"queue": queue, "cancelled": True}


@command("reschedule -q mails --dedup mail-41 --delay 1h")
async def reschedule(
    queue: QueueName,
    *,
    dedup: JobDedup = None,
    seq: JobSeq = None,
    delay: Annotated[str | None, _option("So long from now (10s, 5min).")] = None,
    at: Annotated[str | None, _option("At this time (ISO 8601, Unix milliseconds).")] = None,
    server: Server,
    json: Json = False,
) -> Mapping[str, Any]:
    """Give a job another time, unless a consumer holds it."""
    if (delay is None) == (at is None):
        raise UsageError("--delay", "either --delay or --at says when")
    said = _said(delay=delay, at=at)
    async with _of_one_job(server, dedup, seq) as (client, which):
        await client.reschedule(queue, **which, delay_ms=said.get("delay_ms"), at=said.get("at"))
        return {"queue": queue, "rescheduled": True}


command("change orders --max-deliveries 5 --dry-run", "change orders --unset ttl-ms", name="change")(
    action_command("dms", "queues", CHANGE, {"queue": QueueName}, unsets=True)
)


@command("delete -q orders", "delete orders --dry-run")
@destroys("delete queue {queue} and its messages")
async def delete(
    queue: QueueName, *, dry_run: DryRun = False, server: Server, json: Json = False
) -> Mapping[str, Any]:
    """Delete a queue and its messages, for good."""
    async with _connected(server) as client:
        if not dry_run:
            await client.delete(queue)
            return {"queue": queue, "deleted": True}
        depth = next((each.depth for each in await client.queues() if each.name == queue), None)
        if depth is None:
            raise NotThere(f"there is no queue {queue}")
        return {"queue": queue, "deleted": False, "messages": depth}


@command("list", "list --json | jq 'select(.depth > 0)'", name="list")
async def list_(*, server: Server, json: Json = False) -> Sequence[Mapping[str, Any]]:
    """List the queues, and how many messages are in each, unacknowledged ones included."""
    async with _connected(server) as client:
        return [{"queue": queue.name, "depth": queue.depth} for queue in await client.queues()]


@command("stress -q bench -n 1000", "stress -q bench -n 100000 --size 1000 --json")
async def stress(
    queue: QueueName,
    *,
    number: Annotated[int, Parameter(name=("--number", "-n"), help="Number of messages.")] = 1000,
    size: Annotated[int, Parameter(help="Bytes of a message (16 at least).")] = 100,
    server: Server,
    json: Json = False,
) -> Any:
    """Produce, consume and acknowledge messages, and check that each arrives once.

    The queue is made, and deleted at the end; one that exists must be empty, and
    stays. Ends with 1 where a message is lost, or arrives twice or out of order.
    """
    if number < 1:
        raise UsageError("--number", "1 at least")
    if not 16 <= size <= 4000:
        raise UsageError("--size", "16 to 4000")
    async with _connected(server) as client:
        with counting("messages") as update:
            return await run_stress(client, queue, number, size, update)


# These are no requests of the protocol: a running server is asked by its API.


@command("queues", "queues --json | jq 'select(.held > 0)'")
def queues(*, json: Json = False) -> ApiRequest:
    """List the queues, with the columns of the API."""
    return listed("queues", "dms")


queue_commands(command, "dms")
command("purge -q orders", "purge orders --dry-run", name="purge")(
    action_command(
        "dms",
        "queues",
        PURGE,
        {"queue": QueueName},
        question="delete all messages of queue {queue}",
    )
)


@command("export -q orders orders.dmsq")
def export(
    file: Annotated[Path, Parameter(help="A .dmsq file to write.", converter=a_path)],
    queue: QueueName,
    *,
    json: Json = False,
) -> ApiRequest:
    """Write a queue's messages to a file, in the specification's format. They stay in the queue."""
    return ApiRequest(
        lambda api: {
            "queue": queue,
            **api.post("queues", "dms", queue, "export", target=api.path(file)),
        }
    )


@command("import orders.dmsq", "import x.dmsq -q orders", name="import")
def import_(
    file: Annotated[Path, Parameter(help="A .dmsq file.", converter=a_path)],
    queue: Annotated[
        str | None,
        Parameter(
            name=("--queue", "-q"),
            help="Into this queue; else it is named after the file.",
            show_default=False,
        ),
    ] = None,
    *,
    json: Json = False,
) -> ApiRequest:
    """Put the messages of a .dmsq file at the end of a queue. A missing queue is made."""
    into: dict[str, Any] = {} if queue is None else {"queue": queue}
    return ApiRequest(lambda api: api.post("queues", source=api.path(file), **into))
