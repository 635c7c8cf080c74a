"""What all connections of the trials' loads have in common: a raw socket that never waits, two buffers."""

import socket
import time

_RECEIVE_BYTES = 1 << 18


class RawPeer:
    """A connection. `faults`: what may not be; `refusals`: what may, with the time of each."""

    def __init__(self, address: tuple[str, int], name: str) -> None:
        self.name = name
        self.faults: list[str] = []
        self.refusals: list[tuple[float, str]] = []
        self.gone = False
        self._out = bytearray()
        self._in = bytearray()
        self.socket = socket.create_connection(address)
        self.socket.setblocking(False)

    @property
    def unsent(self) -> bool:
        return bool(self._out)

    def fill(self, now: float) -> None:
        """Think of what to send next."""
        raise NotImplementedError

    def account(self, now: float) -> None:
        """Take off `_in` what is whole, and keep what it says."""
        raise NotImplementedError

    def flush(self) -> None:
        """Send what the socket takes."""
        while self._out and not self.gone:
            try:
                sent = self.socket.send(self._out)
            except OSError:
                return  # full; or reset, and what came before that is still to be read
            del self._out[:sent]

    def receive(self) -> None:
        """Read and account for what there is."""
        while not self.gone:
            try:
                data = self.socket.recv(_RECEIVE_BYTES)
            except BlockingIOError:
                return
            except OSError:
                data = b""
            if not data:
                self.gone = True
                return
            self._in += data
            self.account(time.monotonic())
