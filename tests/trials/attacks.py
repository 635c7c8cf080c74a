"""`make trial-attacks`: what those who attack the admin port cost the clients of a protocol.

LogMQ is asked on four connections, one request at a time on each, in turns without and with an attack:
10,000 connections that come again when they are closed; requests and bodies that come a byte at a time;
requests by other names, from other sites, by odd paths and with wrong tokens. The attackers are a process of
their own that stands for another machine, so it has only what the others leave of the processor
(`hasher.stand_aside`): what is measured is what the server spends on them. All that they ask for is
refused, and the p99 grows by a tenth at most. What is judged is the median of the rounds' ratios: from one
minute to the next a machine's p99 drifts by a third, within a round by less. Where the rounds without an
attack are far from each other the machine is too busy to judge, exit 2.
"""

import argparse
import contextlib
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from brokers.bench.load import Measured, Talk, lines, run, taken_in_turns
from shared.net.hasher import stand_aside
from shared.process_limits import raise_file_limit
from tests.trials.serving import TrialServer
from tests.trials.strangers import too_busy

_RATIO_MAX = 1.10
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


def _connect_and_hold(address: tuple[str, int]) -> None:
    held: list[socket.socket] = []
    while True:
        for at in range(_CONNECTIONS):
            sock = socket.socket()
            sock.setblocking(False)
            with contextlib.suppress(OSError):
                sock.connect_ex(address)
            if len(held) < _CONNECTIONS:
                held.append(sock)
            else:
                held[at].close()
                held[at] = sock
            time.sleep(_PACE_SECONDS / 4)


def _come_slowly(address: tuple[str, int]) -> None:
    head = "POST /login HTTP/1.1\r\nHost: {}:{}\r\nContent-Type: application/json\r\nContent-Length: 2000"
    data = head.format(*address).encode() + b"\r\n\r\n" + b" " * 2000
    slow: list[tuple[socket.socket, int]] = []
    while True:
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
        time.sleep(0.1)


def _ask_for_more(address: tuple[str, int]) -> None:
    host = "{}:{}".format(*address)
    while True:
        for first, rest in _REQUESTS:
            with socket.create_connection(address, timeout=30) as sock:
                sock.sendall(
                    f"{first} HTTP/1.1\r\n{rest.format(host=host)}\r\nConnection: close\r\n\r\n".encode()
                )
                answer = sock.recv(1000)
                if answer[9:10] != b"4":
                    raise AssertionError(f"{first}, {rest}: {answer!r}")
            time.sleep(_PACE_SECONDS)


ATTACKS: dict[str, Callable[[tuple[str, int]], None]] = {
    f"{_CONNECTIONS:,} connections": _connect_and_hold,
    "slow requests and bodies": _come_slowly,
    "what is refused": _ask_for_more,
}


@contextlib.contextmanager
def _attacked(name: str, port: int) -> Iterator[None]:
    command = [sys.executable, "-m", "tests.trials.attacks", "--attack", name, "--port", str(port)]
    with subprocess.Popen(command) as process:
        time.sleep(1.0)  # until it has begun, and holds what it holds
        try:
            yield
            if process.poll() is not None:
                raise AssertionError(f"the attack has ended: {name}")
        finally:
            process.kill()


def trial(place: Path, seconds: float, rounds: int) -> dict[str, list[Measured]]:
    """What was measured in each round, without an attack ("") and with each."""
    with TrialServer(place, place / "data", "--enable", "logmq", "--admin-port", "0") as server:
        port = int(server.ready["page"].rstrip("/").rpartition(":")[2])

        def measured(name: str) -> Measured:
            with _attacked(name, port) if name else contextlib.nullcontext():
                talks = [Talk(lambda count: b"PRODUCE t x\n" * count, lines()) for _ in range(4)]
                return run(server.address("logmq"), talks, seconds)

        return taken_in_turns(rounds, {name: lambda name=name: measured(name) for name in ("", *ATTACKS)})  # type: ignore[misc]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="make trial-attacks", description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=8.0, help="of a round")
    parser.add_argument("--rounds", type=int, default=5, help="without and with each attack")
    parser.add_argument("--attack", help=argparse.SUPPRESS)
    parser.add_argument("--port", type=int, help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    raise_file_limit()
    if given.attack:
        stand_aside()
        ATTACKS[given.attack](("127.0.0.1", given.port))
    with tempfile.TemporaryDirectory(prefix="trial-attacks-") as place:
        found = trial(Path(place), given.seconds, given.rounds)
    broken = False
    for name, measured in found.items():
        ratio = statistics.median(
            one.p99_us / alone.p99_us for one, alone in zip(measured, found[""], strict=True)
        )
        broken |= ratio > _RATIO_MAX
        p99 = statistics.median(one.p99_us for one in measured)
        median = statistics.median(one.median_us for one in measured)
        times = f"p99 {p99 / 1000:.2f} ms, median {median / 1000:.2f} ms"
        print(f"{ratio:5.2f} times  {times}  {name or 'nobody'}")
    if why := too_busy([one.p99_us for one in found[""]]):
        print(why)
        return 2
    print(f"BROKEN: {_RATIO_MAX:g} times are promised" if broken else "nothing promised was broken")
    return broken


if __name__ == "__main__":
    sys.exit(main())
