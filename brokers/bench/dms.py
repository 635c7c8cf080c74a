"""`brokers bench dms`: messages through queues and out again, beside other queue servers in the same run.

Every connection produces and consumes. A message is one unit of work: produced, delivered, acknowledged; with
each delivery its acknowledgement goes out, and the next message with the CONSUME for one. So as many messages
are under way as windows allow, never more, and no server can win by leaving one side behind. The rate is that
of deliveries, the latency runs from a CONSUME to the message.

The servers are processes of their own, the load comes from this one. Measured in turns:

- `memory`: nothing is kept (`dms.persist = false`), beside beanstalkd without a log;
- `synced`: acknowledged is on disk (`--data-dir`: the disk that is meant), beside beanstalkd `-b -f 0` and
  redis lists with `appendfsync always` (RPUSH and LPOP, which has no acknowledgement and so does less);
- `queues`: the same in one queue among many, beside one alone.
"""

import re
import socket
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Literal

import attrs

from brokers.bench import options
from brokers.bench.load import Address, Measured, Row, Talk, middle, run
from brokers.bench.options import DataDir, Rounds, Seconds, Size, each, maybe_none, some
from brokers.bench.servers import beanstalkd, redis_server, serving
from brokers.errors import ExitCode, Refusal
from dms import wire
from dms.wire import Type
from shared.cli.options import Json

Mode = Literal["memory", "synced", "queues"]
MODES: tuple[Mode, ...] = ("memory", "synced", "queues")
QUEUE = "bench"
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
    json: Json = False,
) -> list[Row]:
    """Measure DMS on this machine.

    Messages produced, consumed and acknowledged: in memory, on disk, and in one
    queue among many; beside beanstalkd and redis where they are installed.
    """
    if not 1 <= size <= 4000:
        raise Refusal("--size: 1 to 4000 bytes", ExitCode.USAGE)
    case = _Case(
        connections=connections, window=window, size=size, queues=queues, seconds=seconds, rounds=rounds
    )
    cases = {"memory": case.memory, "synced": case.synced, "queues": case.many_queues}

    def measure(mode: Mode) -> list[Row]:
        with ExitStack() as stack:
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-", dir=data_dir))
            return list(cases[mode](stack, Path(folder)))

    return each(modes, measure)


Peers = dict[str, tuple[Address, Callable[[int], Talk]]]
"""What is measured in turns: by name, where it is and what one connection with a window says to it."""


@attrs.frozen
class _Case:
    connections: int
    window: int
    size: int
    queues: int
    seconds: float
    rounds: int

    def memory(self, stack: ExitStack, folder: Path) -> Iterator[Row]:
        """One message at a time on each of many connections; then a few with windows."""
        peers: Peers = {"dms": self._dms(stack, folder, persist=False)}
        if (address := stack.enter_context(beanstalkd())) is not None:
            peers["beanstalkd"] = address, self._beanstalk
        yield from self._beside("memory", peers, self.connections, 1)
        yield from self._beside("memory", peers, 8, self.window)

    def synced(self, stack: ExitStack, folder: Path) -> Iterator[Row]:
        """One client, then many with windows."""
        peers: Peers = {"dms": self._dms(stack, folder, persist=True)}
        if (address := stack.enter_context(beanstalkd(folder))) is not None:
            peers["beanstalkd -f 0"] = address, self._beanstalk
        if (address := stack.enter_context(redis_server(folder))) is not None:
            peers["redis lists"] = address, self._redis
        yield from self._beside("synced", peers, 1, 1)
        yield from self._beside("synced", peers, 64, self.window)

    def many_queues(self, stack: ExitStack, folder: Path) -> Iterator[Row]:
        """Two servers, so that both are measured in turns."""
        peers: Peers = {}
        for name, others in ((f"1 of {self.queues + 1}", self.queues), ("one alone", 0)):
            home = folder / name.replace(" ", "-")
            home.mkdir()
            peers[name] = self._dms(stack, home, persist=False, others=others)
        yield from self._beside("queues", peers, 8, self.window)

    def _dms(
        self, stack: ExitStack, folder: Path, *, persist: bool, others: int = 0
    ) -> tuple[Address, Callable[[int], Talk]]:
        environ = {"BROKERS_DMS_PERSIST": str(persist).lower(), "BROKERS_DMS_QUEUES_MAX": str(others + 1)}
        address = stack.enter_context(serving(folder, "dms", environ))["dms"]
        make_queues(address, [*(f"other-{number}" for number in range(others)), QUEUE])
        return address, self._talk

    def _beside(self, mode: str, peers: Peers, connections: int, window: int) -> Iterator[Row]:
        """The first of `peers` beside each of the others."""
        measured: dict[str, list[Measured]] = {name: [] for name in peers}
        for _ in range(self.rounds):
            for name, (address, talk) in peers.items():
                measured[name].append(run(address, [talk(window) for _ in range(connections)], self.seconds))
        ours, *others = measured
        best = middle(measured[ours])
        for name in others or ["-"]:
            ratio = best.rate / middle(measured[name]).rate if others else None
            yield Row.of(mode, connections, window, self.size, best, name, ratio)

    def _talk(self, window: int) -> Talk:
        return dms_talk(self.size, window)

    def _beanstalk(self, window: int) -> Talk:
        return beanstalk_talk(self.size, window)

    def _redis(self, window: int) -> Talk:
        return redis_talk(self.size, window)


