"""A server without a broker: what every broker does, in bare system calls around one epoll.

It reads each message, writes and syncs what it has read where answers are durable, and sends the answers or
the deliveries. It parses nothing, keeps nothing and knows no names. It imports nothing of ours, and starts at
once.
"""

import os
import select
import socket
import sys
from contextlib import suppress
from typing import Literal

Kind = Literal["answer", "echo", "relay"]
"""A byte for each line, every byte sent back, or every byte sent on to the consumers of its group."""
GROUP_BYTES = 2
PRODUCER, CONSUMER = b"p", b"c"
"""What a connection to a relay says first, before its group."""
RECEIVE_BYTES = 256 * 1024
DATAGRAMS = 64
"""Read before they are sent on. A datagram begins with its group."""
FILE_BYTES = 32 << 20
"""Written around, and there before: a sync writes no metadata. A sweep has far less than that under way."""


class _Connection:
    """`group`: of the producer or consumer at the other end. `_unsent`: what its socket did not take yet."""

    def __init__(self, sock: socket.socket, poll: select.epoll) -> None:
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        poll.register(sock, select.EPOLLIN)
        self.sock = sock
        self.group = b""
        self._poll = poll
        self._unsent = bytearray()

    def send(self, data: bytes) -> None:
        if self._unsent:
            self._unsent += data
            return
        sent = self._taken(data)
        if sent < len(data):
            self._unsent += memoryview(data)[sent:]
            self._poll.modify(self.sock, select.EPOLLIN | select.EPOLLOUT)

    def go_on(self) -> None:
        del self._unsent[: self._taken(self._unsent)]
        if not self._unsent:
            self._poll.modify(self.sock, select.EPOLLIN)

    def _taken(self, data: bytes | bytearray) -> int:
        try:
            return self.sock.send(data)
        except BlockingIOError:
            return 0
        except ConnectionError:
            return len(data)  # nobody is there any more; the next read tells

    def read(self) -> bytes:
        try:
            return self.sock.recv(RECEIVE_BYTES)
        except ConnectionError:
            return b""


class _Ring:
    """A file that is written around."""

    def __init__(self, path: str) -> None:
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        os.pwrite(self._fd, bytes(FILE_BYTES), 0)
        os.fsync(self._fd)
        self._at = 0

    def write(self, data: bytes) -> None:
        if self._at + len(data) > FILE_BYTES:
            self._at = 0
        self._at += os.pwrite(self._fd, data, self._at)
        os.fdatasync(self._fd)


class _Server:
    """One kind of work, and who is connected. A producer's messages go to the consumers of its group."""

    def __init__(self, kind: Kind, written: str | None) -> None:
        self._kind = kind
        self._ring = None if written is None else _Ring(written)
        self._connections: dict[int, _Connection] = {}
        self._consumers: dict[bytes, list[_Connection]] = {}

    def serve(self) -> None:
        """Say the port, and never return."""
        with (
            socket.create_server(("127.0.0.1", 0), backlog=1024) as listener,
            socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as datagrams,
            select.epoll() as poll,
        ):
            datagrams.bind(listener.getsockname())
            poll.register(listener, select.EPOLLIN)
            poll.register(datagrams, select.EPOLLIN)
            print(listener.getsockname()[1], flush=True)
            while True:
                read: list[tuple[_Connection, bytes]] = []
                for fd, events in poll.poll():
                    if fd == listener.fileno():
                        connection = _Connection(listener.accept()[0], poll)
                        self._connections[connection.sock.fileno()] = connection
                    elif fd == datagrams.fileno():
                        self._pass_on(datagrams)
                    elif events & select.EPOLLOUT:
                        self._connections[fd].go_on()
                    elif data := self._connections[fd].read():
                        read.append((self._connections[fd], data))
                    else:
                        self._forget(self._connections.pop(fd))
                if read and self._ring is not None:
                    self._ring.write(b"".join([data for _, data in read]))
                for connection, data in read:
                    self._answer(connection, data)

    def _answer(self, connection: _Connection, data: bytes) -> None:
        if self._kind == "answer":
            connection.send(b"\n" * data.count(b"\n"))
        elif self._kind == "echo":
            connection.send(data)
        else:
            if not connection.group:
                role, connection.group = data[:1], data[1 : 1 + GROUP_BYTES]
                data = data[1 + GROUP_BYTES :]
                if role == CONSUMER:
                    self._consumers.setdefault(connection.group, []).append(connection)
            self._relay(connection.group, data)

    def _relay(self, group: bytes, data: bytes) -> None:
        for consumer in self._consumers.get(group, ()):
            consumer.send(data)

    def _pass_on(self, datagrams: socket.socket) -> None:
        """What is there, up to a bound; by group, as one send."""
        by_group: dict[bytes, list[bytes]] = {}
        with suppress(BlockingIOError):
            for _ in range(DATAGRAMS):
                data = datagrams.recv(RECEIVE_BYTES, socket.MSG_DONTWAIT)
                by_group.setdefault(data[:GROUP_BYTES], []).append(data)
        for group, found in by_group.items():
            self._relay(group, b"".join(found))

    def _forget(self, connection: _Connection) -> None:
        with suppress(KeyError, ValueError):
            self._consumers[connection.group].remove(connection)
        connection.sock.close()


if __name__ == "__main__":
    _Server(sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else None).serve()  # type: ignore[arg-type]
