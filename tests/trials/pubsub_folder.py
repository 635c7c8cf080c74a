"""A data folder whose pub/sub clients subscribe and unsubscribe: recover, compare, load, cut, and again.

No command is answered, so the promise is about time: what a client asked for at least a second before the cut
is there. A later command may have been taken or not; so a subscription is in the state that it had a second
before, or in any that it was sent to since. What a recovery has shown is as safe as if it were old.
"""

import math
import random
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import attrs

from brokers import control
from pubsub.wire import Command, encode_command, encode_id
from tests.trials.folder import Folder, durability, storage_settings
from tests.trials.judge import Verdict
from tests.trials.verify import Verification

PROMISED_SECONDS = 1.0
_CLIENTS = tuple(f"client-{number}" for number in range(6))
_TOPICS = tuple(f"hall/{number}/+" for number in range(300))
_KEPT = " (kept)"

Subscription = tuple[str, str]
"""Of a client, to a topic."""
STATES: Mapping[Command, str] = {
    Command.SUBSCRIBE: "plain",
    Command.KEEP: "kept",
    Command.UNSUBSCRIBE: "none",
}


@attrs.define(eq=False)
class PubsubBook:
    """Every subscription's states with the times at which they were asked for; `cut`: of the last load."""

    states: dict[Subscription, list[tuple[float, str]]] = attrs.field(factory=dict)
    cut: float = math.inf

    def asked(self, subscription: Subscription, state: str, now: float) -> None:
        self.states.setdefault(subscription, [(-math.inf, "none")]).append((now, state))

    def judge(self, shown: Mapping[Subscription, str]) -> Verdict:
        """Compare, and take what is shown for granted from now on."""
        verdict = Verdict()
        for subscription in sorted({*self.states, *shown}):
            states = self.states.get(subscription, [(-math.inf, "none")])
            old = [state for at, state in states if at <= self.cut - PROMISED_SECONDS]
            new = [state for at, state in states if at > self.cut - PROMISED_SECONDS]
            state = shown.get(subscription, "none")
            if state not in (old[-1], *new):
                verdict.faults.append(f"{subscription}: {state}; promised was {old[-1]}, later {new}")
            elif not new and state != "none":
                verdict.kept += 1
            self.states[subscription] = [(-math.inf, state)]
        return verdict


class PubsubLoad:
    """Clients that change their minds, some of which leave and come back."""

    def __init__(self, address: tuple[str, int], book: PubsubBook, source: random.Random) -> None:
        self._address = address
        self._book = book
        self._source = source
        self._sockets = {client: self._join(client) for client in _CLIENTS}
        self._faults: list[str] = []

    def run(self, seconds: float) -> None:
        ends = time.monotonic() + seconds
        while time.monotonic() < ends and not self._faults:
            client = self._source.choice(_CLIENTS)
            try:
                if self._source.random() < 0.02:
                    self._come_back(client)
                self._change(client)
            except OSError as error:
                self._faults.append(f"{client}: {error}")
            time.sleep(self._source.uniform(0, 0.05))

    def drain(self, cut: float) -> list[str]:
        """The end of all connections; what went wrong before the cut."""
        self._book.cut = cut
        for sock in self._sockets.values():
            sock.close()
        return self._faults

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
            self._book.asked((client, topic), STATES[command], now)

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


def pubsub_settings(modes: Sequence[str], source: random.Random) -> str:
    """TOML: one of the modes, for all subscriptions; a kill takes nothing from any of them."""
    return "\n".join(
        [*storage_settings(source), "[pubsub]", f'durability = "{durability(source.choice(modes))}"', ""]
    )


@attrs.define(eq=False)
class PubsubFolder(Folder):
    """A data folder, its server, and what its clients asked for."""

    book: PubsubBook = attrs.field(factory=PubsubBook)  # type: ignore[assignment]

    def load_seconds(self) -> float:
        """Longer than what a promise is about, or nothing would be promised."""
        return self.source.uniform(0, PROMISED_SECONDS * 3) * self.load_factor

    def load(self) -> PubsubLoad:  # type: ignore[override]
        return PubsubLoad(self.server.address("pubsub"), self.book, self.source)

    def promised_records(self, until: float) -> int:
        return sum(states[-1][0] <= until - PROMISED_SECONDS for states in self.book.states.values())

    def _verify(self, promised_until: Callable[[Any], float]) -> Verification:
        shown = self._shown()
        return Verification(self.book.judge(shown), {}, shown)  # type: ignore[arg-type]

    def _look(self) -> Any:
        return self._shown()

    def _same(self, name: Any, before: Any, now: Any) -> bool:
        return bool(before.get(name) == now.get(name))

    def _shown(self) -> dict[Subscription, str]:
        return dict(_shown(control.request(self.server.data, "POST", "/pubsub/sessions", {"topics": True})))


def _shown(rows: Sequence[Mapping[str, Any]]) -> Iterator[tuple[Subscription, str]]:
    for row in rows:
        for topic in row["topics"]:
            yield (row["client"], topic.removesuffix(_KEPT)), "kept" if topic.endswith(_KEPT) else "plain"
