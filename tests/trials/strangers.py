"""`make trial-attacks`, `trial-logins`, `trial-neighbours`: what peers that behave badly cost the others.

A server's good clients are measured alone, and then beside each kind of bad peers, which are a process of
their own. A round is a server of its own, since after some of these much still waits. What is judged is the
median of the rounds' ratios of p99: from one minute to the next a machine's p99 drifts by a third, within a
round by less. Where the rounds alone are far from each other the machine is too busy to judge: exit 2.

`attacks`: the admin port is held by 10,000 connections that come again when they are closed; by requests and
bodies that come a byte at a time; by requests with other names, from other sites, by odd paths and with wrong
tokens, all of which are refused. `logins`: 10,000 wrong passwords a second, three on a connection, from
several addresses. Both stand for other machines, so they have only what the others leave of the processor
(`stand_aside`): what is measured is what the server spends on them. LogMQ's p99 grows by a tenth at most.
`neighbours`: 252 clients of DMS, and of the four that are left one vanishes amid frames, one asks and never
reads, one sends a byte a second, and one just fills the last place. The others' p99 stays within twice.
"""

import argparse
import contextlib
import itertools
import os
import select
import socket
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from multiprocessing import get_context
from multiprocessing.synchronize import Event
from pathlib import Path

import attrs

from brokers.bench.dms import QUEUE, dms_talk, make_queues
from brokers.bench.load import SAID_FIRST, Measured, Talk, lines, run
from shared.access import SALT_BYTES, Rule, Secret, User, written_users
from shared.process_limits import raise_file_limit
from tests.support import dms_spec as spec
from tests.support.dms_spec import SpecClient
from tests.support.server import counter, until
from tests.trials import outcomes
from tests.trials.serving import TrialServer

Address = tuple[str, int]
Bad = Callable[[Address, Event], None]
"""A process: it does what it does to a server, until the event is set."""

SETTLE_SECONDS = 1.0
"""Until bad peers hold what they hold; and a process's first requests cost more than those after them."""
LOOK_SECONDS = 1.0
TAKEN_MAX = 0.2
"""Processors that other processes take."""
SPREAD_MAX = 1.25
"""Of the rounds alone: the largest but one, over the median."""
TOO_BUSY = 2
"""An exit code."""


@attrs.frozen
class Trial:
    """`ratio_max`: of the p99 beside bad peers over that alone. `counted`: what the server counts of them."""

    protocol: str
    talks: Callable[[], list[Talk]]
    """The good clients, a connection each."""
    bad: Mapping[str, Bad]
    seconds: float
    rounds: int
    ratio_max: float = 1.10
    at_admin_port: bool = False
    settings: str = ""
    user: str = ""
    """Who the good clients log in as, with the password `right`."""
    prepare: Callable[[Address], None] = lambda address: None
    counted: Sequence[str] = ()


# -- who attacks the admin port

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
    stand_aside()
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
    stand_aside()
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
    stand_aside()
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


# -- who guesses passwords

_RATE = 10_000
_WRONG = b"AUTH ann wrong\n" * 3
_OPEN_MAX = 256
"""Connections at a time: those that wait a second for their answer keep their place."""
_ADDRESSES = [f"127.0.1.{number}" for number in range(1, 9)]
_TICK_SECONDS = 0.005


def _guess(address: Address, over: Event) -> None:
    """Open connections at a pace, each with three wrong passwords."""
    stand_aside()
    poll = select.epoll()
    waiting: dict[int, socket.socket] = {}
    opened, start = 0, time.monotonic()
    while not over.is_set():
        due = int((time.monotonic() - start) * _RATE / 3)
        opened = max(opened, due - _OPEN_MAX)  # no burst makes up for what the machine does not give
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


# -- bad neighbours

_GOOD = 252
_RESET = b"\1\0\0\0\0\0\0\0"
"""SO_LINGER: closing resets."""


