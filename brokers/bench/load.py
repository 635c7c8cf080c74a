"""Load on a server, and what that took; all in the process that asks for it.

Bare system calls and one epoll, so that the server is what is measured. There are two kinds of load:

- `run`: connections that send requests and read the answers. A latency is from the send of a request to the
  arrival of its answer; with a window above one it includes the wait behind the connection's own requests;
- `fan_out`: producers on one side, consumers on the other. A producer sends its next messages when the
  slowest consumer has had the last. So no server wins by throwing away or by leaving one side behind.

Both are a closed loop unless a rate is given: a window stays full. With a rate messages are due by the clock,
and a latency begins when its message was due. A server that falls behind cannot slow the clock down.
Latencies are kept in an HDR histogram (three digits, 1 µs to 1 minute).
"""

import errno
import select
import socket
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import cycle, islice
from time import monotonic, perf_counter, perf_counter_ns

import attrs
from hdrh.histogram import HdrHistogram  # type: ignore[import-untyped]

from brokers.errors import ExitCode, Failure
from shared.client.login import NOBODY, Login

RECEIVE_BYTES = 256 * 1024
WARM_UP_SECONDS = 0.3
PATIENCE_SECONDS = 10.0
"""A round in which next to nothing was answered goes on for so long: half of nothing is no figure."""
READY_SECONDS = 30.0
SILENCE_SECONDS = 0.1
COLD_SECONDS = 60.0
"""A server that has not taken one message of each name by then is not measured."""
TICK_SECONDS = 1e-3
"""Between two looks at what is due in an open loop."""
LOST_SECONDS = 0.2
"""Nothing comes for so long, and datagrams are under way: they are lost."""
STAMP_BYTES = 20
"""Digits, for text protocols too."""
FILLER = b"xxxx"
"""Behind the stamp of every message, so many times at least: what a server says of itself has it nowhere."""
STAMPED_BYTES_MIN = STAMP_BYTES + len(FILLER)
"""The least size of a message that is handed on: its latency is told by its stamp."""
Address = tuple[str, int]


@attrs.frozen
class Measured:
    """One round: answers a second, and microseconds of the answers' round trips. `total`: all answers, the
    warm-up's too.

    `load_percent`: how busy the load's own process was; near 100 it is the load that is measured. `cpu_us`:
    of the server's processor for a message, warm-up and connecting included; None: nobody looked (only
    tests/bench does), or the system does not say.
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
who: Login = NOBODY
"""The user of the load: nobody on a server that was started for it, else that of the environment."""
SAID_FIRST: dict[Address, tuple[bytes, bytes]] = {}
"""What a connection to an address says first, its login, and the answer."""


def connect(address: Address) -> socket.socket:
    """A blocking connection that sends at once, and is logged in. Raises Failure."""
    try:
        sock = socket.create_connection(address)
    except ConnectionRefusedError:
        host, port = address
        raise Failure(f"no server answers at {host}:{port}", ExitCode.UNAVAILABLE) from None
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


@attrs.define(eq=False)
class _Requester:
    """A connection of `run`. `sent`: how many requests are under way, and since when, oldest first. `cold`:
    answers to have before the round's clock starts."""

    sock: socket.socket
    talk: Talk
    cold: int
    sent: deque[tuple[int, int]] = attrs.Factory(deque)
    under_way: int = 0

    def ask(self, count: int, at: int, before: bytes = b"") -> None:
        """Send `count` requests, which were due `at`."""
        self.sent.append((count, at))
        self.under_way += count
        self.sock.sendall(before + self.talk.requests(count))

    def read(self) -> int:
        """One read: how many answers ended in it."""
        data = self.sock.recv(RECEIVE_BYTES)
        if not data:
            raise ConnectionError("the server closed a connection")
        count = self.talk.answers(data)
        self.under_way -= count
        self.cold -= count
        return count


class DueClock:
    """Says how many messages are due; without a rate, as many as fit. `begun`: by `perf_counter_ns`."""

    def __init__(self, rate: float | None, begun: int) -> None:
        self._rate = rate
        self._begun = begun
        self._issued = 0

    def take(self, room: int, now: int) -> tuple[int, int]:
        """How many of `room` messages to send now, and since when the first of them is due."""
        if self._rate is None:
            return room, now
        at = self._begun + int(self._issued * 1e9 / self._rate)
        due = min(int((now - self._begun) * self._rate / 1e9) - self._issued, room)
        self._issued += max(due, 0)
        return max(due, 0), at


