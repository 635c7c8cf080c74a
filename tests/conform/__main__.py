"""`python -m tests.conform PROTOCOL HOST PORT`: the protocol's vectors, played against a server, or a client.

Each conversation is played once, in the clear and without a login. What depends on time or on who chooses it
may be any bytes. The first difference ends a conversation, and the exit code is 1 then. With --serve the
client under test has to do what the conversation does, in its order. The README has the notation.
"""

import argparse
import json
import socket
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from fnmatch import fnmatchcase

from brokers import plugins
from brokers.errors import ExitCode, Failure, exit_code
from shared.errors import BrokerError
from shared.net.listeners import CannotListen, bind_each, format_address
from tests.conform.playing import PATIENCE_SECONDS, Conversation, Difference, Link, Player, conversations

BACKLOG = 16
"""Clients under test that wait to be taken."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Play, print a row for each conversation, and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.conform", description=__doc__)
    parser.add_argument("protocol", help="dms, logmq, pubsub, kqmsgq, dmp, or another that is installed")
    parser.add_argument("host", help="of the server; with --serve the address to bind")
    parser.add_argument("port", type=_port, help="its port, for datagrams too; with --serve 0 picks one")
    parser.add_argument("--serve", action="store_true", help="be the server, and check the client")
    parser.add_argument("--name", default="*", help="only the conversations whose names match this glob")
    asked = parser.parse_args(arguments)
    try:
        package = plugins.load(asked.protocol).settings.__module__.rpartition(".")[0]
        chosen = [each for each in conversations(package) if fnmatchcase(each.name, asked.name)]
        if not chosen:
            raise Failure(f"{asked.protocol} has no conversation {asked.name!r}", ExitCode.USAGE)
        for row in played(chosen, asked.host, asked.port, serve=asked.serve):
            print(json.dumps(row), flush=True)
    except BrokerError as error:
        print(error, file=sys.stderr)
        return exit_code(error)
    return ExitCode.OK


def _port(text: str) -> int:
    if not (text.isdecimal() and int(text) < 1 << 16):
        raise ValueError(text)
    return int(text)


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


if __name__ == "__main__":
    sys.exit(main())
