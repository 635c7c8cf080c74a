"""How DMS is loaded: every connection produces and consumes.

A message is one unit of work: produced, delivered, acknowledged; with each delivery its acknowledgement goes
out, and the next message with the CONSUME for one. So as many messages are under way as windows allow, never
more, and no server can win by leaving one side behind. The rate is that of deliveries, the latency runs from
a CONSUME to the message. `memory` keeps nothing (`dms.persist = false`); `synced` is durable.
"""

from collections.abc import Callable, Sequence

from brokers.bench import load
from brokers.bench.adapter import Adapter, Point, request_load
from brokers.bench.load import Address, Measured, Talk, connect, repeated
from brokers.errors import Failure
from dms import wire
from dms.link import hello
from dms.wire import Status, Type

QUEUE = "bench"
SIZE_MAX = 4000
MANY = {"BROKERS_DMS_CLIENTS_MAX": "10000", "BROKERS_DMS_QUEUES_MAX": "1000000"}
"""A sweep has more clients and queues than there may be unless that is set."""
OPTIONS = b'{"depth":1000000}'
"""What is under way when a round ends stays, as it does with other brokers."""


def make_queues(address: Address, names: Sequence[str]) -> None:
    """Create queues; those that are there already stay. Raises Failure where the server says no."""
    with connect(address) as sock:
        requests = [_hello()]
        requests += [wire.pack(Type.CREATE_QUEUE, 0, wire.pack_name(name) + OPTIONS) for name in names]
        answers = _frames()
        for start in range(0, len(requests), 1000):
            sock.sendall(b"".join(requests[start : start + 1000]))
            left = min(len(requests) - start, 1000)
            while left:
                left -= answers(sock.recv(1 << 16))


def _hello() -> bytes:
    packed: bytes = wire.pack(Type.HANDSHAKE, 0, hello(load.who))
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


def _load(address: Address, point: Point, seconds: float) -> Measured:
    make_queues(address, [name.decode() for name in point.name_list()])
    talk = request_load(lambda point, client: dms_talk(point.size, point.window, point.names_of(client)))
    return talk(address, point, seconds)


def _adapter(mode: str, **environ: str) -> Adapter:
    # A connection waits for messages of one queue only.
    return Adapter("dms", mode, _load, size_max=SIZE_MAX, environ=MANY | environ, one_name_each=True)


ADAPTERS = {"synced": _adapter("synced"), "memory": _adapter("memory", BROKERS_DMS_PERSIST="false")}
