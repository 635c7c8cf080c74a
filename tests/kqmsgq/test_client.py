"""The clients, against the server itself."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio
from trio.testing import lockstep_stream_pair, memory_stream_pair

from kqmsgq import client as clients
from kqmsgq.client import Consumer, Message, Producer, open_consumer, open_producer
from kqmsgq.settings import KqmsgqSettings
from kqmsgq.wire import message
from shared.client.dial import Address, Disconnected
from shared.client.sender import Sender
from shared.client.trio_loop import trio_loop
from tests.kqmsgq.served import Served, served


async def subscribed(server: Served, count: int) -> None:
    await server.until(subscriptions=count)


async def test_leaving_a_producer_waits_until_the_server_has_all() -> None:
    async with served() as server:
        async with open_producer(port=server.port) as producer:
            await producer.send_many((f"q{number % 3}", b"x" * number) for number in range(5000))
        assert server.value["messages_produced_total"] == 5000


async def test_subscriptions_end_one_by_one_and_all_at_once() -> None:
    async with (
        served() as server,
        open_consumer(port=server.port) as consumer,
        open_producer(port=server.port) as producer,
    ):
        await consumer.subscribe("a", "b")
        await consumer.subscribe_all()
        await subscribed(server, 3)
        await consumer.unsubscribe("a")
        await subscribed(server, 2)
        await consumer.unsubscribe_all()
        await subscribed(server, 0)
        await producer.send("a", b"nobody")
        await server.until(messages_unrouted_total=1)
        await consumer.subscribe("b")
        await subscribed(server, 1)
        await producer.send("b", b"1")
        assert await consumer.batch() == [Message(b"b", b"1")]


async def test_a_consumer_comes_back_and_is_subscribed_as_it_was() -> None:
    async with served() as server, open_consumer(port=server.port, retry_seconds=30) as consumer:
        await consumer.subscribe("one", "two", "three")
        await consumer.unsubscribe("two")
        await subscribed(server, 2)
        for number in range(3):  # an all-subscription comes in between
            (lost,) = server.service.queues.consumers
            lost.connection.abort("test")
            async with trio.open_nursery() as nursery, open_producer(port=server.port) as producer:
                nursery.start_soon(expect_body, consumer, b"%d" % number)
                await server.until(consumers=1)
                await subscribed(server, 2 + (number > 1))
                await producer.send("two" if number > 1 else "three", b"%d" % number)
            if number == 1:
                await consumer.subscribe_all()
                await subscribed(server, 3)


async def expect_body(consumer: Consumer, body: bytes) -> None:
    assert (await anext(consumer)).body == body


async def test_what_is_subscribed_while_the_connection_is_lost_counts_when_it_is_there_again() -> None:
    async with served() as server, open_consumer(port=server.port, retry_seconds=30) as consumer:
        await server.until(consumers=1)
        (lost,) = server.service.queues.consumers
        lost.connection.abort("test")
        for number in range(20):  # the first may still be taken by the system
            await consumer.subscribe(f"q{number}")
            await trio.lowlevel.checkpoint()
        async with trio.open_nursery() as nursery, open_producer(port=server.port) as producer:
            nursery.start_soon(expect_body, consumer, b"hello")
            await subscribed(server, 20)
            await producer.send("q0", b"hello")


async def test_many_tasks_may_share_a_producer() -> None:
    async with served() as server, open_consumer(port=server.port) as consumer:
        await consumer.subscribe_all()
        await subscribed(server, 1)

        async def send(producer: Producer, number: int) -> None:
            for each in range(20):
                await producer.send(f"q{number}", b"%d" % each)

        async with open_producer(port=server.port) as producer, trio.open_nursery() as nursery:
            for number in range(10):
                nursery.start_soon(send, producer, number)
        got: dict[bytes, list[int]] = {}
        for _ in range(200):
            found = await anext(consumer)
            got.setdefault(found.queue, []).append(int(found.body))
        assert len(got) == 10
        assert all(each == list(range(20)) for each in got.values())


async def test_the_largest_message_passes() -> None:
    async with served() as server, open_consumer(port=server.port) as consumer:
        await consumer.subscribe_all()
        await subscribed(server, 1)
        async with trio.open_nursery() as nursery:

            async def send() -> None:
                async with open_producer(port=server.port) as producer:
                    await producer.send("q", b"x" * KqmsgqSettings().message_bytes_max)

            nursery.start_soon(send)
            assert (await anext(consumer)).body == b"x" * KqmsgqSettings().message_bytes_max


async def test_a_producer_is_told_when_the_server_has_closed_it() -> None:
    async with served(KqmsgqSettings(message_bytes_max=10)) as server:
        async with open_consumer(port=server.port, name_bytes_max=5000) as consumer:
            await consumer.subscribe("q" * 5000)
            with pytest.raises(Disconnected, match="closed"):
                await consumer.batch()

        async def send_for_ever() -> None:
            async with open_producer(port=server.port) as producer:
                while True:
                    await producer.send("q", b"x" * 11)

        with pytest.raises(Disconnected):
            await send_for_ever()


async def test_what_the_server_would_close_on_is_refused_with_the_limit() -> None:
    async with served() as server:
        async with open_producer(port=server.port) as producer:
            with pytest.raises(ValueError, match="a message of 17825792 bytes: 16777216 at most"):
                await producer.send("q", bytes(17 << 20))
            with pytest.raises(ValueError, match="a queue's name of 5000 bytes: 4096 at most"):
                await producer.send("q" * 5000, b"")
            await producer.send("q", b"this one is sent")
        async with open_consumer(port=server.port) as consumer:
            with pytest.raises(ValueError, match="a queue's name of 5000 bytes: 4096 at most"):
                await consumer.subscribe("q" * 5000)


async def test_a_send_that_is_cancelled_goes_out_whole_and_in_its_turn() -> None:
    near, far = lockstep_stream_pair()
    async with trio_loop() as loop, trio.open_nursery() as nursery:
        sender = Sender(loop)
        loop.attach(near, sender)
        nursery.start_soon(sender.send, message(b"q", b"1"))
        await trio.testing.wait_all_tasks_blocked()
        with trio.move_on_after(0.01):
            await sender.send(message(b"q", b"2"))
        nursery.start_soon(sender.send, message(b"q", b"3"))
        await trio.testing.wait_all_tasks_blocked()
        sent = b"".join(message(b"q", body) for body in (b"1", b"2", b"3"))
        received = b""
        while len(received) < len(sent):
            received += await far.receive_some()
    assert received == sent


@asynccontextmanager
async def attached(near: trio.abc.Stream) -> AsyncIterator[Consumer]:
    """A consumer whose server is a stream in memory."""
    async with trio_loop() as loop:
        consumer = Consumer(loop, Address("memory", 1, kind="test"))
        loop.attach(near, consumer)
        yield consumer


async def test_what_no_server_would_take_is_refused_here() -> None:
    near, _ = memory_stream_pair()
    async with attached(near) as consumer:
        with pytest.raises(ValueError, match="subscribe_all"):
            await consumer.subscribe("")


def test_the_clients_defaults_are_the_servers() -> None:
    settings = KqmsgqSettings()
    assert settings.port == clients.PORT
    assert settings.name_bytes_max == clients.NAME_BYTES_MAX
    assert settings.message_bytes_max == clients.MESSAGE_BYTES_MAX