def run(
    address: Address, talks: Sequence[Talk], seconds: float, cold: int = 0, rate: float | None = None
) -> Measured:
    """Ask for `seconds`, after a warm-up. That begins when each connection has `cold` answers: its first
    requests are the first to their names. `rate`: requests a second of all together, in an open loop.

    Raises ConnectionError where the server closes a connection, Failure where it takes COLD_SECONDS.
    """
    trips = histogram()
    with _connected(address, len(talks)) as sockets, select.epoll() as poll:
        askers = {
            sock.fileno(): _Requester(sock, talk, cold) for sock, talk in zip(sockets, talks, strict=True)
        }
        for fd, asker in askers.items():
            poll.register(fd, select.EPOLLIN)
            asker.ask(
                asker.talk.window if rate is None else max(cold, 1), perf_counter_ns(), asker.talk.greeting
            )
        span = MeasuredSpan.after(WARM_UP_SECONDS, seconds)
        give_up = monotonic() + COLD_SECONDS
        turns = deque(askers.values())
        clock = None if cold else DueClock(rate, perf_counter_ns())
        answered = total = 0
        now = perf_counter_ns()
        while not span.is_over(now, answered):
            if clock is None:
                span = _later(seconds, give_up)
                if all(asker.cold <= 0 for asker in askers.values()):
                    clock = DueClock(rate, perf_counter_ns())
            for fd, _ in poll.poll(1.0 if rate is None else TICK_SECONDS):
                asker = askers[fd]
                count = asker.read()
                now = perf_counter_ns()
                total += count
                counts = clock is not None and now >= span.since
                answered += count if counts else 0
                record_trips(trips if counts else None, asker.sent, count, now)
                if count and rate is None:
                    asker.ask(count, now)
            now = perf_counter_ns()
            if rate is not None and clock is not None:
                for _ in range(len(turns)):
                    asker = turns[0]
                    count, at = clock.take(asker.talk.window - asker.under_way, now)
                    if count:
                        asker.ask(count, at)
                    turns.rotate(-1)
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
    `stamp_at`: where its stamp is, from its end; the latency is that of the last whole message in each read
    of a consumer. `hello_producer`, `hello_consumer` (number): sent first.
    `queues`: a producer's messages go to one after the other. `groups`: the consumer n gets everything of the
    producer n % groups, whose queues are numbered from n in steps of `groups`.
    `aside`: what the server may say between two messages. `datagrams`: each message is sent as one, to the
    same address; some may be lost, and what is not there after a while is given up.
    """

    message: Callable[[int, bytes], bytes]
    delivered_bytes: int
    stamp_at: int
    hello_producer: Callable[[int], bytes] = lambda producer: b""
    hello_consumer: Callable[[int], bytes] = lambda consumer: b""
    queues: int = 1
    groups: int = 1
    aside: bytes = b""
    datagrams: bool = False


def stamped_body(size: int) -> Callable[[bytes], bytes]:
    """How a body of that size is made of a stamp."""
    filler = b"x" * (size - STAMP_BYTES)
    return lambda stamp: stamp + filler


class Consumer:
    """Counts what comes of a fan-out. `received`: messages."""

    def __init__(self, sock: socket.socket, fan: FanOut, group: int = 0) -> None:
        self.sock = sock
        self.group = group
        self.received = 0
        self._fan = fan
        self._rest = b""

    def read(self) -> tuple[int, int]:
        """One read: the stamp of the last whole message, or 0; and how many messages ended in it."""
        fan = self._fan
        data = self.sock.recv(RECEIVE_BYTES * 2)
        if not data:
            raise Failure("the server that is measured closed a connection")
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

    def take(self, count: int, at: int) -> None:
        """Make `count` more messages, to one queue after the other, stamped with when they are due."""
        stamp = b"%020d" % at
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
    rate: float | None = None,
) -> Measured:
    """Deliveries a second, all consumers together, for `seconds` after a warm-up, which begins when each
    producer's first message to each queue is delivered. Raises Failure.

    `rate`: messages a second of all producers together, in an open loop.
    """
    with (
        _connected(address, consumers) as inward,
        _connected(address, producers, datagrams=fan.datagrams) as outward,
    ):
        for number, sock in enumerate(inward):
            sock.sendall(fan.hello_consumer(number))
        for number, sock in enumerate(outward):
            if hello := fan.hello_producer(number):
                sock.sendall(hello)
        _wait_ready(fan, inward, outward)
        return pass_on(fan, outward, inward, window, seconds, rate)


def pass_on(
    fan: FanOut,
    outward: Sequence[socket.socket],
    inward: Sequence[socket.socket],
    window: int,
    seconds: float,
    rate: float | None = None,
) -> Measured:
    """Measure a fan-out between connections that are ready."""
    with select.epoll() as poll:
        passing = _Passing(fan, outward, inward, window, rate, poll)
        span = MeasuredSpan.after(WARM_UP_SECONDS, seconds)
        give_up = monotonic() + COLD_SECONDS
        received = before = 0
        heard_at = now = perf_counter_ns()
        heard = set(range(fan.groups))
        while not span.is_over(now, received - before):
            for group in heard:
                passing.produce(group)
            if passing.cold:
                span = _later(seconds, give_up)
            ready = poll.poll(LOST_SECONDS if rate is None else TICK_SECONDS)
            heard = {passing.serve(fd, flags) for fd, flags in ready}
            now = perf_counter_ns()
            for count, stamp in passing.take_deliveries():
                received += count
                if passing.cold or now < span.since:
                    before = received
                elif stamp:
                    passing.trips.record_value(max((now - stamp) // 1000, 1))
            if ready:
                heard_at = now
            elif fan.datagrams and now - heard_at > LOST_SECONDS * 1e9:
                passing.give_up_lost()
                heard = set(range(fan.groups))
            if rate is not None:
                heard = set(range(fan.groups))
    return Measured.of(received - before, now - span.since, passing.trips, received)


class _Passing:
    """The ends of a fan-out. `cold`: groups that have not had each name's first message. `trips`: the
    latencies."""

    def __init__(
        self,
        fan: FanOut,
        outward: Sequence[socket.socket],
        inward: Sequence[socket.socket],
        window: int,
        rate: float | None,
        poll: select.epoll,
    ) -> None:
        groups = fan.groups
        self.cold = set(range(groups))
        self.trips = histogram()
        self._fan = fan
        self._poll = poll
        self._clock = DueClock(rate, perf_counter_ns())
        self._consumers = [Consumer(sock, fan, number % groups) for number, sock in enumerate(inward)]
        self._producers = [Producer(sock, fan, number % groups) for number, sock in enumerate(outward)]
        step = fan.queues if window >= fan.queues else 1
        self._window = max(window // step, 1) * step
        self._step = step
        self._piece = max(self._window // 4 // step, 1) * step
        self._deliveries: list[tuple[int, int]] = []
        ends: list[Consumer | Producer] = [*self._consumers, *self._producers]
        self._by_fd = {end.sock.fileno(): end for end in ends}
        for fd, end in self._by_fd.items():
            end.sock.setblocking(False)
            poll.register(fd, 0 if fan.datagrams and isinstance(end, Producer) else select.EPOLLIN)

    def _delivered(self, group: int) -> int:
        """Messages of each producer of a group that its slowest consumer has."""
        writers = len(self._producers[group :: self._fan.groups])
        slowest = min(consumer.received for consumer in self._consumers[group :: self._fan.groups])
        return slowest // writers

    def produce(self, group: int) -> None:
        """Send what is due and fits the windows of a group's producers."""
        delivered = self._delivered(group)
        if delivered >= self._fan.queues:
            self.cold.discard(group)
        for producer in self._producers[group :: self._fan.groups]:
            while not producer.unsent and (room := delivered + self._window - producer.sent) >= self._piece:
                count, at = self._clock.take(room // self._step * self._step, perf_counter_ns())
                if not count:
                    break
                producer.take(count, at)
                producer.write(self._poll)

    def serve(self, fd: int, flags: int) -> int:
        """What epoll tells of one end; its group."""
        end = self._by_fd[fd]
        if isinstance(end, Consumer):
            stamp, count = end.read()
            self._deliveries.append((count, stamp))
        else:
            if flags & select.EPOLLOUT:
                end.write(self._poll)
            if flags & ~select.EPOLLOUT:
                end.read()
        return end.group

    def take_deliveries(self) -> list[tuple[int, int]]:
        """Messages and the stamp of the last of them, of each read since the last call."""
        deliveries, self._deliveries = self._deliveries, []
        return deliveries

    def give_up_lost(self) -> None:
        """Nothing came for LOST_SECONDS: datagrams that are under way are lost."""
        for producer in self._producers:
            mine = self._consumers[producer.group :: self._fan.groups]
            producer.sent = min(consumer.received for consumer in mine)


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
                producer.sendall(fan.message(number, b"%020d" % perf_counter_ns()))
            while ready := poll.poll(SILENCE_SECONDS):
                for fd, _ in ready:
                    data = by_fd[fd].recv(RECEIVE_BYTES)
                    if not data:
                        raise Failure("the server that is measured closed a connection")
                    if fd in waiting:
                        waiting[fd] += data
                        if len(waiting[fd]) >= fan.delivered_bytes and FILLER in waiting[fd]:
                            del waiting[fd]  # it has had a whole message
