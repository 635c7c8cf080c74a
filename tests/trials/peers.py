"""What the trials' loads share: requests with answers, and connections that never wait, in one thread.

One thread speaks on raw sockets, so it always knows what it has read when the cut comes: all of it counts.
"""

import random
import selectors
import socket
import time
from collections.abc import Sequence
from typing import TypeVar

import attrs

_RECEIVE_BYTES = 1 << 18

Mix = TypeVar("Mix")


@attrs.define(eq=False)
class Asked:
    """A request. `queued` is at or before its first byte was sent, `answered` when its answer was read."""

    queued: float
    answered: float | None = None
    refused: str = ""
    """What it was told instead: such a request took place or it did not."""

    @property
    def acknowledged(self) -> bool:
        return self.answered is not None and not self.refused

    def promised(self, until: float) -> bool:
        """Was it acknowledged by then?"""
        return self.answered is not None and not self.refused and self.answered <= until


def burst(window: int, waiting: int) -> int:
    """How many requests to send now: none before half of the window is free, since bursts make batches."""
    room = window - waiting
    return room if room >= window // 2 else 0


@attrs.define(eq=False)
class RawPeer:
    """A connection. `faults`: what may not be; `refusals`: what may, with the time of each."""

    address: tuple[str, int]
    name: str
    faults: list[str] = attrs.field(factory=list, init=False)
    refusals: list[tuple[float, str]] = attrs.field(factory=list, init=False)
    gone: bool = attrs.field(default=False, init=False)
    received_bytes: int = attrs.field(default=0, init=False)
    sock: socket.socket = attrs.field(init=False)
    _out: bytearray = attrs.field(factory=bytearray, init=False)
    _in: bytearray = attrs.field(factory=bytearray, init=False)

    def __attrs_post_init__(self) -> None:
        self.sock = socket.create_connection(self.address)
        self.sock.setblocking(False)

    @property
    def unsent(self) -> bool:
        return bool(self._out)

    def fill(self, now: float) -> None:
        """Think of what to send next."""
        raise NotImplementedError

    def account(self, now: float) -> None:
        """Take off `_in` what is whole, and keep what it says."""
        raise NotImplementedError

    def closed(self) -> None:
        """The server is gone, and what it had still said is accounted for."""

    def flush(self) -> None:
        """Send what the socket takes."""
        while self._out and not self.gone:
            try:
                sent = self.sock.send(self._out)
            except OSError:
                return  # full; or reset, and what came before that is still to be read
            del self._out[:sent]

    def receive(self) -> None:
        """Read and account for what there is."""
        while not self.gone:
            try:
                data = self.sock.recv(_RECEIVE_BYTES)
            except BlockingIOError:
                return
            except OSError:
                data = b""
            if not data:
                self.gone = True
                return
            self._in += data
            self.received_bytes += len(data)
            self.account(time.monotonic())


def sampled(source: random.Random, mixes: Sequence[Mix], least: int = 1) -> list[tuple[int, Mix]]:
    """Some of them, with their numbers."""
    return source.sample(list(enumerate(mixes)), source.randint(least, len(mixes)))


class PeersLoad:
    """Several peers, on one server."""

    def __init__(self, peers: Sequence[RawPeer]) -> None:
        self._peers = peers

    def run(self, seconds: float) -> None:
        """Keep it up for so long. What is answered is accounted for as it comes."""
        self._run(time.monotonic() + seconds, fill=True)

    @property
    def received_bytes(self) -> int:
        return sum(peer.received_bytes for peer in self._peers)

    def drain(self, cut: float, seconds: float = 5.0) -> list[str]:
        """The server is gone: read what it had still said, close, and return what was wrong all along.

        A refusal before `cut` was wrong: nothing was asked that may be refused.
        """
        self._run(time.monotonic() + seconds, fill=False)
        faults = []
        for peer in self._peers:
            peer.sock.close()
            peer.closed()
            faults += peer.faults
            faults += [text for at, text in peer.refusals if at < cut]
        return faults

    def _run(self, until: float, *, fill: bool) -> None:
        with selectors.DefaultSelector() as selector:
            for peer in self._peers:
                if not peer.gone:
                    selector.register(peer.sock, selectors.EVENT_READ, peer)
            while selector.get_map() and (now := time.monotonic()) < until:
                for peer in self._peers:
                    if fill and not peer.gone:
                        peer.fill(now)
                        peer.flush()
                        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if peer.unsent else 0)
                        selector.modify(peer.sock, events, peer)
                for key, _ in selector.select(min(until - now, 0.02)):
                    key.data.receive()
                    if key.data.gone:
                        selector.unregister(key.fileobj)
