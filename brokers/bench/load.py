"""Load for a server's benchmark, and what that took; all in the process that asks for it.

Bare system calls and one epoll, so that the server is what is measured. There are three kinds of load:

- `run`: connections that keep a window of requests open. A latency is from the send of a request to the
  arrival of its answer; with a window above one it includes the wait behind one's own requests;
- `fan_out`: producers on one side, consumers on the other. A producer sends its next messages when the
  slowest consumer has had the last. So no server wins by throwing away or by leaving one side behind;
- `pour_rate`: one kind of message over and over; the server's own counters count.

Latencies are kept in an HDR histogram (three digits, 1 µs to 1 minute).
"""

import errno
import select
import socket
import statistics
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from itertools import cycle, islice
from pathlib import Path
from time import monotonic, perf_counter, perf_counter_ns
from typing import Any, TypeVar

import attrs
from hdrh.histogram import HdrHistogram  # type: ignore[import-untyped]

from brokers.errors import Failure

RECEIVE_BYTES = 256 * 1024
WARM_UP_SECONDS = 0.3
PATIENCE_SECONDS = 10.0
"""A round in which next to nothing was answered goes on for so long: half of nothing is no figure."""
READY_SECONDS = 30.0
SILENCE_SECONDS = 0.1
COLD_SECONDS = 60.0
"""A server that has not taken one message of each name by then is not measured."""
LOST_SECONDS = 0.2
"""Nothing comes for so long, and datagrams are under way: they are lost."""
PIECE_BYTES = 64 * 1024
"""Bytes of messages without a stamp: the fewer, the finer the latency."""
STAMP_BYTES = 20
"""Digits, for text protocols too."""
FILLER = b"xxxx"
"""Behind the stamp of every message, so many times at least: what a server says of itself has it nowhere."""
Address = tuple[str, int]
T = TypeVar("T")


@attrs.frozen
class Measured:
    """One round: answers a second, and microseconds of the answers' round trips. `total`: all answers, the
    warm-up's too.

    `cpu_us`: of the server's processor for a message, warm-up and connecting included; None: nobody looked,
    or the system does not say. `load_percent`: how busy the load's own process was; near 100 it is the load
    that is measured.
    """

    rate: float
    median_us: float
    p99_us: float
    total: int = 0
    cpu_us: float | None = None
    load_percent: float = 0.0

    @classmethod
    def of(cls, count: int, nanoseconds: int, trips: HdrHistogram, total: int = 0) -> "Measured":
        median, p99 = (trips.get_value_at_percentile(percent) for percent in (50, 99))
        return cls(count * 1e9 / nanoseconds, median, p99, total)

    def figures(self, rate: str, size: int) -> dict[str, Any]:
        """As rows have them: the rate by its name there, and the bytes of messages of that size."""
        return {
            rate: round(self.rate),
            "megabytes_per_second": round(self.rate * size / 1e6, 1),
            "median_us": round(self.median_us, 1),
            "p99_us": round(self.p99_us, 1),
        }


Row = Mapping[str, Any]
"""What a benchmark shows: one case beside one baseline."""


def row_of(
    mode: str,
    connections: int,
    window: int,
    size: int,
    measured: Measured,
    baseline: str,
    ratio: float | None,
) -> Row:
    """`size`: bytes of a message. `ratio`: its rate over the baseline's; where that is a round trip, the
    baseline's median over this one's, so more is always better."""
    return {
        "mode": mode,
        "connections": connections,
        "window": window,
        **measured.figures("messages_per_second", size),
        "baseline": baseline,
        "ratio": None if ratio is None else round(ratio, 2),
    }


def rows_beside(
    mode: str, connections: int, window: int, size: int, measured: Mapping[str, Measured], *trips: str
) -> Iterator[Row]:
    """The first of `measured` beside each other; alone, where there is none. `trips`: the others that are
    round trips."""
    (_, best), *others = measured.items()
    for name, other in others:
        ratio = other.median_us / best.median_us if name in trips else best.rate / other.rate
        yield row_of(mode, connections, window, size, best, name, ratio)
    if not others:
        yield row_of(mode, connections, window, size, best, "-", None)


