"""`brokers conform PROTOCOL HOST PORT`: the protocol's vectors, played against a server, or a client."""

import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from fnmatch import fnmatchcase
from typing import Annotated

from cyclopts import Parameter, validators

from brokers import plugins
from brokers.commands.flags import host_command
from brokers.commands.render import Following
from brokers.conform.playing import PATIENCE_SECONDS, Conversation, Difference, Link, Player, conversations
from brokers.errors import ExitCode, Failure
from shared.cli.options import Json, flag
from shared.net.listeners import CannotListen, bind_each, format_address

BACKLOG = 16
"""Clients under test that wait to be taken."""


@host_command(
    "conform",
    "brokers conform logmq 127.0.0.1 8080",
    "brokers conform dms 127.0.0.1 9090 --name 'a queue*'",
    "brokers conform dms 127.0.0.1 0 --serve --name 'a queue*'",
)
def conform(
    protocol: Annotated[
        str, Parameter(help="dms, logmq, pubsub, kqmsgq, dmp, or another that is installed.")
    ],
    host: Annotated[str, Parameter(help="Of the server; with --serve the address to bind.")],
    port: Annotated[
        int,
        Parameter(
            help="Its port, for datagrams too; with --serve 0 picks one.",
            validator=validators.Number(gte=0, lte=65535),
        ),
    ],
    /,
    *,
    serve: Annotated[bool, flag("Be the server, and check the client that connects.")] = False,
    name: Annotated[str, Parameter(help="Only the conversations whose names match this glob.")] = "*",
    json: Json = False,
) -> Following:
    """Check that a server or a client says the bytes that the protocol's vectors have.

    Each conversation is played once, in the clear and without a login. What depends
    on time or on who chooses it may be any bytes. The first difference ends a
    conversation, and the command then ends with exit code 1.

    With --serve the client under test has to do what the conversation does, in its
    order; brokers/conform/README.md has the notation and the steps.
    """
    package = plugins.load(protocol).settings.__module__.rpartition(".")[0]
    chosen = [each for each in conversations(package) if fnmatchcase(each.name, name)]
    if not chosen:
        raise Failure(f"--name: {protocol} has no conversation {name!r}", ExitCode.USAGE)
    return Following(played(chosen, host, port, serve=serve))


def played(
    chosen: Sequence[Conversation], host: str, port: int, *, serve: bool = False
) -> Iterator[Mapping[str, str]]:
    """A row for each conversation, as it ends; with `serve` one with the address comes first.

    Raises Failure at the end if some differ, and where nobody answers or the address cannot be bound.
    """
    different = 0
    with ExitStack() as stack:
        listening: dict[str, socket.socket] = {}
        if serve:
            listening = _bound(stack, host, port)
            host, port = listening["tcp"].getsockname()[:2]
            yield {"result": "listening", "address": format_address(host, port)}
        for conversation in chosen:
            try:
                with ExitStack() as links:
                    link = _links(conversation, links, host, port, listening)
                    Player(link, not serve).play(conversation)
            except Difference as difference:
                different += 1
                yield {"result": "differs", "conversation": conversation.name, "why": str(difference)}
            else:
                yield {"result": "ok", "conversation": conversation.name, "why": ""}
    if different:
        raise Failure(f"{different} of {len(chosen)} conversations differ")


def _bound(stack: ExitStack, host: str, port: int) -> dict[str, socket.socket]:
    """Sockets at the first address of the host, both with one port. Raises Failure."""

    def reuse(sock: socket.socket, _: str) -> None:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)

    bound: dict[str, socket.socket] = {}
    try:
        for name, kind, backlog in (("tcp", socket.SOCK_STREAM, BACKLOG), ("udp", socket.SOCK_DGRAM, None)):
            sockets = bind_each(host, port, kind, reuse, backlog=backlog)
            for sock in sockets:
                stack.enter_context(sock)
            bound[name] = sockets[0]
            bound[name].setblocking(True)
            host, port = bound[name].getsockname()[:2]
    except CannotListen as error:
        raise Failure(str(error), ExitCode.CONFIGURATION) from None
    return bound


def _connected(host: str, port: int) -> socket.socket:
    """Raises Failure where nobody answers: then no conversation says anything about a server."""
    try:
        return socket.create_connection((host, port), PATIENCE_SECONDS)
    except OSError as error:
        why = f"no server answers ({error.strerror or error})"
        raise Failure(f"{format_address(host, port)}: {why}", ExitCode.UNAVAILABLE) from None


def _links(
    conversation: Conversation, stack: ExitStack, host: str, port: int, listening: dict[str, socket.socket]
) -> Callable[[str], Link]:
    """A function that gives the connection of a name, opened or accepted when it is first asked for."""
    links: dict[str, Link] = {}

    def link(name: str) -> Link:
        if name not in links:
            kind = conversation.connections[name]
            if kind == "udp":
                sock = listening.get(kind) or stack.enter_context(_datagrams(host, port))
            elif listening:
                sock = stack.enter_context(listening[kind].accept()[0])
            else:
                sock = stack.enter_context(_connected(host, port))
            links[name] = Link(sock)
        return links[name]

    return link


def _datagrams(host: str, port: int) -> socket.socket:
    family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
    sock = socket.socket(family, socket.SOCK_DGRAM)
    sock.connect(address)
    return sock
