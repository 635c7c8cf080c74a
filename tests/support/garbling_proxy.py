"""A proxy that changes what a server says, once in the life of each connection, and cuts it then."""

import random
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Self

SILENT_SECONDS = 0.02
"""A changed length may make a client wait for more: so long after the change the connection is cut."""


class Garble:
    """What happens to a connection's answers: at a byte that `chance` has, one of four things."""

    def __init__(self, chance: random.Random) -> None:
        self.at = chance.choice([0, 1, 4, 7, *(chance.randrange(600) for _ in range(8))])
        self.kind = chance.choice(["flip", "drop", "insert", "cut"])
        self.bit = 1 << chance.randrange(8)
        self.junk = chance.randbytes(chance.choice([1, 4, 100]))

    def change(self, data: bytes, at: int) -> bytes:
        before, behind = data[:at], data[at:]
        if self.kind == "flip":
            return before + bytes([behind[0] ^ self.bit]) + behind[1:]
        if self.kind == "drop":
            return before + behind[1:]
        return before + (self.junk + behind if self.kind == "insert" else b"")


class GarblingProxy:
    """Passes bytes on to `target`, and answers back as `garble` has it."""

    def __init__(self, target: tuple[str, int]) -> None:
        self.garble: Garble | None = None
        self._target = target
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._threads: list[threading.Thread] = []
        self._sockets: list[socket.socket] = []

    def __enter__(self) -> Self:
        self._begin(self._listen)
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for sock in self._sockets:
            with suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()
        for sock in self._sockets:
            sock.close()

    def _begin(self, work: Callable[..., None], *arguments: object) -> None:
        thread = threading.Thread(target=work, args=arguments)
        thread.start()
        self._threads.append(thread)

    def _listen(self) -> None:
        with suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                far = socket.create_connection(self._target)
                self._sockets += [near, far]
                self._begin(self._ask, near, far)
                self._begin(self._answer, far, near, self.garble)

    def _ask(self, near: socket.socket, far: socket.socket) -> None:
        with suppress(OSError):
            while data := near.recv(1 << 16):
                far.sendall(data)
            far.shutdown(socket.SHUT_WR)

    def _answer(self, far: socket.socket, near: socket.socket, garble: Garble | None) -> None:
        passed = 0
        try:
            while data := far.recv(1 << 16):
                if garble is not None and passed <= garble.at < passed + len(data):
                    data = garble.change(data, garble.at - passed)
                    far.settimeout(SILENT_SECONDS)
                    if garble.kind == "cut":
                        near.sendall(data)
                        break
                near.sendall(data)
                passed += len(data)
        except OSError:
            pass
        for sock in (near, far):  # this wakes `_ask`, too
            with suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
