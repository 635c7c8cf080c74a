"""Load for a server's benchmark: connections that keep a window of requests open, and what that took.

Bare system calls and one epoll, in the process that asks for them, so that the server is what is measured.
Latency is from the send of a request to the arrival of its answer, kept in an HDR histogram (three digits,
1 µs to 1 minute); with a window above one it includes the wait behind one's own requests.
"""

import select
import socket
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter_ns

import attrs
from hdrh.histogram import HdrHistogram  # type: ignore[import-untyped]

RECEIVE_BYTES = 256 * 1024
WARM_UP_SECONDS = 0.3
PATIENCE_SECONDS = 10.0
"""A round in which next to nothing was answered goes on for so long: half of nothing is no figure."""
Address = tuple[str, int] | Path
"""TCP, or a Unix socket."""


@attrs.frozen
class Measured:
    """One round: answers a second, bytes received a second, microseconds of the answers' round trips."""

    rate: float
    bytes_rate: float
    median_us: float
    p99_us: float


@attrs.frozen
class Row:
    """One case beside one baseline. `ratio`: its rate over the baseline's; where that is a round trip, the
    baseline's median over this one's, so more is always better."""

    mode: str
    connections: int
    window: int
    messages_per_second: int
    megabytes_per_second: float
    median_us: float
    p99_us: float
    baseline: str
    ratio: float | None

    @classmethod
    def of(
        cls,
        mode: str,
        connections: int,
        window: int,
        size: int,
        measured: Measured,
        baseline: str,
        ratio: float | None,
    ) -> "Row":
        """`size`: bytes of a message."""
        return cls(
            mode=mode,
            connections=connections,
            window=window,
            messages_per_second=round(measured.rate),
            megabytes_per_second=round(measured.rate * size / 1e6, 1),
            median_us=round(measured.median_us, 1),
            p99_us=round(measured.p99_us, 1),
            baseline=baseline,
            ratio=None if ratio is None else round(ratio, 2),
        )


@attrs.define(eq=False)
class Talk:
    """One connection's part. `requests(n)`: the bytes of its next n requests. `answers(data)`: how many
    answers end in these received bytes."""

    requests: Callable[[int], bytes]
    answers: Callable[[bytes], int]
    window: int = 1


@attrs.frozen
class Span:
    """When a round is measured, from its warm-up on; by `perf_counter_ns`."""

    since: int
    ends: int

    @classmethod
    def after(cls, warm_up_seconds: float, seconds: float) -> "Span":
        since = perf_counter_ns() + int(warm_up_seconds * 1e9)
        return cls(since, since + int(seconds * 1e9))

    def is_over(self, now: int, answers: int) -> bool:
        """Its time is up, and there is a figure to show, which are whole answers a second; on a machine that
        is so busy that there is none, nobody waits longer than PATIENCE_SECONDS for it."""
        if now < self.ends:
            return False
        return answers * 1e9 >= now - self.since or now > self.ends + PATIENCE_SECONDS * 1e9


def histogram() -> HdrHistogram:
    return HdrHistogram(1, 60_000_000, 3)


def lines(ends_each: int = 1) -> Callable[[bytes], int]:
    """Answers of so many lines each: counts them as they end."""
    over = 0

    def count(data: bytes) -> int:
        nonlocal over
        answers, over = divmod(over + data.count(b"\n"), ends_each)
        return answers

    return count


def run(address: Address, talks: Sequence[Talk], seconds: float) -> Measured:
    """Keep every connection's window full for `seconds`, after a warm-up.

    Raises ConnectionError where the server closes a connection.
    """
    trips = histogram()
    with _connected(address, len(talks)) as sockets:
        poll = select.epoll()
        by_fd = {}
        for sock, talk in zip(sockets, talks, strict=True):
            poll.register(sock, select.EPOLLIN)
            by_fd[sock.fileno()] = (sock, talk, deque[tuple[int, int]]())
        span = Span.after(WARM_UP_SECONDS, seconds)
        for sock, talk, sent in by_fd.values():
            sent.append((talk.window, perf_counter_ns()))
            sock.sendall(talk.requests(talk.window))
        answered = received = 0
        now = perf_counter_ns()
        while not span.is_over(now, answered):
            for fd, _ in poll.poll(1.0):
                sock, talk, sent = by_fd[fd]
                data = sock.recv(RECEIVE_BYTES)
                if not data:
                    raise ConnectionError("the server closed a connection")
                now = perf_counter_ns()
                count = talk.answers(data)
                if now >= span.since:
                    answered += count
                    received += len(data)
                    _record(trips, sent, count, now)
                else:
                    _record(None, sent, count, now)
                if count:
                    sent.append((count, now))
                    sock.sendall(talk.requests(count))
            now = perf_counter_ns()
        poll.close()
    wall = (now - span.since) / 1e9
    return Measured(
        answered / wall, received / wall, trips.get_value_at_percentile(50), trips.get_value_at_percentile(99)
    )


def middle(rounds: Sequence[Measured]) -> Measured:
    """The round of the median rate."""
    return sorted(rounds, key=lambda measured: measured.rate)[len(rounds) // 2]


def _record(trips: HdrHistogram | None, sent: deque[tuple[int, int]], count: int, now: int) -> None:
    """`count` more answers came: take them off the requests that were sent, oldest first."""
    while count:
        waiting, at = sent[0]
        taken = min(waiting, count)
        if trips is not None:
            trips.record_value(max((now - at) // 1000, 1), taken)
        if taken == waiting:
            sent.popleft()
        else:
            sent[0] = (waiting - taken, at)
        count -= taken


@contextmanager
def _connected(address: Address, count: int) -> Iterator[list[socket.socket]]:
    sockets: list[socket.socket] = []
    try:
        for _ in range(count):
            if isinstance(address, Path):
                sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
                sock.connect(str(address))
            else:
                sock = socket.create_connection(address)
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sockets.append(sock)
        yield sockets
    finally:
        for sock in sockets:
            sock.close()
