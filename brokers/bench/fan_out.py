"""Load for a server that hands messages on: producers on one side, consumers on the other.

Bare system calls and one epoll, as in `load`. Each producer keeps a window of messages on their way: it sends
the next ones when the slowest consumer has had the last, so no server can win by throwing away or by leaving
one side behind. A message carries the time at which it was sent; the latency is that of the last whole
message in each read of a consumer.

Where messages are datagrams, some may be lost: what is not there after a while is given up.
"""

import errno
import select
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from time import monotonic, perf_counter_ns

import attrs

from brokers.bench.load import Measured, Span, histogram
from brokers.errors import Refusal

RECEIVE_BYTES = 512 * 1024
WARM_UP_SECONDS = 0.3
READY_SECONDS = 30.0
SILENCE_SECONDS = 0.1
LOST_SECONDS = 0.2
"""Nothing comes for so long, and datagrams are under way: they are lost."""
STAMP_BYTES = 20
"""Digits, for text protocols too."""


@attrs.frozen
class FanOut:
    """What is said to one server. All names have the same length, so all messages have the same size.

    `hello_producer`, `hello_consumer(consumer)`: sent first. `message(queue, stamp)`: what a producer sends.
    `delivered_bytes`: of a message as consumers get it; `stamp_at`: where its stamp is, from its end.
    `queues`: messages go to one after the other. `share`: one message in so many goes to each consumer.
    `aside`: what the server may say between two messages. `datagrams`: each message is sent as one, to the
    same address.
    """

    hello_producer: bytes
    hello_consumer: Callable[[int], bytes]
    message: Callable[[int, bytes], bytes]
    delivered_bytes: int
    stamp_at: int
    queues: int = 1
    share: int = 1
    aside: bytes = b""
    datagrams: bool = False

    def messages(self, rounds: int) -> bytes:
        """So many for each queue, in turns, stamped now."""
        stamp = b"%020d" % perf_counter_ns()
        return b"".join([self.message(queue, stamp) for queue in range(self.queues)]) * rounds


