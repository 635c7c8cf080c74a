"""A data folder whose pub/sub clients subscribe and unsubscribe: recover, compare, load, cut, and again.

What is promised and how that is judged: `pubsub_judge`.
"""

import math
import random
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import attrs

from brokers.commands import control
from pubsub.wire import Command, Kind, datagram, encode_command, encode_id, take_frames
from tests.trials.folder import Adapter, HasMode, Verification, durability
from tests.trials.pubsub_judge import KEPT, NONE, PLAIN, PROMISED_SECONDS, PubsubBook, Subscription

_CLIENTS = tuple(f"client-{number}" for number in range(6))
_TOPICS = tuple(f"hall/{number}/+" for number in range(300))

AWAY, KEPT_TOPIC = "away", b"kept"
"""A client that is mostly away, and what it keeps meanwhile."""
STATES: Mapping[Command, str] = {Command.SUBSCRIBE: PLAIN, Command.KEEP: KEPT, Command.UNSUBSCRIBE: NONE}


class PubsubLoad:
    """Clients that change their minds, some of which leave and come back."""

    def __init__(self, address: tuple[str, int], book: PubsubBook, source: random.Random) -> None:
        self._address = address
        self._book = book
        self._source = source
        self._sockets = {client: self._join(client) for client in _CLIENTS}
        self._broke: list[tuple[float, str]] = []
        self._sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._visit()

    def run(self, seconds: float) -> None:
        ends = time.monotonic() + seconds
        while time.monotonic() < ends and not self._broke:
            client = self._source.choice(_CLIENTS)
            try:
                if self._source.random() < 0.02:
                    self._come_back(client)
                self._change(client)
                self._publish()
                if self._source.random() < 0.02:
                    self._visit()
            except OSError as error:
                self._broke.append((time.monotonic(), f"{client}: {error}"))
            time.sleep(self._source.uniform(0, 0.05))

    def drain(self, cut: float) -> list[str]:
        """The end of all connections; what went wrong before the cut."""
        self._book.cut = cut
        for sock in (*self._sockets.values(), self._sender):
            sock.close()
        return [text for at, text in self._broke if at < cut]

    def _change(self, client: str) -> None:
        """A few commands in one write."""
        asked = [
            (self._source.choice(_TOPICS), self._source.choice(tuple(STATES)))
            for _ in range(self._source.randint(1, 20))
        ]
        data = b"".join(encode_command(command, topic.encode()) for topic, command in asked)
        self._sockets[client].sendall(data)
        now = time.monotonic()
        for topic, command in asked:
            self._book.ask(client, topic, STATES[command], now)

    def _publish(self) -> None:
        """A few messages for who is away."""
        sent = self._book.away.sent
        for _ in range(self._source.randint(1, 5)):
            self._sender.sendto(datagram(KEPT_TOPIC, Kind.STRING, b"%d" % len(sent)), self._address)
            sent.append(time.monotonic())

    def _visit(self) -> None:
        faults = self._book.away.visit(visit(self._address), time.monotonic())
        self._broke += [(time.monotonic() - PROMISED_SECONDS, fault) for fault in faults]

    def _come_back(self, client: str) -> None:
        sock = self._sockets[client]
        sock.sendall(encode_command(Command.DISCONNECT))
        while sock.recv(1 << 16):
            pass
        sock.close()
        self._sockets[client] = self._join(client)

    def _join(self, client: str) -> socket.socket:
        sock = socket.create_connection(self._address, timeout=30)
        sock.sendall(encode_id(client.encode()))
        return sock


def visit(address: tuple[str, int]) -> list[int]:
    """The numbers that are kept for who is away. It leaves at once, and is away again."""
    commands = encode_command(Command.KEEP, KEPT_TOPIC) + encode_command(Command.DISCONNECT)
    with socket.create_connection(address, timeout=30) as sock:
        sock.sendall(encode_id(AWAY.encode()) + commands)
        data = b"".join(iter(lambda: sock.recv(1 << 16), b""))
    return [int(message.value) for message in take_frames(data)[0]]


@attrs.define(eq=False)
class PubsubAdapter(Adapter):
    """Subscriptions, all of one mode; no command is answered."""

    protocol = "pubsub"
    book: PubsubBook = attrs.field(factory=PubsubBook, kw_only=True)

    @staticmethod
    def settings(modes: Sequence[str], source: random.Random) -> list[str]:
        """One of the modes for all subscriptions."""
        return ["[pubsub]", f'durability = "{durability(source.choice(modes))}"']

    def load_seconds(self, *, intervals: bool) -> float:
        """Mostly longer than what a promise is about, or nothing would be promised."""
        if self.source.random() < 0.2:
            return self.source.uniform(0, 0.3) * self.load_factor
        return PROMISED_SECONDS + self.source.uniform(0.1, 1.5) * self.load_factor

    def load(self) -> PubsubLoad:
        self.book.mode = self.mode_set("pubsub")
        return PubsubLoad(self.address, self.book, self.source)

    def promised_records(self, until: float) -> int:
        return self.book.promised(until)

    def verify(self, promised_until: Callable[[HasMode], float]) -> Verification:
        """Whether and how long before a cut, a mode says; none promises less than a second, or all."""
        book, shown = self.book, self.look()
        ever = promised_until(book) > -math.inf
        until = book.cut - PROMISED_SECONDS if ever else -math.inf
        verdict = book.judge(shown, until)
        verdict.add(book.away.judge(visit(self.address), time.monotonic(), book.cut, until))
        return Verification(verdict, {"commands of the last second": verdict}, shown)

    def look(self) -> dict[Subscription, str]:
        self.book.away.started(self.book.cut - PROMISED_SECONDS)
        return dict(_shown(control.socket_client(self.server.data).rows("subscriptions", protocol="pubsub")))


def _shown(rows: Sequence[Mapping[str, Any]]) -> Iterator[tuple[Subscription, str]]:
    for row in rows:
        if row["client"] == AWAY:
            continue
        yield (row["client"], row["pattern"]), KEPT if row["kept"] else PLAIN
