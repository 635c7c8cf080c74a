"""`brokers.testing`: a server in the test's process, whose time a test moves by hand."""

import asyncio
import time

import pytest
import trio

import brokers
from brokers import aio, sync
from brokers.testing import Broker, broker, serve
from dms.client import QueueOptions

__all__ = ["broker"]  # a fixture


def test_an_hour_passes_where_a_test_says_so(broker: Broker) -> None:
    begun = time.monotonic()
    with sync.connect(broker.url("dms")) as client:
        client.create("orders", QueueOptions(delay_ms=3_600_000))
        client.produce("orders", b"one")
        assert broker.rows("queues", "dms")[0]["delayed"] == 1
        broker.advance(3599)
        assert broker.rows("queues", "dms")[0]["delayed"] == 1
        broker.advance(60)  # a delay is kept to a thousandth of itself
        row = broker.rows("queues", "dms")[0]
        assert (row["name"], row["delayed"], row["ready"]) == ("orders", 0, 1)
        with client.consume("orders") as messages, next(messages) as message:
            assert message.body == b"one"
    assert time.monotonic() - begun < 60


async def test_a_test_of_trio_uses_it(broker: Broker) -> None:
    async with brokers.connect(broker.url("logmq")) as client:
        assert await client.produce("visits", b"/") == 0
    assert [row["name"] for row in broker.rows("topics")] == ["visits"]
    assert broker.metric("logmq_messages_produced_total") == 1


def test_a_test_of_asyncio_uses_it(broker: Broker) -> None:
    async def program() -> None:
        async with (
            aio.connect(broker.url("kqmsgq")) as client,
            client.consume("news") as messages,
        ):
            while broker.metric("kqmsgq_subscriptions") == 0:  # noqa: ASYNC110 (another thread's)
                await asyncio.sleep(0.001)
            await client.send("news", b"hello")
            assert (await anext(messages)).body == b"hello"

    asyncio.run(program())


def test_settings_are_given_by_protocol_and_each_server_has_data_of_its_own() -> None:
    with serve({"dms": {"depth": 1}}) as one, serve() as other, sync.connect(one.url("dms")) as client:
        client.create("short")
        client.produce("short", b"x")
        with pytest.raises(Exception, match="QUEUE_FULL"):
            client.produce("short", b"y")
        assert other.rows("queues", "dms") == []


async def test_pubsub_takes_datagrams_at_its_port(broker: Broker) -> None:
    from pubsub.client import Kind

    async with (
        brokers.connect(broker.url("pubsub")) as client,
        client.subscribe("A", "*") as messages,
    ):
        while broker.metric("pubsub_subscriptions") == 0:  # noqa: ASYNC110 (another thread's)
            await trio.sleep(0.001)
        await client.publish("a", Kind.STRING, "hello")
        assert (await anext(messages)).value == b"hello"