def _be_bad(address: Address, over: Event) -> None:
    """Each in a thread."""
    whole = spec.frame(spec.PRODUCE, 1, spec.name(QUEUE) + b"x" * 100)

    def vanish() -> None:
        for number in itertools.count():
            if over.wait(0.05):
                return
            with contextlib.suppress(ValueError), SpecClient(address) as client:
                # Refused where the server has not yet noticed that the last one has gone.
                client.send(whole[: 1 + number * 7 % (len(whole) - 1)])
                if number % 2:
                    client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)

    def never_read() -> None:
        asking = spec.frame(spec.LIST, 1) * 500
        with SpecClient(address) as client:
            client.socket.settimeout(0.1)
            while not over.is_set():
                with contextlib.suppress(TimeoutError):
                    client.socket.send(asking)

    def trickle() -> None:
        with SpecClient(address) as client:
            for byte in whole:
                client.send(bytes([byte]))
                if over.wait(1.0):
                    return

    with SpecClient(address):
        threads = [threading.Thread(target=bad) for bad in (vanish, never_read, trickle)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()


# -- the table

_ASKED = (b"PING\n", b"PING\n", b"PRODUCE a " + b"y" * 100 + b"\n", b"PRODUCE b " + b"z" * 100 + b"\n")

TRIALS: Mapping[str, Trial] = {
    "attacks": Trial(
        protocol="logmq",
        talks=lambda: asked([b"PRODUCE t x\n"] * 4),
        bad={
            f"{_CONNECTIONS:,} connections": _connect_and_hold,
            "slow requests and bodies": _come_slowly,
            "what is refused": _ask_for_more,
        },
        seconds=8.0,
        rounds=5,
        at_admin_port=True,
    ),
    "logins": Trial(
        protocol="logmq",
        talks=lambda: asked(_ASKED),
        bad={f"{_RATE:,} wrong passwords a second": _guess},
        seconds=10.0,
        rounds=7,
        settings="[access]\nrequired = 'always'\n[net]\nconnections_per_address_max = 100000\n",
        user="ann",
        counted=("logins_failed_total", "net_refused_total"),
    ),
    "neighbours": Trial(
        protocol="dms",
        talks=lambda: [dms_talk(100, 1) for _ in range(_GOOD)],
        bad={"one vanishes, one never reads, one trickles, one is there": _be_bad},
        seconds=5.0,
        rounds=3,
        ratio_max=2.0,
        settings="[dms]\ndepth = 1000000\n",
        prepare=lambda address: make_queues(
            address, [QUEUE, *(f"{number}".ljust(60, "-") for number in range(100))]
        ),
    ),
}


def asked(requests: Sequence[bytes]) -> list[Talk]:
    """Each on a connection of its own, again and again, one at a time."""
    return [Talk(request.__mul__, lines()) for request in requests]


def ask(address: Address, requests: Sequence[bytes], seconds: float) -> Measured:
    return run(address, asked(requests), seconds)


def a_round(trial: Trial, place: Path, seconds: float) -> dict[str, Measured]:
    """What was measured of the good clients, alone ("") and beside each kind of bad peers."""
    data = place / "data"
    data.mkdir(parents=True)
    (place / "brokers.toml").write_text(trial.settings)
    if trial.user:
        users = data / "users.toml"
        users.touch(0o600)
        secret = Secret.make(b"right", os.urandom(SALT_BYTES))
        users.write_text(written_users({trial.user: User(trial.user, (Rule.parse("*:*:*"),), secret)}))
    words = ("--admin-port", "0", "--config", str(place / "brokers.toml"), "--log-level", "error")
    with TrialServer(place, data, "--enable", trial.protocol, *words) as server:
        address = server.address(trial.protocol)
        if trial.user:
            SAID_FIRST[address] = f"AUTH {trial.user} right\n".encode(), b"OK\n"
        page = server.ready["page"].rstrip("/").rpartition(":")[2]
        attacked = ("127.0.0.1", int(page)) if trial.at_admin_port else address
        trial.prepare(address)

        def all_gone() -> None:
            until(lambda: counter(data, f'connections{{protocol="{trial.protocol}"}}') == 0)

        run(address, trial.talks(), SETTLE_SECONDS)
        all_gone()
        found = {"": run(address, trial.talks(), seconds)}
        for name, bad in trial.bad.items():
            all_gone()
            before, began = [counter(data, each) for each in trial.counted], time.monotonic()
            with beside(bad, attacked):
                found[name] = run(address, trial.talks(), seconds)
            for each, count in zip(trial.counted, before, strict=True):
                rate = (counter(data, each) - count) / (time.monotonic() - began)
                print(f"  {each}: {rate:,.0f} a second", flush=True)
    return found


@contextmanager
def beside(bad: Bad, address: Address) -> Iterator[None]:
    """Bad peers in a process of their own. Raises AssertionError where it has ended before it is told to."""
    context = get_context("spawn")
    begun, over = context.Event(), context.Event()
    process = context.Process(target=_be_strangers, args=(bad, address, begun, over))
    process.start()
    try:
        begun.wait()
        time.sleep(SETTLE_SECONDS)
        yield
        assert process.is_alive(), "the bad peers have ended"
    finally:
        over.set()
        process.join()


def _be_strangers(bad: Bad, address: Address, begun: Event, over: Event) -> None:
    begun.set()
    bad(address, over)


def too_busy(p99s_us: Sequence[float]) -> str:
    """Why rounds that were measured alone are no baseline; "" where they are one."""
    middle, ordered = statistics.median(p99s_us), sorted(p99s_us)
    others = processors_taken()
    if others < TAKEN_MAX and (len(ordered) < 3 or ordered[-2] <= SPREAD_MAX * middle):
        return ""
    return (
        f"the machine is too busy to judge: other processes take {others:.1f} processors, and alone the p99 "
        f"is {ordered[0] / 1000:.2f} to {ordered[-1] / 1000:.2f} ms; end them, and try again"
    )


def processors_taken() -> float:
    """By whatever runs, in the mean over a second; for a time when nothing of the trial does."""

    def taken() -> float:
        line = Path("/proc/stat").read_text().splitlines()[0]
        user, nice, system, _, _, irq, soft, *_ = (int(ticks) for ticks in line.split()[1:])
        return (user + nice + system + irq + soft) / os.sysconf("SC_CLK_TCK")

    before, began = taken(), time.monotonic()
    time.sleep(LOOK_SECONDS)
    return (taken() - before) / (time.monotonic() - began)


def stand_aside() -> None:
    """Run this process only while no other wants the processor.

    With the lowest priority alone (nice 19) it still raises the others' p99 by half. Raises OSError where the
    system forbids it.
    """
    os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.trials.strangers", description=__doc__)
    parser.add_argument("trial", choices=TRIALS)
    parser.add_argument("--seconds", type=float, help="of each measurement")
    parser.add_argument("--rounds", type=int, help="alone and beside each")
    given = parser.parse_args(arguments)
    trial = TRIALS[given.trial]
    raise_file_limit()
    with outcomes.passing_place(given.trial) as place:
        rounds = [
            a_round(trial, place / str(number), given.seconds or trial.seconds)
            for number in range(given.rounds or trial.rounds)
        ]
    ratios = []
    for name in ("", *trial.bad):
        ratios.append(statistics.median(found[name].p99_us / found[""].p99_us for found in rounds))
        p99, median = (
            statistics.median(getattr(found[name], figure) for found in rounds) / 1000
            for figure in ("p99_us", "median_us")
        )
        print(f"{ratios[-1]:5.2f} times  p99 {p99:.2f} ms, median {median:.2f} ms  {name or 'alone'}")
    if why := too_busy([found[""].p99_us for found in rounds]):
        print(why)
        return TOO_BUSY
    worse = max(ratios) > trial.ratio_max
    return outcomes.told([f"{trial.ratio_max:g} times are promised"] if worse else [])


if __name__ == "__main__":
    sys.exit(main())
