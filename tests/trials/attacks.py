"""`make trial-attacks`: what those who attack the admin port cost the clients of a protocol.

LogMQ is asked on four connections, one request at a time on each, in turns without and with an attack:
10,000 connections that come again when they are closed; requests and bodies that come a byte at a time;
requests by other names, from other sites, by odd paths and with wrong tokens. The attackers are a process of
their own that stands for another machine, so it has only what the others leave of the processor
(`strangers.stand_aside`): what is measured is what the server spends on them. All that they ask for is
refused, and the p99 grows by a tenth at most. How that is judged: `strangers`; exit 2 where it cannot be.
"""

import argparse
import contextlib
import itertools
import socket
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from multiprocessing.synchronize import Event
from pathlib import Path

from brokers.bench.load import Measured
from shared.process_limits import raise_file_limit
from tests.bench.sweep import taken_in_turns
from tests.trials import outcomes
from tests.trials.serving import TrialServer
from tests.trials.strangers import Address, ask, beside, judged, median_ratio, stand_aside

_CONNECTIONS = 10_000
_SLOW = 100
_PACE_SECONDS = 0.002
"""Between two requests of who asks for what he may not: more than a browser ever sends."""
_REQUESTS = [
    ("GET /api/v1/queues", "Host: evil.example"),
    ("GET /api/v1/queues", "Host: {host}\r\nOrigin: http://evil.example"),
    ("POST /api/v1/queues/dms/jobs/purge", "Host: {host}\r\nContent-Type: text/plain\r\nContent-Length: 0"),
    ("GET /livez/../api/v1/queues", "Host: {host}"),
    ("GET //api/v1/queues", "Host: {host}"),
    ("GET /%61pi/v1/queues", "Host: {host}"),
    ("GET /api/v1/queues", "Host: {host}\r\nReferer: http://{host}/?token=wrong"),
]


def _connect_and_hold(address: Address, over: Event) -> None:
    held: dict[int, socket.socket] = {}
    for number in itertools.count():
        if over.is_set():
            return
        sock = socket.socket()
        sock.setblocking(False)
        with contextlib.suppress(OSError):
            sock.connect_ex(address)
        if number >= _CONNECTIONS:
            held[number % _CONNECTIONS].close()
        held[number % _CONNECTIONS] = sock
        time.sleep(_PACE_SECONDS / 4)


def _come_slowly(address: Address, over: Event) -> None:
    head = "POST /login HTTP/1.1\r\nHost: {}:{}\r\nContent-Type: application/json\r\nContent-Length: 2000"
    data = head.format(*address).encode() + b"\r\n\r\n" + b" " * 2000
    slow: list[tuple[socket.socket, int]] = []
    while not over.wait(0.1):
        while len(slow) < _SLOW:  # half of them begin with the body
            slow.append((socket.create_connection(address), len(slow) % 2 * data.index(b"  ")))
            slow[-1][0].sendall(data[: slow[-1][1]])
        for number, (sock, at) in enumerate(slow):
            with contextlib.suppress(OSError):
                sock.sendall(data[at : at + 1])
                slow[number] = sock, at + 1
                continue
            sock.close()
            slow[number] = socket.create_connection(address), 0


def _ask_for_more(address: Address, over: Event) -> None:
    host = "{}:{}".format(*address)
    while not over.is_set():
        for first, rest in _REQUESTS:
            with socket.create_connection(address, timeout=30) as sock:
                sock.sendall(
                    f"{first} HTTP/1.1\r\n{rest.format(host=host)}\r\nConnection: close\r\n\r\n".encode()
                )
                answer = sock.recv(1000)
                if answer[9:10] != b"4":
                    raise AssertionError(f"{first}, {rest}: {answer!r}")
            time.sleep(_PACE_SECONDS)


ATTACKS: Mapping[str, Callable[[Address, Event], None]] = {
    f"{_CONNECTIONS:,} connections": _connect_and_hold,
    "slow requests and bodies": _come_slowly,
    "what is refused": _ask_for_more,
}


def _attack(begun: Event, over: Event, name: str, address: Address) -> None:
    stand_aside()
    begun.set()
    ATTACKS[name](address, over)


def trial(place: Path, seconds: float, rounds: int) -> dict[str, list[Measured]]:
    """What was measured in each round, without an attack ("") and with each."""
    with TrialServer(place, place / "data", "--enable", "logmq", "--admin-port", "0") as server:
        attacked = "127.0.0.1", int(server.ready["page"].rstrip("/").rpartition(":")[2])

        def measured() -> Measured:
            return ask(server.address("logmq"), [b"PRODUCE t x\n"] * 4, seconds)

        def measured_beside(name: str) -> Measured:
            with beside(_attack, name, attacked) as end:
                time.sleep(1.0)  # until it holds what it holds
                found = measured()
                end()
            return found

        ways = {name: partial(measured_beside, name) for name in ATTACKS}
        return taken_in_turns(rounds, {"": measured, **ways})


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="make trial-attacks", description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=8.0, help="of a round")
    parser.add_argument("--rounds", type=int, default=5, help="without and with each attack")
    given = parser.parse_args(arguments)
    raise_file_limit()
    with outcomes.passing_place("attacks") as place:
        found = trial(place, given.seconds, given.rounds)
    alone_us = [one.p99_us for one in found[""]]
    ratios = []
    for name, measured in found.items():
        ratio = median_ratio([one.p99_us for one in measured], alone_us)
        ratios.append(ratio)
        p99 = statistics.median(one.p99_us for one in measured)
        median = statistics.median(one.median_us for one in measured)
        times = f"p99 {p99 / 1000:.2f} ms, median {median / 1000:.2f} ms"
        print(f"{ratio:5.2f} times  {times}  {name or 'nobody'}")
    return judged(max(ratios), alone_us)


if __name__ == "__main__":
    sys.exit(main())