def make_queues(address: Address, names: Sequence[str]) -> None:
    """Raises Refusal where the server says no."""
    assert isinstance(address, tuple)
    with socket.create_connection(address) as sock:
        requests = [wire.pack(Type.HANDSHAKE, 0)]
        requests += [wire.pack(Type.CREATE_QUEUE, 0, wire.pack_name(name) + OPTIONS) for name in names]
        data, answered = bytearray(), 0
        for start in range(0, len(requests), 1000):
            sock.sendall(b"".join(requests[start : start + 1000]))
            while answered < min(start + 1000, len(requests)):
                data += sock.recv(1 << 16) or _closed()
                frames, at = wire.decode(data)
                del data[:at]
                answered += len(frames)
                for type_, _, _, _, payload in frames:
                    if type_ == Type.ERROR:
                        raise Refusal(f"the server that was to be measured: {payload.decode()}")


def dms_talk(size: int, window: int) -> Talk:
    """A message produced and one asked for; each that comes is acknowledged along with the next."""
    name = wire.pack_name(QUEUE)
    produce = wire.pack(Type.PRODUCE, 1, name + b"x" * size)
    consume = wire.pack(Type.CONSUME, 2, name)
    ack = wire.pack(Type.ACK, 0)[:-4]
    delivered: list[bytes] = []
    rest = b""
    greeting = wire.pack(Type.HANDSHAKE, 0)

    def requests(count: int) -> bytes:
        nonlocal greeting
        said, greeting = greeting, b""
        acks = [ack + delivery for delivery in delivered]
        delivered.clear()
        return said + b"".join(acks) + produce * count + consume * count

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
                raise Refusal(f"the server that is measured: {data[at + 16 : stop].decode()}")
            at = stop
        rest = data[at:]
        return len(delivered)

    return Talk(requests, answers, window)


def beanstalk_talk(size: int, window: int) -> Talk:
    """put, reserve, delete."""
    # By turns: what it syncs one by one would otherwise all come before the first answer.
    unit = b"put 0 0 60 %d\r\n%b\r\nreserve\r\n" % (size, b"x" * size)
    reserved = re.compile(rb"RESERVED (\d+) %d\r\nx{%d}\r\n" % (size, size))
    jobs: list[bytes] = []
    rest = b""

    def requests(count: int) -> bytes:
        deletes = [b"delete %b\r\n" % job for job in jobs]
        jobs.clear()
        return b"".join(deletes) + unit * count

    def answers(data: bytes) -> int:
        nonlocal rest
        data = rest + data
        jobs.extend(reserved.findall(data))
        last = max(data.rfind(b"RESERVED"), 0)
        rest = data[last:] if reserved.match(data, last) is None else data[data.rfind(b"\n") + 1 :]
        return len(jobs)

    return Talk(requests, answers, window)


def redis_talk(size: int, window: int) -> Talk:
    """RPUSH and LPOP."""
    body = b"x" * size
    push = b"*3\r\n$5\r\nRPUSH\r\n$5\r\nbench\r\n$%d\r\n%b\r\n" % (size, body)
    pop = b"*2\r\n$4\r\nLPOP\r\n$5\r\nbench\r\n"
    end = b"x\r\n"
    rest = b""

    def answers(data: bytes) -> int:
        nonlocal rest
        data = rest + data
        rest = next((end[:cut] for cut in (2, 1) if data.endswith(end[:cut])), b"")
        return data.count(end)

    return Talk(lambda count: push * count + pop * count, answers, window)


def _closed() -> bytes:
    raise Refusal("the server that was to be measured closed the connection")
