"""`brokers pubsub ...`: the protocol's own commands. Each returns what it found; the host shows it.

A module that only one command needs is imported in that command, so that a subscriber starts fast.
"""

import errno
import os
import secrets
import socket
import ssl
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import attrs
from cyclopts import Parameter

from pubsub import wire
from pubsub.wire import Kind
from shared.actions import END_SESSION
from shared.cli.app import protocol_app
from shared.cli.objects import action_command, listed
from shared.cli.options import Json, Max, Place, Port, Server, Timeout, a_file, bound_port, flag
from shared.client.dial import CONNECT_SECONDS
from shared.errors import NoneInTime, NotThere, UsageError
from shared.net.tls import in_words
from shared.plugin import AdminApi, ApiRequest, ServeRequest

if TYPE_CHECKING:
    from pubsub.terminal import Terminal

app, command = protocol_app(
    "pubsub",
    "Topics with levels and wildcards: UDP publishers, TCP subscribers.",
    "serve 7070",
    "subscribe 'hall/+/temperature'",
    "publish hall/3/temperature --float 21.50",
)


@app.command(
    help_epilogue="""Examples:

    brokers pubsub serve 7070
    export BROKERS_PUBSUB_ALLOW='["10.0.0.0/8"]'
    brokers pubsub serve 7070 --host 0.0.0.0 --insecure"""
)
def serve(
    port: Annotated[int | None, bound_port(7070, ", TCP and UDP")] = None,
) -> ServeRequest:
    """Serve pub/sub alone, until SIGTERM, SIGINT or the line "exit".

    Standard output has a line for each client that connects or leaves; all else is
    on standard error. Beyond loopback the setting pubsub.allow must name the
    networks that may publish; the address of a datagram can be forged.
    """
    return ServeRequest("pubsub", {"pubsub": {"port": port}}, says=True)


@command(
    "subscriber A 127.0.0.1 7070", "echo 'subscribe hall/+/door' | brokers pubsub subscriber A 127.0.0.1 7070"
)
def subscriber(
    client_id: Annotated[str, Parameter(help="1 to 10 printable ASCII characters.")],
    ip: Annotated[
        str | None, Parameter(help="The server's address or URL, as --host.", show_default=False)
    ] = None,
    tcp_port: Annotated[Port, Parameter(name="PORT", help="Its port, as --port.")] = None,
    /,
    *,
    server: Server,
) -> Iterator[Any]:
    """Receive messages, with commands on standard input.

    subscribe <topic>, unsubscribe <topic>, exit; and keep <topic>: subscribe, and
    have messages kept while this client is away.
    """
    on_terminal = sys.stdout.isatty()
    with _connected(client_id, server.at_url(ip, tcp_port, "pubsub")) as terminal:
        for line in terminal.lines(sys.stdin.fileno()):
            yield line.decode(errors="backslashreplace").rstrip("\n") if on_terminal else line


