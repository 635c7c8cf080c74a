"""Conversations: what the client and the server say, played as one of the two against the other.

A vector's file is `vectors.json` in the package of its protocol:

    {"conversations": [{"name": "...", "connections": {"C": "tcp"}, "steps": [
        ["C>", "'PING' 0a", "what the client says on connection C"],
        ["C<", "'PONG' 0a", "what the server answers"],
        ["C<", "end", "the server closes"]]}]}

`>>` in place of `>`: a client sends it again and again until the next answer is there. What comes before it,
on another connection, is not answered. Further copies of that answer are passed over.
"""

import json
import secrets
import socket
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from importlib.resources import files

import attrs

from brokers.conform.notation import Differs, More, Token, parse, read, write
from brokers.errors import ExitCode, Failure

END = "end"
AGAIN_SECONDS = 0.1
"""How long an answer to what is sent again and again is waited for."""
PATIENCE_SECONDS = 10.0
"""How long any other answer is waited for."""
COPIES_MAX = 1000
"""How often a client sends again what it sends until there is an answer."""
REST_SECONDS = 1.0
"""How long it is looked whether more comes behind the end of a conversation."""


@attrs.frozen
class Step:
    """What one side says on a connection; `parts`: None: it ends its side of it."""

    connection: str
    by_client: bool
    again: bool
    parts: Sequence[Token] | None
    about: str

    @classmethod
    def parse(cls, where: str, text: str, about: str) -> "Step":
        """Raises ValueError."""
        name, sign = where.rstrip("<>"), where.lstrip("ABCDEFGHIJKLMNOPQRSTUVWXYZ")
        if sign not in ("<", ">", ">>") or not name:
            raise ValueError(f"{where!r}: C> is of the client, C< of the server")
        return cls(name, sign != "<", sign == ">>", None if text == END else parse(text), about)


@attrs.frozen
class Conversation:
    """`connections`: `tcp` or `udp` by name."""

    name: str
    connections: Mapping[str, str]
    steps: Sequence[Step]


def conversations(package: str) -> Sequence[Conversation]:
    """The vectors of a protocol's package. Raises Failure where it has none."""
    try:
        text = (files(package) / "vectors.json").read_text()
    except OSError:
        raise Failure(f"{package} has no vectors.json", ExitCode.MISSING) from None
    return [
        Conversation(row["name"], row["connections"], [Step.parse(*step) for step in row["steps"]])
        for row in json.loads(text)["conversations"]
    ]


class Link:
    """A socket to the other side. All but `end` raise OSError."""

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock

    def send(self, data: bytes) -> None:
        self._socket.sendall(data)

    def receive(self, seconds: float) -> bytes:
        """What has come, b"" at the end. Raises TimeoutError."""
        self._socket.settimeout(seconds)
        return self._socket.recv(1 << 16)

    def end(self) -> None:
        """Send no more; may be called again."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_WR)


@attrs.frozen
class Difference(Exception):
    """The step in which the other side said something else, and how."""

    step: int
    about: str
    text: str

    def __str__(self) -> str:
        return f"step {self.step}, {self.about}: {self.text}"


def fresh_name(name: str) -> bytes:
    return f"{name}-{secrets.token_hex(3)}".encode()


@attrs.define(eq=False)
class Player:
    """Plays one side. `link(name)`: the connection of that name, opened when it is first asked for."""

    _link: Callable[[str], Link]
    _is_client: bool
    _names: dict[str, bytes] = attrs.field(factory=dict)
    _unread: dict[str, bytes] = attrs.field(factory=dict)
    _copies: dict[str, tuple[bytes, int]] = attrs.field(factory=dict)
    """Of an answer that may come again: its bytes, and how often."""
    _repeat: Callable[[], None] | None = None

    def play(self, conversation: Conversation) -> None:
        """Play to the end. Raises Difference."""
        for number, step in enumerate(conversation.steps, start=1):
            try:
                if step.by_client is self._is_client:
                    self._say(step)
                else:
                    self._hear(step)
            except (Differs, OSError) as error:
                text = f"byte {error.at}: {error.text}" if isinstance(error, Differs) else str(error)
                about = f"{step.connection}, {step.about}" if step.about else step.connection
                raise Difference(number, about, text) from None
        if self._is_client:
            for name, kind in conversation.connections.items():
                if kind == "tcp" and (rest := self._rest(name)):
                    text = f"{len(rest)} bytes more than expected came: {rest[:40].hex(' ')}"
                    raise Difference(len(conversation.steps), name, text)

    def _say(self, step: Step) -> None:
        link = self._link(step.connection)
        if step.parts is None:
            link.end()
            return
        data = write(step.parts, self._names, fresh_name)
        link.send(data)
        self._repeat = (lambda: link.send(data)) if step.again and self._is_client else None

    def _hear(self, step: Step) -> None:
        """Wait until the other side has said what it should. Raises Differs and OSError."""
        name, link = step.connection, self._link(step.connection)
        repeat, self._repeat = self._repeat, None
        sent = 1
        while True:
            unread = self._without_copies(name)
            try:
                if unread and step.parts is None:
                    raise Differs(0, f"the end expected, {unread[:40].hex(' ')} came")
                if step.parts is not None and not self._copy_begins(name, unread):
                    end, self._names = read(step.parts, unread, self._names)
                    break
            except More:
                pass
            try:
                came = link.receive(AGAIN_SECONDS if repeat else PATIENCE_SECONDS)
            except TimeoutError:
                if repeat is None or sent * AGAIN_SECONDS > PATIENCE_SECONDS:
                    raise Differs(len(unread), "nothing more came") from None
                repeat()
                sent += 1
                continue
            except ConnectionError:
                came = b""
            if not came and step.parts is None:
                return
            if not came:
                raise Differs(len(unread), "the connection was closed")
            self._unread[name] = unread + came
        self._unread[name] = unread[end:]
        if repeat or step.again:
            self._copies[name] = unread[:end], sent - 1 if repeat else COPIES_MAX

    def _without_copies(self, name: str) -> bytes:
        """What is unread, without copies of an answer at its front."""
        unread = self._unread.get(name, b"")
        copy, times = self._copies.get(name, (b"", 0))
        while times and unread.startswith(copy):
            unread = unread[len(copy) :]
            times -= 1
        self._copies[name] = copy, times
        self._unread[name] = unread
        return unread

    def _copy_begins(self, name: str, unread: bytes) -> bool:
        """Whether all that is unread may be the beginning of a copy."""
        copy, times = self._copies[name]
        return bool(times and unread) and copy.startswith(unread)

    def _rest(self, name: str) -> bytes:
        """What comes behind the conversation, until the other side closes or says no more."""
        link = self._link(name)
        link.end()
        with suppress(OSError):
            while came := link.receive(REST_SECONDS):
                self._unread[name] = self._unread.get(name, b"") + came
        return self._without_copies(name)
