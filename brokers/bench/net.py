"""`brokers bench net`: what the network layer answers by itself, with an echo for a protocol and no disk.

The same echo is served twice, each time by a process of its own. Once it is the poll driver, once a trio task
for each connection, which is how one would write it first. The load comes from this process: clients in a
closed loop, each sending its next request when it has its answer. Rounds of both alternate, so that a noisy
machine is noisy to both, and the median round counts.
"""

import select
import socket
import statistics
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from time import perf_counter_ns
from typing import Annotated, Literal, NamedTuple

import structlog
import trio

from brokers.bench.load import Measured, MeasuredSpan, Row, in_turns, middle
from brokers.bench.options import Rounds, Seconds, maybe_none, some
from brokers.bench.processes import helper, processor_seconds, resident_bytes
from shared.cli.options import Json
from shared.net.connection import Connection
from shared.net.network import Group, Network
from shared.net.settings import NetSettings
from shared.process_limits import raise_file_limit

REQUEST = b"x" * 100
ANSWER_BYTES_MAX = 4096
WARM_UP_SECONDS_MAX = 0.2

Driver = Literal["poll", "task"]
DRIVERS: tuple[Driver, ...] = ("poll", "task")


class Server(NamedTuple):
    port: int
    pid: int


def bench(
    *,
    clients: Annotated[int, some("Clients in a closed loop; one alone is measured too.")] = 50,
    seconds: Seconds = 1.0,
    rounds: Rounds = 3,
    idle: Annotated[int, maybe_none("Measure so many idle connections instead.")] = 0,
    json: Json = False,
) -> list[Row]:
    """Measure the poll driver against a task for each connection.

    An echo of 100 bytes, without a protocol or a disk: what a connection and a
    request cost before any work is done.
    """
    if idle:
        return [measure_idle(driver, idle, seconds) for driver in DRIVERS]
    return run(clients=clients, seconds=seconds, rounds=rounds)


def run(*, clients: int = 50, seconds: float = 1.0, rounds: int = 3) -> list[Row]:
    """A row for each driver with `clients`, then for each with one. `ratio`: of its rate to that of a task
    for each connection."""
    rows: list[Row] = []
    with serving("poll") as poll, serving("task") as task:
        for count in (clients, 1):
            ways = {
                "poll": partial(_load, poll, count, seconds),
                "task": partial(_load, task, count, seconds),
            }
            best = in_turns(rounds, ways)
            for driver in DRIVERS:
                load = best[driver]
                rows.append(
                    {
                        "driver": driver,
                        "clients": count,
                        "requests_per_second": round(load.rate),
                        "round_trip_median_us": round(load.median_us, 1),
                        "round_trip_p99_us": round(load.p99_us, 1),
                        # Of the server's process (None where the system does not say): the figure that a
                        # noisy machine disturbs least.
                        "cpu_us_per_request": load.cpu_us and round(load.cpu_us, 2),
                        "ratio": round(load.rate / best["task"].rate, 2),
                    }
                )
    return rows


def measure_idle(driver: Driver, count: int, seconds: float) -> Row:
    """Open `count` connections that stay silent, beside one that is busy. Measured are memory of the server's
    process for each, and the round trip of the busy one."""
    raise_file_limit()
    with serving(driver) as server:
        before = middle([_load(server, 1, seconds) for _ in range(3)])
        bytes_before = resident_bytes(server.pid) or 0
        idle = []
        try:
            for _ in range(count):
                idle.append(socket.create_connection(("127.0.0.1", server.port)))
            for sock in idle:  # accepted, served, and silent from now on
                sock.send(REQUEST)
            for sock in idle:
                sock.recv(ANSWER_BYTES_MAX)
            bytes_after = resident_bytes(server.pid) or 0
            beside = middle([_load(server, 1, seconds) for _ in range(3)])
        finally:
            for sock in idle:
                sock.close()
    return {
        "driver": driver,
        "idle_connections": count,
        "bytes_each": round((bytes_after - bytes_before) / count),
        "round_trip_p99_us": round(beside.p99_us, 1),
        "round_trip_p99_us_without": round(before.p99_us, 1),
    }


def _load(server: Server, clients: int, seconds: float) -> Measured:
    """Keep one request of each client under way for `seconds`; the client is bare system calls. The round
    trips are those of the first client."""
    sockets = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(clients)]
    poll = select.poll()
    by_fd = {}
    for sock in sockets:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        poll.register(sock, select.POLLIN)
        by_fd[sock.fileno()] = (sock.recv, sock.send)
    first = sockets[0].fileno()
    trips: list[int] = []
    for sock in sockets:
        sock.send(REQUEST)
    span = MeasuredSpan.after(min(WARM_UP_SECONDS_MAX, seconds / 5), seconds)
    answers = 0
    cpu_before = None
    now = sent = perf_counter_ns()
    while not span.is_over(now, answers if len(trips) > 1 else 0):
        ready = poll.poll(1000)
        for fd, _ in ready:
            receive, send = by_fd[fd]
            receive(ANSWER_BYTES_MAX)
            if fd == first:
                now = perf_counter_ns()
                trips.append(now - sent)
                sent = now
            send(REQUEST)
        now = perf_counter_ns()
        if now > span.since:
            answers += len(ready)
        else:
            trips.clear()
            cpu_before = processor_seconds(server.pid)
    cpu_after = processor_seconds(server.pid)
    for sock in sockets:
        sock.close()
    cuts = statistics.quantiles(trips, n=100) if len(trips) > 1 else [0.0] * 99
    cpu_us = None if cpu_before is None or cpu_after is None else (cpu_after - cpu_before) / answers * 1e6
    return Measured(answers * 1e9 / (now - span.since), cuts[49] / 1e3, cuts[98] / 1e3, answers, cpu_us)


# The servers.


@contextmanager
def serving(driver: Driver) -> Iterator[Server]:
    """A process that echoes on a free port of loopback."""
    with helper("net", driver) as process:
        yield Server(process.number(), process.pid)


class Echo:
    """The smallest session."""

    __slots__ = ("_connection",)

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def receive(self, data: bytes) -> None:
        self._connection.write(data)

    def receive_eof(self) -> None:
        self._connection.finish()

    def on_deadline(self, now: float) -> None:
        """None is ever set."""

    def drain(self) -> None:
        """There is no wait to end."""

    def connection_lost(self) -> None:
        """Nothing is held."""


async def _serve_polled() -> None:
    log = structlog.stdlib.get_logger()
    group = Group("echo", Network(NetSettings()), after_turn=lambda: None, log=log)
    ((_, port),) = group.bind_tcp("echo", "127.0.0.1", 0, Echo)
    print(port, flush=True)
    await group.serve()


async def _serve_with_tasks() -> None:
    (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1", backlog=4096)
    print(listener.socket.getsockname()[1], flush=True)
    raise_file_limit()
    await trio.serve_listeners(_echo, [listener])


async def _echo(stream: trio.SocketStream) -> None:
    try:
        while data := await stream.receive_some(65536):
            await stream.send_all(data)
    except trio.BrokenResourceError:
        pass


if __name__ == "__main__":
    trio.run({"poll": _serve_polled, "task": _serve_with_tasks}[sys.argv[1]])
