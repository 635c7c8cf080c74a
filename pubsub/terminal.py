"""The specification's subscriber: commands on standard input, messages on standard output.

It starts at once and does little, so it is a plain loop over two descriptors. Importing trio, which the
client is built on, would take a quarter of its start.
"""

import errno
import os
import select
import socket
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress

from pubsub import wire
from pubsub.wire import Command

READ_BYTES = 64 * 1024
COMMANDS = {b"subscribe": Command.SUBSCRIBE, b"unsubscribe": Command.UNSUBSCRIBE, b"keep": Command.KEEP}
PROBE = b"\r\n\r\n(is this a pub/sub server?)"
"""Nobody is subscribed to this topic, so unsubscribing from it does nothing and is not answered. A server of
another protocol answers: with the id it is more than a line, and longer than any first word."""
FRAME_SECONDS = 2.0
"""For the rest of the first frame. A server sends each frame whole."""
FIRST_SECONDS = 5.0
"""A server that closes sooner did not accept the subscriber."""
_SAID = {Command.UNSUBSCRIBE: b"Unsubscribed from topic %b\n"}


class Terminal:
    """A subscriber, connected. `lines` is what it prints until it ends."""

    def __init__(self, sock: socket.socket, client_id: str, where: str, login: bytes = b"") -> None:
        """`sock`: connected to `where`, blocking. `login`: what is said behind the id.

        Raises ValueError where the id is none, and OSError.
        """
        self._socket = sock
        self._client_id = client_id
        self._where = where
        # What is no pub/sub server may send back what it was sent: then an error shows no more than the id.
        self._shown_max = wire.ID_BYTES if login else 40
        self._heard = False
        self._since = time.monotonic()
        self._commands = b""  # the beginning of a line
        self._frames = b""  # the beginning of a frame
        self._over = False
        # Bytes that TLS has read and not given out yet: `select` does not see them. (Importing ssl to ask
        # whether it is used would take a twentieth of the start.)
        self._pending: Callable[[], int] = getattr(sock, "pending", lambda: 0)
        first = wire.encode_id(client_id.encode())
        sock.sendall(first + login + wire.encode_command(Command.UNSUBSCRIBE, PROBE))

    def lines(self, stdin: int) -> Iterator[bytes]:
        """Lines with their ends, as they arrive. At the end of standard input messages still arrive.

        Raises ConnectionRefusedError where the server closes: it stops, or the id is connected already.
        """
        sources = [self._socket.fileno(), stdin]
        while not self._over:
            foreign = self._frames and not self._heard
            ready, _, _ = select.select(sources, (), (), FRAME_SECONDS if foreign else None)
            if foreign and not ready:
                raise self._not_answered(f"it says {self._frames[: self._shown_max]!r}")
            if stdin in ready:
                data = os.read(stdin, READ_BYTES)
                if not data:
                    sources.remove(stdin)
                *commands, self._commands = (self._commands + (data or b"\n")).split(b"\n")
                for command in commands:
                    if not self._over:
                        yield from self._obey(command.rstrip(b"\r"))
            if not self._over and sources[0] in ready:
                yield from self._receive()

    def _obey(self, command: bytes) -> Iterator[bytes]:
        word, _, topic = command.strip().partition(b" ")
        topic = topic.strip()
        if word == b"exit" and not topic:
            self._socket.sendall(wire.encode_command(Command.DISCONNECT))
            self._over = True
        elif word in COMMANDS and topic:
            asked = COMMANDS[word]
            try:
                self._socket.sendall(wire.encode_command(asked, topic))
            except ValueError as error:
                _complain(str(error))
                return
            yield _SAID.get(asked, b"Subscribed to topic %b\n") % topic
        elif command.strip():
            _complain("commands: subscribe <topic>, unsubscribe <topic>, keep <topic>, exit")

    def _receive(self) -> Iterator[bytes]:
        try:
            data = self._socket.recv(READ_BYTES)
            while self._pending():
                data += self._socket.recv(READ_BYTES)
        except ConnectionResetError:
            data = b""
        if not data and self._frames and not self._heard:
            raise self._not_answered(f"it says {self._frames[: self._shown_max]!r}")
        if not data and time.monotonic() < self._since + FIRST_SECONDS:
            why = f"it closed the connection: it stops, or has a client {self._client_id} already, or refuses"
            raise self._not_answered(f"{why} the login, or speaks another protocol")
        if not data:
            # The command ends as where no server is there, so a script can tell it from `exit`.
            raise ConnectionRefusedError(errno.ECONNREFUSED, "the server closed the connection")
        self._frames += data
        messages, end = wire.take_frames(self._frames)
        self._frames = self._frames[end:]
        self._heard = self._heard or bool(messages)
        for message in messages:
            try:
                yield wire.line(message) + b"\n"
            except wire.WireError as error:
                _complain(str(error))

    def _not_answered(self, why: str) -> ConnectionRefusedError:
        """The error for what is no pub/sub server."""
        from shared.client.dial import Disconnected, check_plain  # not before: it brings trio

        try:
            check_plain(self._frames)
        except Disconnected as error:
            why = str(error)
        return ConnectionRefusedError(errno.ECONNREFUSED, f"no pub/sub server answers ({why})", self._where)


def _complain(text: str) -> None:
    with suppress(OSError):
        print(f"brokers: {text}", file=sys.stderr, flush=True)
