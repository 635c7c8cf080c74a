"""`brokers bench dms`: messages through queues and out again, beside other queue servers in the same run.

Every connection produces and consumes. A message is one unit of work: produced, delivered, acknowledged; with
each delivery its acknowledgement goes out, and the next message with the CONSUME for one. So as many messages
are under way as windows allow, never more, and no server can win by leaving one side behind. The rate is that
of deliveries, the latency runs from a CONSUME to the message.

The servers are processes of their own, the load comes from this one. Measured in turns:

- `memory`: nothing is kept (`dms.persist = false`), beside beanstalkd without a log;
- `synced`: acknowledged is on disk (`--data-dir`: the disk that is meant), beside beanstalkd `-b -f 0` and
  redis lists with `appendfsync always`. These are RPUSH and LPOP, which has no acknowledgement and so does
  less;
- `queues`: the same in one queue among many, beside one alone.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Annotated, Any, Literal

from brokers.bench import bare, options
from brokers.bench.load import Address, Measured, Row, Talk, connect, fill, repeated, rows_beside
from brokers.bench.login import login
from brokers.bench.options import DataDir, Rounds, Seconds, Size, each, maybe_none, some
from brokers.bench.servers import beanstalkd, brokers_server, redis_command, redis_server, synced_beanstalkd
from brokers.bench.sweep import (
    NO_SWEEP,
    Load,
    Peer,
    Point,
    Sweep,
    Swept,
    measured_at,
    request_load,
    started,
    swept,
)
from brokers.errors import ExitCode, Failure
from dms import wire
from dms.link import hello
from dms.wire import Status, Type
from shared.cli.options import Json

Mode = Literal["memory", "synced", "queues"]
MODES: tuple[Mode, ...] = ("memory", "synced", "queues")
QUEUE = "bench"
SIZE_MAX = 4000
MANY = {"BROKERS_DMS_CLIENTS_MAX": "10000", "BROKERS_DMS_QUEUES_MAX": "1000000"}
"""The largest sweep has more clients and queues than there may be unless that is set."""
IN_MEMORY = MANY | {"BROKERS_DMS_PERSIST": "false"}
OPTIONS = b'{"depth":1000000}'
"""What is under way when a round ends stays, as it does with the others."""


def bench(
    *,
    modes: Annotated[tuple[Mode, ...], options.MODES] = MODES,
    connections: Annotated[int, some("Connections with a message at a time.")] = 50,
    window: Annotated[int, some("Messages under way on each of 8 (memory) or 64 (synced).")] = 64,
    size: Size = 100,
    queues: Annotated[int, maybe_none("Queues beside the one that is used.")] = 10_000,
    seconds: Seconds = 2.0,
    rounds: Rounds = 3,
    data_dir: DataDir = None,
    sweep: Sweep = NO_SWEEP,
    json: Json = False,
) -> Iterable[Any]:
    """Measure DMS on this machine.

    Messages produced, consumed and acknowledged: in memory, on disk, and in one
    queue among many; beside beanstalkd and redis where they are installed.
    """
    if sweep.sweep:
        return swept(
            [SWEPT[mode] for mode in modes if mode in SWEPT],
            sweep,
            window,
            seconds,
            rounds,
            data_dir,
            json=json,
        )
    if not 1 <= size <= SIZE_MAX:
        raise Failure(f"--size: 1 to {SIZE_MAX} bytes", ExitCode.USAGE)

    cases = {
        "memory": [(connections, 1), (8, window)],  # one message at a time on each of many; few with windows
        "synced": [(1, 1), (64, window)],
        "queues": [(8, window)],
    }

    def measure(mode: Mode) -> Iterator[Row]:
        with started(_servers(mode, queues), data_dir) as ways:
            for count, under_way in cases[mode]:
                measured = measured_at(ways, Point(size, 1, count, under_way), seconds, rounds)
                yield from rows_beside(mode, count, under_way, size, measured)

    return list(each(modes, measure))


def _servers(mode: Mode, queues: int) -> dict[str, Peer]:
    if mode == "memory":
        return SWEPT[mode].servers
    if mode == "synced":
        ours, redis = SWEPT[mode].servers.items()
        return dict((ours, ("beanstalkd -f 0", (synced_beanstalkd, _at(beanstalk_talk))), redis))

    start = brokers_server("dms", IN_MEMORY)  # two of them, so that both are measured in turns
    others = [f"other-{number}" for number in range(queues)]
    return {f"1 of {queues + 1}": (start, partial(_dms, others=others)), "one alone": (start, _dms)}


def make_queues(address: Address, names: Sequence[str]) -> None:
    """Create queues; those that are there already stay. Raises Failure where the server says no."""
    with connect(address) as sock:
        requests = [_hello()]
        requests += [wire.pack(Type.CREATE_QUEUE, 0, wire.pack_name(name) + OPTIONS) for name in names]
        answers = _frames()
        for start in range(0, len(requests), 1000):
            some = requests[start : start + 1000]
            sock.sendall(b"".join(some))
            left = len(some)
            while left:
                left -= answers(sock.recv(1 << 16))


def _hello() -> bytes:
    packed: bytes = wire.pack(Type.HANDSHAKE, 0, hello(login()))
    return packed


def _frames() -> Callable[[bytes], int]:
    """Count whole frames. What it returns raises Failure at the end of a connection, and for an error other
    than that a queue is there already."""
    data = bytearray()

    def count(received: bytes) -> int:
        if not received:
            raise Failure("the server that was to be measured closed the connection")
        data.extend(received)
        frames, at = wire.decode(data)
        del data[:at]
        for type_, _, status, _, payload in frames:
            if type_ == Type.ERROR and status != Status.QUEUE_EXISTS:
                raise Failure(f"the server that was to be measured: {payload.decode()}")
        return len(frames)

    return count


def dms_talk(size: int, window: int, queues: Sequence[bytes] = (QUEUE.encode(),)) -> Talk:
    """A message produced and one asked for; each that comes is acknowledged along with the next."""
    names = [wire.pack_name(queue.decode()) for queue in queues]
    produce = repeated([wire.pack(Type.PRODUCE, 1, name + b"x" * size) for name in names])
    consume = repeated([wire.pack(Type.CONSUME, 2, name) for name in names])
    ack = wire.pack(Type.ACK, 0)[:-4]
    delivered: list[bytes] = []
    rest = b""

    def requests(count: int) -> bytes:
        acks = [ack + delivery for delivery in delivered]
        delivered.clear()
        return b"".join(acks) + produce(count) + consume(count)

    def answers(data: bytes) -> int:
        nonlocal rest
        data = rest + data
        at, end = 0, len(data)
        while end - at >= wire.HEADER_BYTES:
            stop = at + wire.HEADER_BYTES + int.from_bytes(data[at + 4 : at + 8], "big")
            if stop > end:
                break
            if data[at + 8] == Type.DELIVER:
                delivered.append(data[at + 12 : at + 16])
            elif data[at + 8] == Type.ERROR:
                raise Failure(f"the server that is measured: {data[at + 16 : stop].decode()}")
            at = stop
        rest = data[at:]
        return len(delivered)

    return Talk(requests, answers, window, _hello())


def beanstalk_talk(size: int, window: int, tubes: Sequence[bytes] = (QUEUE.encode(),)) -> Talk:
    """put, reserve, delete."""
    # By turns: what it syncs one by one would otherwise all come before the first answer.
    put = b"put 0 0 60 %d\r\n%b\r\nreserve\r\n" % (size, b"x" * size)
    unit = repeated([put] if len(tubes) == 1 else [b"use %b\r\n%b" % (tube, put) for tube in tubes])
    watched = b"".join(b"watch %b\r\n" % tube for tube in tubes)
    greeting = b"use %b\r\n%bignore default\r\n" % (tubes[0], watched)
    reserved = re.compile(rb"RESERVED (\d+) %d\r\nx{%d}\r\n" % (size, size))
    jobs: list[bytes] = []
    rest = b""

    def requests(count: int) -> bytes:
        deletes = [b"delete %b\r\n" % job for job in jobs]
        jobs.clear()
        return b"".join(deletes) + unit(count)

    def answers(data: bytes) -> int:
        nonlocal rest
        data = rest + data
        jobs.extend(reserved.findall(data))
        last = max(data.rfind(b"RESERVED"), 0)
        rest = data[last:] if reserved.match(data, last) is None else data[data.rfind(b"\n") + 1 :]
        return len(jobs)

    return Talk(requests, answers, window, greeting)


def redis_talk(size: int, window: int, lists: Sequence[bytes] = (QUEUE.encode(),)) -> Talk:
    """RPUSH and LPOP."""
    push = repeated([redis_command(b"RPUSH", name, b"x" * size) for name in lists])
    pop = repeated([redis_command(b"LPOP", name) for name in lists])
    end = b"x\r\n"
    rest = b""

    def answers(data: bytes) -> int:
        nonlocal rest
        data = rest + data
        rest = next((end[:cut] for cut in (2, 1) if data.endswith(end[:cut])), b"")
        return data.count(end)

    return Talk(lambda count: push(count) + pop(count), answers, window)


def _at(talk: Callable[[int, int, Sequence[bytes]], Talk]) -> Load:
    return request_load(lambda point, client: talk(point.size, point.window, point.names_of(client)))


def _dms(address: Address, point: Point, seconds: float, others: Sequence[str] = ()) -> Measured:
    """`others`: queues beside those that are used."""
    make_queues(address, [*others, *(name.decode() for name in point.name_list())])
    return _at(dms_talk)(address, point, seconds)


SWEPT = {
    "memory": Swept(
        "dms",
        "memory",
        _dms,
        {"beanstalkd": (beanstalkd, _at(beanstalk_talk))},
        bare.echoes(synced=False),
        SIZE_MAX,
        IN_MEMORY,
        one_name_each=True,  # a connection waits for messages of one queue only
    ),
    "synced": Swept(
        "dms",
        "synced",
        _dms,
        {"redis lists": (redis_server, _at(redis_talk))},
        bare.echoes(synced=True),
        SIZE_MAX,
        MANY,
        one_name_each=True,
    ),
}
"""By the mode whose server and peer it takes."""


def fill_queue(address: Address, queue: str, size: int, count: int) -> None:
    """Produce so many thousands of messages."""
    with connect(address) as sock:
        sock.sendall(_hello())
        sock.recv(1 << 10)
        fill(sock, _frames(), wire.pack(Type.PRODUCE, 1, wire.pack_name(queue) + b"x" * size), count)