@attrs.frozen
class Spread:
    """`median` and `p99` of `samples` calls; where there is one figure, it is the median."""

    measure: str
    median: float | None
    p99: float | None
    unit: str
    samples: int

    @classmethod
    def of(cls, measure: str, figures: Sequence[int], unit: str = "us", per: int = 1000) -> "Spread":
        """`per`: so many of what was counted are one `unit`."""
        ordered = sorted(figures)
        if not ordered:
            return cls(measure, None, None, unit, 0)
        p99 = ordered[min(len(ordered) * 99 // 100, len(ordered) - 1)]
        return cls(measure, statistics.median(ordered) / per, p99 / per, unit, len(ordered))


def middle(rounds: Sequence[Measured]) -> Measured:
    """The round of the median rate."""
    return sorted(rounds, key=lambda measured: measured.rate)[len(rounds) // 2]


def taken_in_turns(rounds: int, ways: Mapping[str, Callable[[], T]]) -> dict[str, list[T]]:
    """Every way once a round, so that a noisy machine is noisy to all."""
    found: dict[str, list[T]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, way in ways.items():
            found[name].append(way())
    return found


def in_turns(rounds: int, ways: Mapping[str, Callable[[], Measured]]) -> dict[str, Measured]:
    """The middle round of each way."""
    return {name: middle(measured) for name, measured in taken_in_turns(rounds, ways).items()}


def beside(measured: dict[str, Measured]) -> tuple[Measured, Row]:
    """The first, and a row's columns about the one other that there may be."""
    (_, ours), *others = measured.items()
    if not others:
        return ours, {"baseline": "-", "ratio": None, "p99_ratio": None}
    name, theirs = others[0]
    ratios = round(ours.rate / theirs.rate, 2), round(ours.p99_us / theirs.p99_us, 2)
    return ours, {"baseline": name, "ratio": ratios[0], "p99_ratio": ratios[1]}


@attrs.frozen
class MeasuredSpan:
    """When a round is measured, from its warm-up on; by `perf_counter_ns`."""

    since: int
    ends: int

    @classmethod
    def after(cls, warm_up_seconds: float, seconds: float) -> "MeasuredSpan":
        """As it is if the warm-up begins now."""
        since = perf_counter_ns() + int(warm_up_seconds * 1e9)
        return cls(since, since + int(seconds * 1e9))

    def is_over(self, now: int, answers: int) -> bool:
        """Whether the round's time is up, and there is a figure to show: whole answers a second. On a machine
        so busy that there is none, the round ends after PATIENCE_SECONDS more."""
        if now < self.ends:
            return False
        return answers * 1e9 >= now - self.since or now > self.ends + PATIENCE_SECONDS * 1e9


def histogram() -> HdrHistogram:
    return HdrHistogram(1, 60_000_000, 3)


CLOSE_SECONDS = 1.0
"""A server closes what has said its last word within it, or is not waited for."""
SAID_FIRST: dict[Address, tuple[bytes, bytes]] = {}
"""What a connection to an address says first, its login, and the answer."""


def connect(address: Address) -> socket.socket:
    """A blocking connection that sends at once, and is logged in. Raises Failure."""
    sock = socket.create_connection(address)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    said, answer = SAID_FIRST.get(address, (b"", b""))
    if said:
        sock.sendall(said)
        if sock.recv(len(answer), socket.MSG_WAITALL) != answer:
            sock.close()
            raise Failure("the server that was to be measured refuses the login: see BROKERS_USER")
    return sock


@contextmanager
def _connected(address: Address, count: int, *, datagrams: bool = False) -> Iterator[list[socket.socket]]:
    sockets: list[socket.socket] = []
    try:
        for _ in range(count):
            if datagrams:
                sockets.append(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
                sockets[-1].connect(address)
            else:
                sockets.append(connect(address))
        yield sockets
    except OSError as error:
        if error.errno not in (errno.EMFILE, errno.ENFILE):
            raise
        raise Failure(f"this process may not have {count} connections: raise the limit of files") from error
    finally:
        if not datagrams:
            _until_closed(sockets)
        for sock in sockets:
            sock.close()


def _until_closed(sockets: Sequence[socket.socket]) -> None:
    """Say the last word, and wait until the server knows: the next round may come by the same names."""
    for sock in sockets:
        with suppress(OSError):
            sock.shutdown(socket.SHUT_WR)
    give_up = perf_counter() + CLOSE_SECONDS
    for sock in sockets:
        with suppress(OSError):
            while (left := give_up - perf_counter()) > 0:
                sock.settimeout(left)
                if not sock.recv(RECEIVE_BYTES):
                    break


# -- requests and their answers


@attrs.define(eq=False)
class Talk:
    """One connection's part. `requests(n)`: the bytes of its next n requests. `answers(data)`: how many
    answers end in these received bytes. `greeting`: said once, before all requests."""

    requests: Callable[[int], bytes]
    answers: Callable[[bytes], int]
    window: int = 1
    greeting: bytes = b""

    @classmethod
    def repeating(cls, requests: Sequence[bytes], lines_each: int, window: int) -> "Talk":
        """A part that repeats `requests`, whose answers have `lines_each` lines each."""
        return cls(repeated(requests), lines(lines_each), window)


def repeated(requests: Sequence[bytes]) -> Callable[[int], bytes]:
    """The next so many of them, one after the other, and from the first again."""
    if len(requests) == 1:
        return lambda count: requests[0] * count
    ring = cycle(requests)
    return lambda count: b"".join(islice(ring, count))


def lines(ends_each: int = 1) -> Callable[[bytes], int]:
    """Answers of so many lines each: counts them as they end."""
    over = 0

    def count(data: bytes) -> int:
        nonlocal over
        answers, over = divmod(over + data.count(b"\n"), ends_each)
        return answers

    return count


def run(address: Address, talks: Sequence[Talk], seconds: float, cold: int = 0) -> Measured:
    """Keep every connection's window full for `seconds`, after a warm-up. That begins when each connection
    has `cold` answers: its first requests are the first to their names.

    Raises ConnectionError where the server closes a connection, Failure where it takes COLD_SECONDS.
    """
    trips = histogram()
    with _connected(address, len(talks)) as sockets, select.epoll() as poll:
        by_fd = {}
        for sock, talk in zip(sockets, talks, strict=True):
            poll.register(sock, select.EPOLLIN)
            by_fd[sock.fileno()] = (sock, talk, deque[tuple[int, int]]())
        span = MeasuredSpan.after(WARM_UP_SECONDS, seconds)
        unanswered = dict.fromkeys(by_fd, cold) if cold else {}
        give_up = monotonic() + COLD_SECONDS
        for sock, talk, sent in by_fd.values():
            sent.append((talk.window, perf_counter_ns()))
            sock.sendall(talk.greeting + talk.requests(talk.window))
        answered = total = 0
        now = perf_counter_ns()
        while not span.is_over(now, answered):
            if unanswered:
                span = _later(seconds, give_up)
            for fd, _ in poll.poll(1.0):
                sock, talk, sent = by_fd[fd]
                data = sock.recv(RECEIVE_BYTES)
                if not data:
                    raise ConnectionError("the server closed a connection")
                now = perf_counter_ns()
                count = talk.answers(data)
                total += count
                if fd in unanswered:
                    unanswered[fd] -= count
                    if unanswered[fd] <= 0:
                        del unanswered[fd]
                counts = now >= span.since
                answered += count if counts else 0
                record_trips(trips if counts else None, sent, count, now)
                if count:
                    sent.append((count, now))
                    sock.sendall(talk.requests(count))
            now = perf_counter_ns()
    return Measured.of(answered, now - span.since, trips, total)


def _later(seconds: float, give_up: float) -> MeasuredSpan:
    if monotonic() > give_up:
        raise Failure("the server that is measured did not take a message of each name in time")
    return MeasuredSpan.after(WARM_UP_SECONDS, seconds)


def record_trips(trips: HdrHistogram | None, sent: deque[tuple[int, int]], count: int, now: int) -> None:
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


# -- messages that are handed on


@attrs.frozen
class FanOut:
    """What is said to one server. All names have the same length, so all messages have the same size.

    `message(queue, stamp)`: what a producer sends. `delivered_bytes`: of a message as consumers get it; 0: it
    is a line, and they differ in length.
    `stamp_at`: where its stamp is, from its end; the latency is then that of the last whole message in each
    read of a consumer. 0: messages have none, and the latency is from a piece's send to the arrival of its
    last byte at the last consumer. `hello_producer`, `hello_consumer` (number): sent first.
    `queues`: a producer's messages go to one after the other. `share`: one message in so many goes to each
    consumer. `groups`: the consumer n gets everything of the producer n % groups, whose queues are numbered
    from n in steps of `groups`; without groups every producer goes round all queues.
    `aside`: what the server may say between two messages. `datagrams`: each message is sent as one, to the
    same address; some may be lost, and what is not there after a while is given up.
    """

    message: Callable[[int, bytes], bytes]
    delivered_bytes: int
    stamp_at: int
    hello_producer: Callable[[int], bytes] = lambda producer: b""
    hello_consumer: Callable[[int], bytes] = lambda consumer: b""
    queues: int = 1
    share: int = 1
    groups: int = 1
    aside: bytes = b""
    datagrams: bool = False


def stamped_body(size: int) -> tuple[Callable[[bytes], bytes], bool]:
    """How a body of that size is made of a stamp, and whether it has room for one."""
    if size < STAMP_BYTES + len(FILLER):
        return lambda stamp: b"x" * size, False
    filler = b"x" * (size - STAMP_BYTES)
    return lambda stamp: stamp + filler, True


class Consumer:
    """Counts what comes of a fan-out. `received`: messages."""

    def __init__(self, sock: socket.socket, fan: FanOut, group: int = 0) -> None:
        self.sock = sock
        self.group = group
        self.received = 0
        self._fan = fan
        self._rest = b""
        self._over = 0

    def read(self) -> tuple[int, int]:
        """One read: the stamp of the last whole message, or 0; and how many messages ended in it."""
        fan = self._fan
        data = self.sock.recv(RECEIVE_BYTES * 2)
        if not data:
            raise Failure("the server that is measured closed a connection")
        if not fan.stamp_at:  # nothing in it is looked at
            count, self._over = divmod(self._over + len(data), fan.delivered_bytes)
            self.received += count
            return 0, count
        data = self._rest + data
        if fan.aside and fan.aside in data:
            data = data.replace(fan.aside, b"")
        if fan.delivered_bytes:
            count, over = divmod(len(data), fan.delivered_bytes)
            end = len(data) - over
        else:
            count, end = data.count(b"\n"), data.rfind(b"\n") + 1
        self._rest = data[end:]
        self.received += count
        if not count:
            return 0, 0
        try:
            return int(data[end - fan.stamp_at : end - fan.stamp_at + STAMP_BYTES]), count
        except ValueError:  # it began within a message: what came before was silent for SILENCE_SECONDS
            raise Failure("the machine is too busy: a round began before the last was over") from None


class Producer:
    """Writes what a fan-out sends. `sent`: messages since the beginning; `unsent`: bytes of them."""

    def __init__(self, sock: socket.socket, fan: FanOut, group: int = 0) -> None:
        self.sock = sock
        self.group = group
        self.sent = 0
        self.unsent = memoryview(b"")
        self._message = fan.message
        self._queues = deque(range(group, group + fan.queues * fan.groups, fan.groups))
        self._write_bytes = len(fan.message(0, bytes(STAMP_BYTES))) if fan.datagrams else None
        self._listens = 0 if fan.datagrams else select.EPOLLIN

    def take(self, count: int) -> None:
        """Make `count` more messages, to one queue after the other, stamped now."""
        stamp = b"%020d" % perf_counter_ns()
        rounds, some = divmod(count, len(self._queues))
        left = b"".join([self._message(self._queues[number], stamp) for number in range(some)])
        if rounds:
            left = b"".join([self._message(queue, stamp) for queue in self._queues]) * rounds + left
        self._queues.rotate(-some)
        self.unsent = memoryview(left)
        self.sent += count

    def write(self, poll: select.epoll) -> None:
        """As much as the socket takes; it is asked to tell when there is room for the rest."""
        try:
            while self.unsent:
                sent = self.sock.send(self.unsent[: self._write_bytes])
                self.unsent = self.unsent[sent:]
                if self._write_bytes is None:
                    break
        except BlockingIOError:
            pass
        poll.modify(self.sock, self._listens | (select.EPOLLOUT if self.unsent else 0))

    def read(self) -> None:
        """Answers to a producer say nothing."""
        try:
            if not self.sock.recv(RECEIVE_BYTES):
                raise Failure("the server that is measured closed a connection")
        except BlockingIOError:
            pass


def fan_out(
    address: Address,
    fan: FanOut,
    *,
    producers: int,
    consumers: int,
    window: int,
    seconds: float,
    bystanders: int = 0,
    into: Address | None = None,
) -> Measured:
    """Deliveries a second, all consumers together, for `seconds` after a warm-up, which begins when each
    producer's first message to each queue is delivered. Raises Failure.

    `bystanders` connect too, as the consumers that come after the last one; nothing is for them. `into`:
    where producers send, if elsewhere.
    """
    with opened(address, fan, producers, consumers, bystanders, into) as (outward, inward):
        return pass_on(fan, outward, inward, window, seconds)


@contextmanager
def opened(
    address: Address,
    fan: FanOut,
    producers: int,
    consumers: int,
    bystanders: int = 0,
    into: Address | None = None,
) -> Iterator[tuple[list[socket.socket], list[socket.socket]]]:
    """The producers' and the consumers' connections, ready. Raises Failure."""
    with ExitStack() as stack:
        aside = stack.enter_context(_connected(address, bystanders))
        inward = stack.enter_context(_connected(address, consumers))
        outward = stack.enter_context(_connected(into or address, producers, datagrams=fan.datagrams))
        for number, sock in enumerate([*inward, *aside]):
            sock.sendall(fan.hello_consumer(number))
        for number, sock in enumerate(outward):
            if hello := fan.hello_producer(number):
                sock.sendall(hello)
        _wait_ready(fan, inward, outward)
        yield outward, inward


def pass_on(
    fan: FanOut,
    outward: Sequence[socket.socket],
    inward: Sequence[socket.socket],
    window: int,
    seconds: float,
) -> Measured:
    """Measure a fan-out between connections that are ready."""
    trips = histogram()
    groups = fan.groups
    consumers = [Consumer(sock, fan, number % groups) for number, sock in enumerate(inward)]
    producers = [Producer(sock, fan, number % groups) for number, sock in enumerate(outward)]
    step = fan.queues if fan.share > 1 or window >= fan.queues else 1
    window = max(window // step, 1) * step
    piece = max(window // 4 // step, 1) * step
    if not fan.stamp_at:
        piece = max(min(piece, PIECE_BYTES // len(fan.message(0, b""))), 1)
    pieces: list[deque[tuple[int, int]]] = [deque() for _ in range(groups)]
    ends: list[Consumer | Producer] = [*consumers, *producers]
    by_fd = {each.sock.fileno(): each for each in ends}
    with select.epoll() as poll:
        for each in by_fd.values():
            each.sock.setblocking(False)
            datagrams = fan.datagrams and isinstance(each, Producer)
            poll.register(each.sock, 0 if datagrams else select.EPOLLIN)
        span = MeasuredSpan.after(WARM_UP_SECONDS, seconds)
        now = perf_counter_ns()
        received = before = 0
        heard = set(range(groups))
        cold = set(heard)
        give_up = monotonic() + COLD_SECONDS
        while not span.is_over(now, received - before):
            if cold:
                span = _later(seconds, give_up)
            for group in heard:
                writers = producers[group::groups]
                done = min(each.received for each in consumers[group::groups]) * fan.share // len(writers)
                if done >= fan.queues:
                    cold.discard(group)
                while pieces[group] and pieces[group][0][0] <= done:
                    at = pieces[group].popleft()[1]
                    if now >= span.since:
                        trips.record_value(max((now - at) // 1000, 1))
                for producer in writers:
                    while not producer.unsent and (due := done + window - producer.sent) >= piece:
                        # A stamp is every message's own, so all that is due may go at once.
                        producer.take(due // step * step if fan.stamp_at else piece)
                        if not fan.stamp_at:
                            pieces[group].append((producer.sent, perf_counter_ns()))
                        producer.write(poll)
            heard.clear()
            ready = poll.poll(LOST_SECONDS)
            if not ready and fan.datagrams:  # what is not there is lost
                heard.update(range(groups))
                for producer in producers:
                    mine = consumers[producer.group :: groups]
                    producer.sent = min(each.received for each in mine) * fan.share
            for fd, flags in ready:
                each = by_fd[fd]
                heard.add(each.group)
                if isinstance(each, Producer):
                    if flags & select.EPOLLOUT:
                        each.write(poll)
                    if flags & ~select.EPOLLOUT:
                        each.read()
                    continue
                stamp, count = each.read()
                received += count
                now = perf_counter_ns()
                if now < span.since:
                    before = received
                elif stamp:
                    trips.record_value(max((now - stamp) // 1000, 1))
            now = perf_counter_ns()
    return Measured.of(received - before, now - span.since, trips, received)


def _wait_ready(fan: FanOut, consumers: Sequence[socket.socket], producers: Sequence[socket.socket]) -> None:
    """Wait until every consumer has had a message, and then silence. (What else a server says is read
    here.)"""
    give_up = monotonic() + READY_SECONDS
    by_fd = {sock.fileno(): sock for sock in consumers}
    waiting = dict.fromkeys(by_fd, b"")
    with select.epoll() as poll:
        for fd in by_fd:
            poll.register(fd, select.EPOLLIN)
        while waiting:
            if monotonic() > give_up:
                raise Failure("the server that was to be measured does not deliver")
            for number, producer in enumerate(producers[: fan.groups]):
                for queue in range(fan.queues if fan.share > 1 else 1):  # each by itself: maybe a datagram
                    producer.sendall(fan.message(number + queue, b"%020d" % perf_counter_ns()))
            while ready := poll.poll(SILENCE_SECONDS):
                for fd, _ in ready:
                    data = by_fd[fd].recv(RECEIVE_BYTES)
                    if not data:
                        raise Failure("the server that is measured closed a connection")
                    if fd in waiting:
                        waiting[fd] += data
                        if len(waiting[fd]) >= fan.delivered_bytes and FILLER in waiting[fd]:
                            del waiting[fd]  # it has had a whole message


# -- load at the rate at which a server takes it, and hardly any work for who makes it

WRITE_BYTES = 256 * 1024
UNREAD = socket.MSG_TRUNC if sys.platform == "linux" else 0
"""Linux throws away what it does not have to copy: that much more is left for who is measured."""


@attrs.frozen
class Case:
    """How a protocol is driven. `run(address, data folder, seconds)`: messages a second. `passed`: its
    counter of messages that a recorder is to write; `frame_bytes`: of one of them in a block."""

    run: Callable[[Address, Path, float], float]
    passed: str
    frame_bytes: int


def pour_rate(writer: socket.socket, reader: socket.socket, message: bytes, seconds: float) -> float:
    """Write `message` over and over, as fast as it is taken, while all that comes is read and not looked at;
    how many a second were taken, after a warm-up."""
    data = message * (WRITE_BYTES // len(message) + 1)
    with discarding(reader) as ended:
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
                    raise Failure("the server that is measured closed a connection")
            return (sent - before) / len(message) / max(now - since, 1e-9)
        finally:
            writer.shutdown(socket.SHUT_WR)
            while writer.recv(WRITE_BYTES):  # until the server, which has read everything, closes it
                pass


@contextmanager
def discarding(sock: socket.socket) -> Iterator[threading.Event]:
    """Read all that comes in a thread, and look no further. The event: the connection is closed."""
    ended = threading.Event()

    def read() -> None:
        room = bytearray(1 << 20)
        with suppress(OSError):
            while sock.recv_into(room, 0, UNREAD):
                pass
        ended.set()

    thread = threading.Thread(target=read)
    thread.start()
    try:
        yield ended
    finally:
        with suppress(OSError):
            sock.shutdown(socket.SHUT_RDWR)
        thread.join()


def fill(sock: socket.socket, answers: Callable[[bytes], int], request: bytes, count: int) -> None:
    """Have a request answered `count` times, a thousand at a time and ten thousand under way."""
    sent = answered = 0
    while answered < count:
        if sent < count and sent - answered < 10_000:
            sock.sendall(request * 1000)
            sent += 1000
        else:
            received = sock.recv(RECEIVE_BYTES)
            if not received:
                raise Failure("the server that is measured closed a connection")
            answered += answers(received)
