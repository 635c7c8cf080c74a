"""The vectors' player beside a session in memory, and as a server."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from brokers.conform.cli import played
from brokers.conform.playing import Link, conversations
from shared.errors import BrokerError
from tests.support.hand_peer import HandPeer


class HandLink(Link):
    """What is sent is given to `send`; nothing ever comes."""

    def __init__(self, send: Callable[[bytes], object]) -> None:
        self._send = send

    def send(self, data: bytes) -> None:
        self._send(data)

    def receive(self, seconds: float) -> bytes:
        raise TimeoutError

    def end(self) -> None:
        pass


class _PeerLink(Link):
    def __init__(self, peer: Any, settle: Callable[[], object], one_by_one: bool) -> None:
        self._peer = peer
        self._settle = settle
        self._one_by_one = one_by_one

    def send(self, data: bytes) -> None:
        self._peer.send(*([data[at : at + 1] for at in range(len(data))] if self._one_by_one else [data]))

    def receive(self, seconds: float) -> bytes:
        self._settle()
        if taken := bytes(self._peer.connection.taken()):
            return taken
        if self._peer.closed:
            return b""
        raise TimeoutError

    def end(self) -> None:
        if not self._peer.closed:
            self._peer.close_input()


def peer_link(
    peer: HandPeer, settle: Callable[[], object] = lambda: None, *, one_by_one: bool = False
) -> Link:
    """A link to a session driven by hand. `settle`: lets answers come. `one_by_one`: a byte is a read."""
    return _PeerLink(peer, settle, one_by_one)


@contextmanager
def played_server(protocol: str, name: str = "") -> Iterator[int]:
    """The port of a server that plays the conversations; at the end every one has gone as it should.

    `name`: of the only one.
    """
    chosen = [each for each in conversations(protocol) if name in ("", each.name)]
    rows = played(chosen, "127.0.0.1", 0, serve=True)
    address = next(rows)["address"]
    results: list[Any] = []

    def play() -> None:
        try:
            results.extend(rows)
        except BrokerError as error:
            results.append(error)

    thread = threading.Thread(target=play)
    thread.start()
    try:
        yield int(address.rpartition(":")[2])
    finally:
        thread.join()
    assert results
    assert [each for each in results if isinstance(each, BrokerError) or each["result"] != "ok"] == []
