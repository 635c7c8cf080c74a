"""Finding dead peers among those that receive pushes.

A user timeout would also end a living peer that keeps its window closed, since probes of a closed window
count as unacknowledged. So these connections have none, and are looked at instead: dead is who has data in
flight and has acknowledged nothing for the whole of the time. (A peer that dies with nothing in flight is
TCP keepalive's.)
"""

import math
import socket
import struct
import sys
from collections.abc import Iterable
from typing import Protocol

import trio

AVAILABLE = sys.platform == "linux"
LOOKS = 5
"""How often each connection is looked at within the time it has: it is found dead at most a fifth late."""
SLICE = 100
"""Connections looked at before others get a turn: about 100 µs."""
TCP_INFO = getattr(socket, "TCP_INFO", 11)
UNACKED = struct.Struct("=24xI28xI")
"""Of Linux's struct tcp_info: tcpi_unacked (segments) at 24, tcpi_last_ack_recv (ms ago) at 56."""


PASSED = struct.Struct("=120xQQ")
"""Of the same: tcpi_bytes_acked at 120, tcpi_bytes_received at 128."""


class Pushed(Protocol):
    """A connection that receives pushes."""

    stalled_since: float
    """When data was first seen in flight with no acknowledgement since; inf: not so at the last look."""

    def tcp_info(self, size: int = UNACKED.size) -> bytes | None:
        """The first `size` bytes of struct tcp_info; None where there is none (a closed one)."""

    def abort(self, reason: str) -> None: ...


def bytes_passed(connection: Pushed) -> tuple[int, int] | tuple[None, None]:
    """Received and acknowledged bytes, as the system counts them; with TLS these are the encrypted ones.

    To count them on the way took 9 to 19 % of KqueueMsgQ's processor time a message, one producer to one
    consumer (6 runs in turns, twice).
    """
    try:
        info = connection.tcp_info(PASSED.size) if AVAILABLE else None
    except OSError:
        info = None
    if info is None or len(info) < PASSED.size:
        return None, None
    sent, received = PASSED.unpack(info)
    return received, sent


def is_dead(connection: Pushed, now: float, seconds: float) -> bool:
    """Look once. The first look that finds data in flight starts the time; an acknowledgement ends it."""
    info = connection.tcp_info()
    if info is None:
        return False
    unacked, last_ack_ms = UNACKED.unpack(info)
    if not unacked:
        connection.stalled_since = math.inf
        return False
    last_ack = now - last_ack_ms / 1000
    if last_ack > connection.stalled_since or connection.stalled_since == math.inf:
        connection.stalled_since = now  # the last acknowledgement may be old: nothing was in flight until now
        return False
    return now - connection.stalled_since >= seconds


async def watch(connections: Iterable[Pushed], seconds: float) -> None:
    """Abort dead connections until cancelled. `connections` is read anew at every look."""
    while True:
        await trio.sleep(seconds / LOOKS)
        for number, connection in enumerate(tuple(connections)):
            if is_dead(connection, trio.current_time(), seconds):
                connection.abort("unacknowledged")
            if number % SLICE == SLICE - 1:
                await trio.lowlevel.checkpoint()
