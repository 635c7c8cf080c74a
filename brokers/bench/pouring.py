"""Load at the rate at which a server takes it, and hardly any work for who makes it.

One kind of message is written over and over, and what comes of it is thrown away unseen. Nobody counts
deliveries; the server's own counters do.
"""

import socket
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from time import perf_counter

import attrs

from brokers.errors import Refusal

WARM_UP_SECONDS = 0.3
WRITE_BYTES = 256 * 1024
UNREAD = socket.MSG_TRUNC if sys.platform == "linux" else 0
"""Linux throws away what it does not have to copy: that much more is left for who is measured."""


@attrs.frozen
class Case:
    """How a protocol is driven. `run(address, data folder, seconds)`: messages a second. `passed`: its
    counter of messages that a recorder is to write; `frame_bytes`: of one of them in a block."""

    run: Callable[[tuple[str, int], Path, float], float]
    passed: str
    frame_bytes: int


def poured(writer: socket.socket, reader: socket.socket, message: bytes, seconds: float) -> float:
    """Write `message` over and over, as fast as it is taken, while all that comes is read and not looked at;
    how many a second were taken, after a warm-up."""
    data = message * (WRITE_BYTES // len(message) + 1)
    ended = threading.Event()

    def read() -> None:
        room = bytearray(1 << 20)
        try:
            while reader.recv_into(room, 0, UNREAD):
                pass
        except OSError:
            pass
        ended.set()

    thread = threading.Thread(target=read)
    thread.start()
    try:
        begun = perf_counter()
        measured_from, ends = begun + WARM_UP_SECONDS, begun + WARM_UP_SECONDS + seconds
        sent = before = 0
        since = now = begun
        while now < ends or sent == before:  # one write may take longer than all of them should
            writer.sendall(data)
            sent += len(data)
            now = perf_counter()
            if since == begun and now >= measured_from:
                since, before = now, sent
            if ended.is_set():
                raise Refusal("the server that is measured closed a connection")
        return (sent - before) / len(message) / max(now - since, 1e-9)
    finally:
        writer.shutdown(socket.SHUT_WR)
        while writer.recv(WRITE_BYTES):  # until the server, which has read everything, closes it
            pass
        reader.shutdown(socket.SHUT_RDWR)
        thread.join()