class _Consumer:
    """`received`: messages. `rest`: bytes of one that is not whole."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.received = 0
        self.rest = b""


class _Producer:
    """`sent`: messages since the beginning."""

    def __init__(self, sock: socket.socket, write_bytes: int | None) -> None:
        """`write_bytes`: of one write; None is as many as there are."""
        self.sock = sock
        self.write_bytes = write_bytes
        self.sent = 0
        self.unsent = memoryview(b"")


def run(
    address: tuple[str, int],
    fan: FanOut,
    *,
    producers: int,
    consumers: int,
    window: int,
    seconds: float,
    bystanders: int = 0,
) -> Measured:
    """Deliveries a second, all consumers together, for `seconds` after a warm-up. Raises Refusal.

    `bystanders` connect too, as the consumers that come after the last one; nothing is for them.
    """
    write_bytes = len(fan.message(0, bytes(STAMP_BYTES))) if fan.datagrams else None
    with ExitStack() as stack:
        aside = stack.enter_context(_connected(address, bystanders))
        inward = stack.enter_context(_connected(address, consumers))
        outward = stack.enter_context(_connected(address, producers, datagrams=fan.datagrams))
        for number, sock in enumerate([*inward, *aside]):
            sock.sendall(fan.hello_consumer(number))
        for sock in outward:
            if fan.hello_producer:
                sock.sendall(fan.hello_producer)
        _wait_ready(fan, inward, outward[0])
        return _measure(
            fan,
            [_Consumer(each) for each in inward],
            [_Producer(each, write_bytes) for each in outward],
            window,
            seconds,
        )


def _measure(
    fan: FanOut, consumers: Sequence[_Consumer], producers: Sequence[_Producer], window: int, seconds: float
) -> Measured:
    trips = histogram()
    poll = select.epoll()
    by_fd: dict[int, _Consumer | _Producer] = {each.sock.fileno(): each for each in consumers}
    by_fd |= {each.sock.fileno(): each for each in producers}
    for each in by_fd.values():
        each.sock.setblocking(False)
        poll.register(each.sock, select.EPOLLIN if isinstance(each, _Consumer) else 0)
    window = max(window // fan.queues, 1) * fan.queues
    span = Span.after(WARM_UP_SECONDS, seconds)
    now = perf_counter_ns()
    received = before = 0
    try:
        while not span.is_over(now, received - before):
            done = min(each.received for each in consumers) * fan.share // len(producers)
            for producer in producers:
                if not producer.unsent and (due := done + window - producer.sent) * 4 >= window:
                    rounds = due // fan.queues
                    producer.sent += rounds * fan.queues
                    producer.unsent = memoryview(fan.messages(rounds))
                    _send(producer, poll)
            ready = poll.poll(LOST_SECONDS)
            if not ready and fan.datagrams:
                for producer in producers:
                    producer.sent = done
            for fd, _ in ready:
                each = by_fd[fd]
                if isinstance(each, _Producer):
                    _send(each, poll)
                    continue
                stamp, count = _receive(fan, each)
                received += count
                now = perf_counter_ns()
                if now < span.since:
                    before = received
                elif stamp:
                    trips.record_value(max((now - stamp) // 1000, 1))
            now = perf_counter_ns()
    finally:
        poll.close()
    wall = (now - span.since) / 1e9
    return Measured(
        (received - before) / wall,
        (received - before) * fan.delivered_bytes / wall,
        trips.get_value_at_percentile(50),
        trips.get_value_at_percentile(99),
    )


def _send(producer: _Producer, poll: select.epoll) -> None:
    """As much as the socket takes; it is asked to tell when there is room for the rest."""
    try:
        while producer.unsent:
            sent = producer.sock.send(producer.unsent[: producer.write_bytes])
            producer.unsent = producer.unsent[sent:]
            if producer.write_bytes is None:
                break
    except BlockingIOError:
        pass
    poll.modify(producer.sock, select.EPOLLOUT if producer.unsent else 0)


def _receive(fan: FanOut, consumer: _Consumer) -> tuple[int, int]:
    """One read: the stamp of the last whole message, or 0; and how many messages ended in it."""
    data = consumer.sock.recv(RECEIVE_BYTES)
    if not data:
        raise Refusal("the server that is measured closed a connection")
    data = consumer.rest + data
    if fan.aside and fan.aside in data:
        data = data.replace(fan.aside, b"")
    count, over = divmod(len(data), fan.delivered_bytes)
    end = len(data) - over
    consumer.rest = data[end:]
    consumer.received += count
    if not count:
        return 0, 0
    return int(data[end - fan.stamp_at : end - fan.stamp_at + STAMP_BYTES]), count


def _wait_ready(fan: FanOut, consumers: Sequence[socket.socket], producer: socket.socket) -> None:
    """Until every consumer has had a message, and then silence. (What else a server says goes by here.)"""
    give_up = monotonic() + READY_SECONDS
    waiting = dict.fromkeys(consumers, b"")
    while waiting:
        if monotonic() > give_up:
            raise Refusal("the server that was to be measured does not deliver")
        for queue in range(fan.queues):  # each by itself: it may have to be a datagram
            producer.sendall(fan.message(queue, b"%020d" % perf_counter_ns()))
        for sock in list(waiting):
            waiting[sock] += _within(sock, SILENCE_SECONDS)
            if len(waiting[sock]) >= fan.delivered_bytes and b"x" * 8 in waiting[sock]:
                del waiting[sock]
    by_fd = {sock.fileno(): sock for sock in consumers}
    with select.epoll() as poll:
        for fd in by_fd:
            poll.register(fd, select.EPOLLIN)
        while ready := poll.poll(SILENCE_SECONDS):
            for fd, _ in ready:
                if not by_fd[fd].recv(RECEIVE_BYTES):
                    raise Refusal("the server that is measured closed a connection")


def _within(sock: socket.socket, seconds: float) -> bytes:
    sock.settimeout(seconds)
    try:
        return sock.recv(RECEIVE_BYTES)
    except TimeoutError:
        return b""


@contextmanager
def _connected(
    address: tuple[str, int], count: int, *, datagrams: bool = False
) -> Iterator[list[socket.socket]]:
    sockets: list[socket.socket] = []
    try:
        for _ in range(count):
            if datagrams:
                sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
                sockets.append(sock)
                sock.connect(address)
            else:
                sock = socket.create_connection(address)
                sockets.append(sock)
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        yield sockets
    except OSError as error:
        if error.errno not in (errno.EMFILE, errno.ENFILE):
            raise
        raise Refusal(f"this process may not have {count} connections: raise the limit of files") from error
    finally:
        for sock in sockets:
            sock.close()