@command(
    "subscribe 'hall/+/temperature'",
    "subscribe hall/3/door hall/4/door --max 1",
    "subscribe 'hall/*' --json | jq -r .value",
    "subscribe --since 10m 'hall/*'",
)
def subscribe(
    *topics: Annotated[
        str, Parameter(name="TOPIC", help="Topics or patterns: + is one level, * any number of them.")
    ],
    since: Annotated[
        str | None,
        Parameter(help="First what the server has recorded since then: 10m, 2h, 2026-01-31T12:00."),
    ] = None,
    max_: Max = None,
    timeout: Timeout = None,
    server: Server,
    json: Json = False,
) -> Iterator[Any]:
    """Show messages as they come, one a line, until interrupted.

    The client has an id that nobody else has, and the server forgets it at the end;
    one that is remembered is "subscriber".
    """
    names = [os.fsencode(topic) for topic in topics]
    if not names:
        raise UsageError("TOPIC", "name at least one")
    try:
        for name in names:
            wire.encode_command(wire.Command.SUBSCRIBE, name)
    except ValueError as error:
        raise UsageError("TOPIC", str(error)) from None
    minutes = None
    try:
        if since is not None:
            minutes = wire.since_minutes(since, time.time_ns() // 1_000_000)
            for name in names:
                wire.encode_since(minutes, name)
    except ValueError as error:
        raise UsageError("--since", str(error)) from None
    on_terminal, shown = sys.stdout.isatty(), 0
    with (
        _connected(secrets.token_hex(5), server) as terminal,
        closing(terminal.messages(names, timeout, minutes)) as messages,
    ):
        for message in messages:
            shown += 1
            if json:
                row = {"sender": message.sender, "topic": message.topic}
                yield {**row, "type": Kind(message.kind).name, "value": message.value}
            else:
                line = wire.line(message)
                yield line.decode(errors="backslashreplace") if on_terminal else line + b"\n"
            if shown == max_:
                break
    if max_ is not None and shown < max_:
        raise NoneInTime(f"no message came in time; {max_ - shown} more were asked for")


@contextmanager
def _connected(client_id: str, server: Server) -> Iterator["Terminal"]:
    """A subscriber. Raises UsageError, ConnectionRefusedError and ssl.SSLError."""
    from pubsub.terminal import Terminal

    try:
        wire.encode_id(client_id.encode(errors="surrogateescape"))
    except ValueError as error:
        raise UsageError("CLIENT-ID", str(error)) from None
    context, login = server.ssl_context(), server.login()
    try:
        first = wire.encode_login(login.user, login.secret) if login else b""
    except ValueError as error:
        raise UsageError("--password-file", str(error)) from None
    where = f"{server.host}:{server.port}"
    try:
        with _dialled(server, context, where) as sock:
            yield Terminal(sock, client_id, where, first)
    except ssl.SSLError as error:
        error.filename, error.strerror = where, in_words(error)
        raise


def _dialled(server: Server, context: ssl.SSLContext | None, where: str) -> socket.socket:
    try:
        sock = socket.create_connection((server.host, server.port), CONNECT_SECONDS)
        if context is not None:
            sock = context.wrap_socket(sock, server_hostname=server.host)
    except ssl.SSLError:
        raise
    except (OSError, UnicodeError) as error:  # UnicodeError: no host can have that name (`a..b`)
        why = (isinstance(error, OSError) and error.strerror) or error
        said = f"no pub/sub server answers ({why})"
        raise ConnectionRefusedError(errno.ECONNREFUSED, said, where) from error
    sock.settimeout(None)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return sock


@attrs.frozen
class Value:
    """What to publish: one of these."""

    int_: Annotated[int | None, Parameter(name="--int", help="An integer of 32 bits and a sign.")] = None
    short_real: Annotated[str | None, Parameter(help="0 to 655.35, two decimals.")] = None
    float_: Annotated[str | None, Parameter(name="--float", help="A decimal number, as it is written.")] = (
        None
    )
    string: Annotated[
        str | None,
        Parameter(name=("--string", "--message", "-m"), help="A text of up to 1500 bytes."),
    ] = None

    def given(self) -> list[tuple[Kind, str]]:
        fields = (
            (Kind.INT, None if self.int_ is None else str(self.int_)),
            (Kind.SHORT_REAL, self.short_real),
            (Kind.FLOAT, self.float_),
            (Kind.STRING, self.string),
        )
        return [(kind, text) for kind, text in fields if text is not None]


@app.command(
    help_epilogue="""Examples:

    brokers pubsub publish hall/3/temperature --float 21.50
    brokers pubsub publish hall/3/door --string open
    brokers pubsub publish --from readings.jsonl --rate 1000

A line of readings.jsonl:

    {"topic": "hall/3/temperature", "type": "FLOAT", "value": "21.50"}"""
)
async def publish(
    topic: Annotated[str | None, Parameter(help="The topic, at most 50 bytes.")] = None,
    *,
    value: Annotated[Value, Parameter(name="*")] = Value(),
    from_: Annotated[
        Path | None,
        Parameter(
            name="--from",
            help="JSON, a message a line; - is standard input.",
            converter=a_file,
            allow_leading_hyphen=True,
        ),
    ] = None,
    rate: Annotated[float | None, Parameter(help="Messages a second, at most.")] = None,
    server: Place,
    json: Json = False,
) -> Mapping[str, Any]:
    """Publish a message, or a file of them, and show how many were sent.

    Datagrams are not answered, so nobody knows whether they arrived.
    """
    import trio

    from pubsub.client import open_publisher

    given = value.given()
    if (from_ is None) == (topic is None) or len(given) != (from_ is None):
        raise UsageError("TOPIC", "give it and one of --int, --short-real, --float, --string; or only --from")
    if rate is not None and not rate > 0:
        raise UsageError("--rate", "more than 0 a second")
    where, sent = f"{server.host}:{server.port}", 0
    with open_file(from_) if from_ is not None else nullcontext() as file:
        datagrams = _parsed(file) if topic is None else _single(topic, *given[0])
        try:
            async with open_publisher(server.host, server.port) as publisher:
                begun = trio.current_time()
                for datagram in datagrams:
                    if rate is not None:
                        await trio.sleep_until(begun + sent / rate)
                    await publisher.send(datagram)
                    sent += 1
                publisher.check_heard()
        except OSError as error:  # of a host that is unknown, or where nobody listens
            why = f"no pub/sub server listens ({error.strerror or error})"
            raise ConnectionRefusedError(errno.ECONNREFUSED, why, where) from error
    return {"messages": sent, "to": where}


@command("sessions", "sessions --topics --json")
def sessions(
    *,
    topics: Annotated[bool, flag("With what each is subscribed to.")] = False,
    json: Json = False,
) -> ApiRequest:
    """List the sessions of clients, connected or remembered: subscriptions, what waits, what they lost."""
    if not topics:
        return listed("sessions", "pubsub")

    def ask(api: AdminApi) -> Sequence[Mapping[str, Any]]:
        patterns: dict[str, list[str]] = {}
        for row in api.rows("subscriptions", protocol="pubsub"):
            kept = " (kept)" if row["kept"] else ""
            patterns.setdefault(row["client"], []).append(row["pattern"] + kept)
        rows = api.rows("sessions", protocol="pubsub")
        return [{**row, "topics": patterns.get(row["name"], [])} for row in rows]

    return ApiRequest(ask)


command("forget A", name="forget")(
    action_command(
        "pubsub",
        "sessions",
        END_SESSION,
        {"client": Annotated[str, Parameter(help="The client.")]},
        question="end the session of {client}, with what is kept for it",
    )
)


def open_file(path: Path) -> Any:
    """Raises NotThere."""
    try:
        return open(0, "rb", closefd=False) if str(path) == "-" else path.open("rb")
    except FileNotFoundError as error:
        raise NotThere(f"{path}: {error.strerror}") from None


def _single(topic: str, kind: Kind, text: str) -> Iterator[bytes]:
    try:
        payload = wire.payload_of(kind, text)
    except ValueError as error:
        raise UsageError(f"--{kind.name.lower().replace('_', '-')}", str(error)) from None
    try:
        yield wire.datagram(topic.encode("utf-8", "surrogateescape"), kind, payload)
    except ValueError as error:
        raise UsageError("TOPIC", str(error)) from None


def _parsed(file: Any) -> Iterator[bytes]:
    """The datagrams of a file's lines. Raises UsageError, which names the line."""
    from json import loads

    for number, line in enumerate(file, start=1):
        if not line.strip():
            continue
        try:
            message = loads(line, parse_float=str, parse_int=str)
            kind, value = Kind[message["type"]], message["value"]
            if not isinstance(value, str):
                raise ValueError("a value is a text or a number")
            yield wire.datagram(message["topic"].encode(), kind, wire.payload_of(kind, value))
        except (ValueError, TypeError, AttributeError, RecursionError) as error:
            raise UsageError("--from", f"line {number}: {error}") from None
        except KeyError as error:
            raise UsageError("--from", f"line {number}: no topic, type or value: {error}") from None
