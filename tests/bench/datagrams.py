"""A flood of datagrams at a steady rate, from a process of its own.

    with flood(address, datagram, rate=250_000, seconds=5) as sent:
        ...
    print(sent())

Linux takes many datagrams in one system call (sendmmsg); elsewhere each is a call of its own, and slower.
"""

import ctypes
import json
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import perf_counter, sleep

import attrs

from brokers.errors import Failure
from tests.bench.helper import helper

BURST_DATAGRAMS = 128
TICK_SECONDS = 1e-3
"""Between two looks at how many are due."""
BEHIND_SECONDS = 20e-3
"""Who was not let run for longer does not make up for it: that would be another, faster flood."""


@attrs.frozen
class Flood:
    """What a flood was. `datagrams`: handed to the system."""

    datagrams: int
    seconds: float

    @property
    def rate(self) -> float:
        return self.datagrams / self.seconds


@contextmanager
def flood(
    address: tuple[str, int], datagram: bytes, *, rate: float, seconds: float
) -> Iterator[Callable[[], Flood]]:
    """Send `datagram` `rate` times a second. What is given waits for the end, and says what was sent."""
    with helper("datagrams", *map(str, (*address, rate, seconds))) as process:

        def sent() -> Flood:
            said = process.answers.read()
            if not said:
                raise Failure("the flood was not sent")
            return Flood(**json.loads(said))

        process.requests.write(datagram)
        process.requests.close()
        yield sent


def _send(host: str, port: str, rate: str, seconds: str) -> None:
    datagram = sys.stdin.buffer.read()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.connect((host, int(port)))
        burst = _burst(sock, datagram)
        begun = now = perf_counter()
        behind = max(BEHIND_SECONDS * float(rate), 1.0)
        passed_over = 0.0
        sent = 0
        while now - begun < float(seconds) or not sent:  # who is not let run does not send nothing
            due = (now - begun) * float(rate) - passed_over - sent
            if due > behind:
                passed_over += due - behind
                due = behind
            while due >= 1:
                done = burst(int(min(due, BURST_DATAGRAMS)))
                sent += done
                due -= done
            sleep(TICK_SECONDS)
            now = perf_counter()
    print(json.dumps({"datagrams": sent, "seconds": now - begun}))


def _burst(sock: socket.socket, datagram: bytes) -> Callable[[int], int]:
    """Sends up to so many; returns how many it did."""
    try:
        call = ctypes.CDLL(None, use_errno=True).sendmmsg
    except (OSError, AttributeError):
        return lambda count: bool(sock.send(datagram))
    memory = ctypes.create_string_buffer(datagram, len(datagram))
    part = (ctypes.c_size_t * 2)(ctypes.addressof(memory), len(datagram))
    # A msghdr of 64-bit Linux, and behind it the length that was sent: eight words. The third and fourth say
    # where the parts are and how many there are.
    words = (ctypes.c_size_t * (8 * BURST_DATAGRAMS))()
    for at in range(0, len(words), 8):
        words[at + 2], words[at + 3] = ctypes.addressof(part), 1

    def send(count: int) -> int:
        assert memory
        return max(call(sock.fileno(), words, count, 0), 0) or bool(sock.send(datagram))

    return send


if __name__ == "__main__":
    _send(*sys.argv[1:])
