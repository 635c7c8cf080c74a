"""A proxy that loses connections when told to, for clients of any kind: it runs in threads."""

import contextlib
import socket
import threading


class CuttingProxy:
    """Passes bytes on to `target`. `port`: where it listens. Close it at the end."""

    def __init__(self, target: tuple[str, int]) -> None:
        self.connections = 0
        self.deaf_after: list[int] = []
        """For each coming connection, how many bytes of requests are passed on before it is cut. What is
        answered to the last of them is lost."""
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
            self._begin(far, near, None)
            self.connections += 1

    def _begin(self, source: socket.socket, target: socket.socket, limit: int | None) -> None:
        thread = threading.Thread(target=_pass, args=(source, target, limit))
        thread.start()
        self._threads.append(thread)


def _pass(source: socket.socket, target: socket.socket, limit: int | None) -> None:
    """Pass on until either side ends. `limit`: only so many bytes, and nobody hears what is said to them."""
    passed = 0
    try:
        while data := source.recv(1 << 16):
            if limit is not None and passed + len(data) >= limit:
                source.shutdown(socket.SHUT_RDWR)
                target.sendall(data[: limit - passed])
                break
            passed += len(data)
            target.sendall(data)
    except OSError:
        pass
    for end in (source, target):
        with contextlib.suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)
