"""The subscriber of the commands. The specification's takes commands on standard input.

It must start fast and does little, so it is a plain loop over two descriptors. Importing trio, which the
client needs, would add a quarter to its start.
"""

import errno
import os
import select
import socket
import stat
import sys
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import suppress

from pubsub import wire
from pubsub.wire import Command, Message
from shared.client.dial import Disconnected, check_plain
from shared.errors import RemoteProtocolError

READ_BYTES = 64 * 1024
COMMANDS = {b"subscribe": Command.SUBSCRIBE, b"unsubscribe": Command.UNSUBSCRIBE, b"keep": Command.KEEP}
PROBE = b"\r\n\r\n(is this a pub/sub server?)"
"""A probe for the protocol. No client has this subscription, so ending it does nothing and gets no answer. A
server of another protocol answers: id and probe are more than a line, and longer than any first word."""
SETTLE_SECONDS = 0.2
"""Commands wait so long for what another server says to the probe, so that none is confirmed there."""
FRAME_SECONDS = 2.0
"""How long the rest of the first frame may take. A server sends each frame whole."""
FIRST_SECONDS = 5.0
"""A server that closes within this time did not accept the subscriber."""
UNANSWERED = "pub/sub answers nothing: a topic that no rule of yours allows brings no messages"
_SAID = {Command.UNSUBSCRIBE: b"Unsubscribed from topic %b\n"}


class Terminal:
    """A connected subscriber. `lines` yields what it prints."""

    def __init__(self, sock: socket.socket, client_id: str, where: str, login: bytes = b"") -> None:
        """`sock`: a blocking socket connected to `where`. `login`: the bytes to send after the id.

        Raises ValueError for a malformed id, and OSError.
        """
        self._socket = sock
        self._client_id = client_id
        self._where = where
        # Another server may echo what it was sent, so an error shows at most the id.
        self._shown_max = wire.ID_BYTES if login else 40
        self._has_login = bool(login)
        self._heard = False
        self._settled = False
        self._since = time.monotonic()
        self._commands = b""  # the beginning of a line
        self._frames = b""  # the beginning of a frame
        self._over = False
        # Bytes that TLS has read and not returned yet, which `select` does not see. (Importing ssl to test
        # for it would add a twentieth to the start.)
        self._pending: Callable[[], int] = getattr(sock, "pending", lambda: 0)
        tls = sys.modules.get("ssl")
        self._nothing_yet: tuple[type[OSError], ...] = (
            BlockingIOError,
            *([tls.SSLWantReadError] if tls else []),
        )
        first = wire.encode_id(client_id.encode())
        sock.sendall(first + login + wire.encode_command(Command.UNSUBSCRIBE, PROBE))

    def lines(self, stdin: int) -> Iterator[bytes]:
        """Yield lines with their ends as they arrive, also after the end of standard input.

        Raises ConnectionRefusedError if the server closes: it stops, or the id is connected already.
        """
        more = [stdin]
        while not self._over:
            ready = self._wait(*more)
            if stdin in ready:
                data = os.read(stdin, READ_BYTES)
                if not data:
                    more.clear()
                *commands, self._commands = (self._commands + (data or b"\n")).split(b"\n")
                for command in commands:
                    if not self._over:
                        yield from self._obey(command.rstrip(b"\r"))
            if not self._over and self._socket.fileno() in ready:
                for message in self._receive():
                    yield wire.line(message) + b"\n"

    def messages(
        self, topics: Sequence[bytes], seconds: float | None, minutes: int | None = None
    ) -> Generator[Message, None, None]:
        """Subscribe, from `minutes` ago on, and yield messages until none came for `seconds`. The
        subscriptions end with it.

        Raises ConnectionRefusedError if the server closes, and BrokenPipeError if the reader of standard
        output does.
        """
        while not self._settled:
            if self._wait():
                yield from self._receive()
        if minutes is None:
            asked = [wire.encode_command(Command.SUBSCRIBE, topic) for topic in topics]
        else:
            asked = [wire.encode_past(minutes, topic, keep=False) for topic in topics]
        self._socket.sendall(b"".join(asked))
        if self._has_login:
            _complain(UNANSWERED)
        # A pipe's end for writing counts as readable once nobody reads the other.
        output = [1] if stat.S_ISFIFO(os.fstat(1).st_mode) else []
        try:
            while ready := self._wait(*output, seconds=seconds):
                if 1 in ready:
                    raise BrokenPipeError
                yield from self._receive()
        finally:
            with suppress(OSError):
                ends = (wire.encode_command(Command.UNSUBSCRIBE, topic) for topic in topics)
                self._socket.sendall(b"".join([*ends, wire.encode_command(Command.DISCONNECT)]))

    def _wait(self, *more: int, seconds: float | None = None) -> list[int]:
        """Return the descriptors that can be read: the socket, and `more` once the server has settled.

        Raises ConnectionRefusedError if it turns out to be another kind of server.
        """
        is_foreign = self._frames and not self._heard
        if is_foreign:
            seconds = FRAME_SECONDS
        elif not self._settled:
            seconds = SETTLE_SECONDS
        sources = [self._socket.fileno(), *(more if self._settled else ())]
        ready, _, _ = select.select(sources, (), (), seconds)
        if is_foreign and not ready:
            raise self._not_answered(f"it says {self._frames[: self._shown_max]!r}")
        self._settled = self._settled or self._heard or not ready
        return ready

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
            if self._has_login and asked is not Command.UNSUBSCRIBE:
                self._has_login = False
                _complain(UNANSWERED)
        elif command.strip():
            _complain("commands: subscribe <topic>, unsubscribe <topic>, keep <topic>, exit")

    def _receive(self) -> Iterator[Message]:
        """Yield the messages that are there and have a value. Raises ConnectionRefusedError at the end."""
        self._socket.settimeout(0)  # under TLS, what `select` saw may be no message: a session ticket
        try:
            data = self._socket.recv(READ_BYTES)
            while self._pending():
                data += self._socket.recv(READ_BYTES)
        except self._nothing_yet:
            return
        except ConnectionResetError:
            data = b""
        finally:
            self._socket.settimeout(None)
        if not data and self._frames and not self._heard:
            raise self._not_answered(f"it says {self._frames[: self._shown_max]!r}")
        if not data and time.monotonic() < self._since + FIRST_SECONDS:
            why = f"it closed the connection: it stops, or has a client {self._client_id} already, or refuses"
            raise self._not_answered(f"{why} the login, or speaks another protocol")
        if not data:
            # The exit code is that of a missing server, so a script can tell it from `exit`.
            raise ConnectionRefusedError(errno.ECONNREFUSED, "the server closed the connection")
        self._frames += data
        messages, end = wire.take_frames(self._frames)
        self._frames = self._frames[end:]
        self._heard = self._heard or bool(messages)
        for message in messages:
            try:
                _ = message.value
            except RemoteProtocolError as error:
                _complain(str(error))
            else:
                yield message

    def _not_answered(self, why: str) -> ConnectionRefusedError:
        """The error for a peer that is no pub/sub server."""
        try:
            check_plain(self._frames)
        except Disconnected as error:
            why = str(error)
        return ConnectionRefusedError(errno.ECONNREFUSED, f"no pub/sub server answers ({why})", self._where)


def _complain(text: str) -> None:
    with suppress(OSError):
        print(f"brokers: {text}", file=sys.stderr, flush=True)
