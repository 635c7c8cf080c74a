"""`make trial-logins`: 10,000 failed logins a second, and what they cost the clients that are logged in.

At most 10 % of their p99. The server is the real one, with LogMQ and users. Clients that are logged in ask,
one request at a time on each of four connections: PING and a durable PRODUCE. Beside them a process opens
connections from several addresses and sends wrong passwords, three on each, which LogMQ then closes. It
stands for other machines, so it has only what the others leave of the processor (`strangers.stand_aside`).
A round measures without it and then with it, on a server of its own, for after a flood some hundred logins
still wait to be checked. How that is judged: `strangers`; exit 2 where it cannot be.
"""

import argparse
import os
import select
import socket
import statistics
import sys
import time
from collections.abc import Sequence
from multiprocessing.synchronize import Event
from pathlib import Path

import attrs

from brokers.bench.load import SAID_FIRST
from shared.access import SALT_BYTES, Rule, Secret, User, written_users
from tests.support.server import counter
from tests.trials import outcomes
from tests.trials.serving import TrialServer
from tests.trials.strangers import Address, ask, beside, judged, median_ratio, stand_aside

_REQUESTS = (b"PING\n", b"PING\n", b"PRODUCE a " + b"y" * 100 + b"\n", b"PRODUCE b " + b"z" * 100 + b"\n")
_WRONG = b"AUTH ann wrong\n" * 3
_OPEN_MAX = 256
"""Connections of the flood at a time: those that wait a second for their answer keep their place."""
_ADDRESSES = [f"127.0.1.{number}" for number in range(1, 9)]
_TICK_SECONDS = 0.005
WARM_SECONDS = 0.5
"""Before a round: the first requests of a process cost more than those after them."""


@attrs.frozen
class Outcome:
    """`failed` logins, and `refused` connections of addresses that fail often: a second, as the server
    counted them. p99s of rounds, in microseconds."""

    asked: float
    failed: float
    refused: float
    alone_us: Sequence[float]
    beside_us: Sequence[float]

    @property
    def ratio(self) -> float:
        """The median of the rounds'."""
        return median_ratio(self.beside_us, self.alone_us)

    def lines(self) -> list[str]:
        return [
            f"{self.asked:,.0f} failed logins a second asked for: {self.failed:,.0f} had their answer, "
            f"{self.refused:,.0f} connections were refused, the others waited",
            f"p99 of who is logged in: {statistics.median(self.alone_us) / 1000:.2f} ms without them, "
            f"{statistics.median(self.beside_us) / 1000:.2f} with, {self.ratio:.2f} times by round (median)",
        ]


def trial(place: Path, rate: float, seconds: float, rounds: int) -> Outcome:
    """Each round on a server of its own, in a folder below `place`."""
    taken = [_round(place / str(number), rate, seconds) for number in range(rounds)]
    failed, refused, alone, beside = zip(*taken, strict=True)
    return Outcome(rate, statistics.mean(failed), statistics.mean(refused), alone, beside)


def _round(place: Path, rate: float, seconds: float) -> tuple[float, float, float, float]:
    """Failed logins and refused connections a second, and the p99 without the flood and with it."""
    data = place / "data"
    data.mkdir(parents=True)
    users = data / "users.toml"
    users.touch(0o600)
    secret = Secret.make(b"right", os.urandom(SALT_BYTES))
    users.write_text(written_users({"ann": User("ann", (Rule.parse("*:*:*"),), secret)}))
    (place / "brokers.toml").write_text(
        "[access]\nrequired = 'always'\n[net]\nconnections_per_address_max = 100000\n"
    )
    arguments = ("--enable", "logmq", "--config", str(place / "brokers.toml"), "--log-level", "error")
    with TrialServer(place, data, *arguments) as server:
        address = server.address("logmq")
        SAID_FIRST[address] = b"AUTH ann right\n", b"OK\n"
        ask(address, _REQUESTS, WARM_SECONDS)
        alone_us = ask(address, _REQUESTS, seconds).p99_us
        counted = ("logins_failed_total", "net_refused_total")
        with beside(_send, address, rate):
            before, began = [counter(server.data, name) for name in counted], time.monotonic()
            beside_us = ask(address, _REQUESTS, seconds).p99_us
            spent = time.monotonic() - began
            failed, refused = (
                (counter(server.data, name) - count) / spent
                for name, count in zip(counted, before, strict=True)
            )
    return failed, refused, alone_us, beside_us


def _send(begun: Event, over: Event, address: Address, rate: float) -> None:
    """Open connections at a pace, each with three wrong passwords, until it is over."""
    stand_aside()
    poll = select.epoll()
    waiting: dict[int, socket.socket] = {}
    opened, start = 0, time.monotonic()
    while not over.is_set():
        due = int((time.monotonic() - start) * rate / 3)
        if due - opened > _OPEN_MAX:  # the machine does not give that many: no burst makes up for it
            opened = due - _OPEN_MAX
        while opened < due and len(waiting) < _OPEN_MAX * len(_ADDRESSES):
            sock = socket.socket()
            sock.setblocking(False)
            sock.bind((_ADDRESSES[opened % len(_ADDRESSES)], 0))
            sock.connect_ex(address)
            waiting[sock.fileno()] = sock
            poll.register(sock, select.EPOLLOUT)
            opened += 1
        for number, happened in poll.poll(_TICK_SECONDS):
            sock = waiting[number]
            try:
                if happened & select.EPOLLOUT:
                    sock.send(_WRONG)
                    poll.modify(sock, select.EPOLLIN)
                    continue
                ended = not sock.recv(4096)
            except OSError:
                ended = True
            if ended:
                del waiting[number]
                sock.close()
        begun.set()
    for sock in waiting.values():
        sock.close()


def main(arguments: Sequence[str] | None = None) -> int:
    about = __doc__.splitlines()[0]
    parser = argparse.ArgumentParser(prog="python -m tests.trials.logins", description=about)
    parser.add_argument("--rate", type=float, default=10_000, help="failed logins a second")
    parser.add_argument("--seconds", type=float, default=10.0, help="of each half of a round")
    parser.add_argument("--rounds", type=int, default=7, help="without and with the flood")
    options = parser.parse_args(arguments)
    with outcomes.passing_place("logins") as place:
        outcome = trial(place, options.rate, options.seconds, options.rounds)
    print(*outcome.lines(), sep="\n")
    return judged(outcome.ratio, outcome.alone_us)


if __name__ == "__main__":
    sys.exit(main())
