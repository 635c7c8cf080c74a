"""KqueueMsgQ behind real sockets: what sessions alone cannot show."""

import socket
import threading
from pathlib import Path

import trio

from kqmsgq.settings import KqmsgqSettings
from kqmsgq.wire import message, subscribe, take_messages
from shared.net.settings import NetSettings
from tests.kqmsgq.served import served
from tests.shared.net.served import read_all
from tests.support.server import Server, speak


async def test_the_end_of_its_input_ends_a_consumer_once_what_waited_is_written() -> None:
    async with served() as server:
        consumer = await server.connect(b"consume" + subscribe(b"a"))
        await server.until(subscriptions=1)
        sent = message(b"a", b"x" * 5_000_000)
        await server.connect(b"produce" + sent)
        await server.until(messages_delivered_total=1)
        await consumer.send_eof()
        assert await read_all(consumer) == sent
        await server.until(consumers=0)


async def test_a_drain_sends_what_waits_and_closes_all() -> None:
    async with served(net=NetSettings(linger_seconds=0.1)) as server:
        consumer = await server.connect(b"consume" + subscribe())
        await server.until(subscriptions=1)
        sent = message(b"a", b"x" * 5_000_000)
        producer = await server.connect(b"produce" + sent + sent[:100])
        await server.until(messages_delivered_total=1)
        server.group.stop_accepting()
        server.service.drain()
        server.group.drain()
        assert await read_all(consumer) == sent
        assert await read_all(producer) == b""
        await server.group.wait_no_connections()


async def test_those_who_never_read_lose_messages_and_nobody_else_notices() -> None:
    """A producer and 100 consumers, of which 10 never read."""
    bound, total, body = 300_000, 2000, b"x" * 1000
    async with served(KqmsgqSettings(consumer_bytes_max=bound)) as server:
        readers = [await server.connect(b"consume" + subscribe(b"q")) for _ in range(90)]
        stuck = [await server.connect(b"consume" + subscribe(b"q"), narrow=True) for _ in range(10)]
        await server.until(subscriptions=100)
        for stream in stuck:
            server.narrow(stream)
        sent = b"".join(message(b"q", b"%8d" % number + body) for number in range(total))
        received: list[bytes] = []

        async def take(stream: trio.SocketStream) -> None:
            received.append(await read_all(stream, len(sent)))

        async with trio.open_nursery() as nursery:
            for stream in readers:
                nursery.start_soon(take, stream)
            producer = await server.connect(b"produce" + sent)
        assert all(each == sent for each in received)
        await server.until(messages_produced_total=total)

        lost = [server.consumer(stream) for stream in stuck]
        one_read = NetSettings().read_bytes_max + len(message(b"q", body))
        for consumer in lost:
            assert consumer.connection.outbox.waiting_bytes <= max(bound, one_read)
            assert consumer.dropped > total / 2
        value = server.value
        assert value["messages_dropped_total"] == sum(each.dropped for each in lost)
        assert value["consumers_dropped_from_total"] == 10
        _, sessions, _ = server.service.objects
        rows = [sessions.row(each) for each in sessions.items()]
        assert {row["peer"]: row["dropped"] for row in rows if row and row["dropped"]} == {
            each.connection.peer: each.dropped for each in lost
        }
        await producer.aclose()

        # What they do get in the end is whole, in order, with the newest, and the count is right.
        for stream, consumer in zip(stuck, lost, strict=True):
            await stream.send_eof()
            data = await read_all(stream)
            found, end = take_messages(data, 100, 10_000)
            assert end == len(data)
            numbers = [int(each.body[:8]) for each in found]
            assert numbers == sorted(set(numbers))
            assert numbers[-1] == total - 1
            assert len(numbers) + consumer.dropped == total


async def test_a_slow_consumer_may_be_disconnected_instead() -> None:
    settings = KqmsgqSettings(consumer_bytes_max=100_000, slow_consumer="disconnect")
    async with served(settings) as server:
        stuck = await server.connect(b"consume" + subscribe(), narrow=True)
        reader = await server.connect(b"consume" + subscribe())
        await server.until(subscriptions=2)
        server.narrow(stuck)
        sent = message(b"q", b"x" * 1000) * 2000
        await server.connect(b"produce" + sent)
        assert await read_all(reader, len(sent)) == sent
        await server.until(consumers=1)
        assert server.group.counters.closed["slow consumer"] == 1
        assert server.value["messages_dropped_total"] == 0


def test_a_flood_leaves_other_protocols_of_the_process_their_turn(tmp_path: Path) -> None:
    with Server(tmp_path) as server:
        _flood(server)
        assert server.stop() == 0


def _flood(server: Server) -> None:
    flood = b"".join(message(b"q%d" % (number % 7), b"x" * (number % 200)) for number in range(1000))
    stop = threading.Event()

    def produce() -> None:
        with socket.create_connection(server.address("kqmsgq"), timeout=30) as producer:
            producer.sendall(b"produce")
            while not stop.is_set():
                producer.sendall(flood)

    producers = [threading.Thread(target=produce) for _ in range(2)]
    with socket.create_connection(server.address("kqmsgq"), timeout=30) as consumer:
        consumer.sendall(b"consume" + subscribe(b"q1"))
        for each in producers:
            each.start()
        try:
            assert consumer.recv(1)
            for _ in range(20):
                assert speak(server.address("logmq"), b"PING\n" * 10) == b"PONG\n" * 10
        finally:
            stop.set()
            for each in producers:
                each.join()
