"""Servers that are killed under their clients: what was acknowledged is there, by every end.

The programs go on as CLIENTS.md says: `Disconnected` means that what was asked may have been done or not. A
client of AMQP, and a sink, are then made anew; the others go on by themselves.
"""

import socket
import threading
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from typing import Any

import attrs
import pytest

from brokers import sync
from dmp.wire import Message
from shared.client.dial import Disconnected
from tests.support.ends import Connect, End
from tests.support.server import Server, until

PIECES, PIECE = 15, 20
RETRY = "?retry-seconds=30"


@pytest.fixture(params=["trio", "asyncio", "sync"])
def end(request: pytest.FixtureRequest) -> End:
    """What uvloop does otherwise than asyncio's own loop, the tests beside these show."""
    return End(request.param)


@attrs.define(eq=False)
class Killable:
    """A server with ports that stay."""

    server: Server
    ports: tuple[str, ...]

    def url(self, protocol: str) -> str:
        host, port = self.server.address(protocol)
        return f"{protocol}://{host}:{port}{RETRY}"

    def wait(self) -> None:
        """Until AMQP is served again."""

        def served() -> bool:
            with socket.socket() as sock:
                return not sock.connect_ex(self.server.address("dmp"))

        until(served)

    @contextmanager
    def killed_at(self, progress: Sequence[object], at: int) -> Iterator[None]:
        """Kill it, and start it again, once `progress` has so many; the block may go on meanwhile."""

        def kill() -> None:
            until(lambda: len(progress) >= at)
            self.server.kill()
            self.server.start(*self.ports)

        thread = threading.Thread(target=kill)
        thread.start()
        yield
        thread.join()


@pytest.fixture(scope="module")
def killable(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Killable]:
    with Server(tmp_path_factory.mktemp("killed")) as server:
        ports = [
            word
            for protocol in ("dms", "logmq", "dmp")
            for word in ("--port", f"{protocol}={server.address(protocol)[1]}")
        ]
        yield Killable(server, tuple(ports))


def bodies() -> list[list[bytes]]:
    numbers = count()
    return [[b"%d" % next(numbers) for _ in range(PIECE)] for _ in range(PIECES)]


async def anew(connect: Connect, killable: Killable, work: Callable[[Any], Awaitable[None]]) -> None:
    """Do the work with a client of AMQP that is made anew as often as its connection is lost."""
    while True:
        try:
            async with connect(killable.url("dmp")) as client:
                await work(client)
                return
        except (Disconnected, ConnectionRefusedError):
            killable.wait()


def test_what_dms_acknowledged_is_there_and_what_was_acknowledged_to_it_is_gone(
    end: End, killable: Killable
) -> None:
    queue = f"killed-{end.name}"
    written: list[bytes] = []
    taken: list[bytes] = []
    done: list[bytes] = []

    async def program(connect: Connect) -> None:
        async with connect(killable.url("dms")) as client:
            await client.create(queue)
            with killable.killed_at(written, PIECES * PIECE // 3):
                for piece in bodies():
                    try:
                        await client.produce_many(queue, piece)
                        written.extend(piece)
                    except Disconnected:
                        pass  # some of them may be there
            await client.produce(queue, b"last", again=True)
            with killable.killed_at(done, PIECES * PIECE // 3):
                async with client.consume(queue, prefetch=8) as messages:
                    while b"last" not in taken:  # what comes again is at its old place
                        message = await anext(messages)
                        taken.append(message.body)
                        if await message.ack():
                            done.append(message.body)

    end.run(program)
    assert set(written) <= set(taken)
    assert len(written) >= PIECES * PIECE // 2
    assert max(Counter(done).values()) == 1


def test_what_a_producer_of_logmq_has_sent_is_there_once_and_in_order(end: End, killable: Killable) -> None:
    topic = f"killed-{end.name}"
    sent = [body for piece in bodies() for body in piece]
    progress: list[bytes] = []
    read: list[bytes] = []

    async def program(connect: Connect) -> None:
        async with connect(killable.url("logmq")) as client:
            with killable.killed_at(progress, len(sent) // 3):
                async with client.producer(topic) as producer:
                    for body in sent:
                        await producer.send(body)
                        if len(progress) % PIECE == 0:
                            await producer.flush()
                        progress.append(body)
            with killable.killed_at(read, len(sent) // 3):
                async with client.read("readers", topic, follow=False) as records:
                    async for record in records:
                        read.append(record.payload)
            assert [record.payload async for record in client.records(topic)] == sent

    end.run(program)
    assert read == sent


def test_what_amqp_confirmed_is_there(end: End, killable: Killable) -> None:
    queue = f"killed-{end.name}"
    written: list[bytes] = []
    taken: list[bytes] = []
    left = bodies()

    async def publish(client: Any) -> None:
        await client.declare_queue(queue)
        while left:
            piece = left.pop(0)
            await client.publish(queue, piece[0])
            written.append(piece[0])
            await client.publish_many([Message(b"", queue.encode(), body) for body in piece[1:]])
            written.extend(piece[1:])

    async def consume(client: Any) -> None:
        depth = await client.depth(queue)
        async with client.consume(queue, prefetch=8) as deliveries:
            for _ in range(depth):
                delivery = await anext(deliveries)
                taken.append(delivery.body)
                await delivery.ack()

    async def program(connect: Connect) -> None:
        with killable.killed_at(written, PIECES * PIECE // 3):
            await anew(connect, killable, publish)
        with killable.killed_at(taken, PIECES * PIECE // 3):
            await anew(connect, killable, consume)
        await anew(connect, killable, consume)

    end.run(program)
    assert len(written) >= PIECES * PIECE // 2
    assert set(written) <= set(taken)


def test_a_feed_goes_on_and_has_nothing_twice(end: End, killable: Killable) -> None:
    """What a sink sends is acknowledged by nobody; what comes is whole, and in order."""
    key, url = f"killed-{end.name}", killable.url("dmp")
    taken: list[bytes] = []
    stop = threading.Event()
    numbers = count()

    def send() -> None:
        while not stop.is_set():
            try:
                with sync.connect(url) as client, client.sink("amq.topic") as sink:
                    while not stop.wait(0.001):
                        sink.send(key, b"%d" % next(numbers) * 100)
            except (Disconnected, ConnectionRefusedError):
                killable.wait()

    async def program(connect: Connect) -> None:
        async with connect(url) as client, client.feed([("amq.topic", key)]) as feed:
            sending.start()
            with killable.killed_at(taken, 100):
                first = feed.queue
                while len(taken) < 100 or feed.queue == first:
                    taken.append((await anext(feed)).body)
            for _ in range(100):
                taken.append((await anext(feed)).body)

    sending = threading.Thread(target=send)
    try:
        end.run(program)
    finally:
        stop.set()
        sending.join()
    sizes = [len(body) // 100 for body in taken]
    values = [int(body[:size]) for body, size in zip(taken, sizes, strict=True)]
    assert taken == [b"%d" % value * 100 for value in values]
    assert values == sorted(set(values))
