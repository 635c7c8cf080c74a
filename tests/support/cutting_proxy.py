"""A proxy that loses connections, or changes what a server says, when told to: it runs in threads."""

import contextlib
import random
import socket
import threading

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


class CuttingProxy:
    """Passes bytes on to `target`. `port`: where it listens. Close it at the end."""

    def __init__(self, target: tuple[str, int]) -> None:
        self.connections = 0
        self.deaf_after: list[int] = []
        """For each coming connection, how many bytes of requests are passed on before it is cut. What is
        answered to the last of them is lost."""
        self.garble: Garble | None = None
        """What happens to the answers of each coming connection, once; it is cut then."""
        self._target = target
        self._sockets: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._listening = threading.Thread(target=self._listen)
        self._listening.start()

    def cut(self) -> None:
        """End all connections."""
        for sock in self._sockets:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)

    def stop(self) -> None:
        """End all connections, and take no more."""
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listening.join()
        self._listener.close()
        self.cut()
        for thread in self._threads:
            thread.join()
        for sock in self._sockets:
            sock.close()

    def _listen(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            limit = self.deaf_after.pop(0) if self.deaf_after else None
            far = socket.create_connection(self._target)
            self._sockets += [near, far]
            self._begin(near, far, limit)
            self._begin(far, near, garble=self.garble)
            self.connections += 1

    def _begin(
        self,
        source: socket.socket,
        target: socket.socket,
        limit: int | None = None,
        garble: Garble | None = None,
    ) -> None:
        thread = threading.Thread(target=_pass, args=(source, target, limit, garble))
        thread.start()
        self._threads.append(thread)


def _pass(source: socket.socket, target: socket.socket, limit: int | None, garble: Garble | None) -> None:
    """Pass on until either side ends. `limit`: only so many bytes, and nobody hears what is said to them."""
    passed = 0
    try:
        while data := source.recv(1 << 16):
            if limit is not None and passed + len(data) >= limit:
                source.shutdown(socket.SHUT_RDWR)
                target.sendall(data[: limit - passed])
                break
            if garble is not None and passed <= garble.at < passed + len(data):
                data = garble.change(data, garble.at - passed)
                source.settimeout(SILENT_SECONDS)
                if garble.kind == "cut":
                    target.sendall(data)
                    break
            passed += len(data)
            target.sendall(data)
        else:  # who says no more may still be told something
            target.shutdown(socket.SHUT_WR)
            return
    except OSError:
        pass
    for end in (source, target):
        with contextlib.suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)
