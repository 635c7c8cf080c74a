"""`brokers.testing`: a server in the test's process, whose time a test moves by hand."""

import asyncio
import time

import pytest

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


def states(broker: Broker) -> dict[str, tuple[int, int]]:
    """Of DMS's queues: how many messages are ready, and delayed."""
    return {row["name"]: (row["ready"], row["delayed"]) for row in broker.rows("queues", "dms")}


def test_nothing_is_due_before_time_is_moved_and_then_all_in_its_order(broker: Broker) -> None:
    """A lifetime of 0.2 s, behind it a delay of 0.3 s, of which each begins where the last has ended."""
    with sync.connect(broker.url("dms")) as client:
        client.create("last")
        client.create("second", QueueOptions(delay_ms=300, ttl_ms=600, dead_letter="last"))
        client.create("first", QueueOptions(ttl_ms=200, dead_letter="second"))
        client.produce("first", b"x")
        time.sleep(0.25)  # the world's
        assert states(broker) == {"first": (1, 0), "second": (0, 0), "last": (0, 0)}
        broker.advance(0.19)
        assert states(broker)["first"] == (1, 0)
        broker.advance(0.02)
        assert states(broker) == {"first": (0, 0), "second": (0, 1), "last": (0, 0)}
        broker.advance(0.31)
        assert states(broker) == {"first": (0, 0), "second": (1, 0), "last": (0, 0)}
        client.produce("first", b"y")
        broker.advance(5)
        assert states(broker) == {"first": (0, 0), "second": (0, 0), "last": (2, 0)}
    with pytest.raises(ValueError, match="time does not go back"):
        broker.advance(-1)


def test_every_protocol_goes_by_the_time_that_is_moved() -> None:
    """An AMQP message's life, LogMQ's retention and a FETCH's wait, a subscriber's absence."""
    settings = {"logmq": {"retention_ms": 3_600_000}, "pubsub": {"session_seconds": 3600}}
    with (
        serve(settings) as broker,
        sync.connect(broker.url("dmp")) as dmp,
        sync.connect(broker.url("logmq")) as logmq,
        sync.connect(broker.url("logmq")) as waiting,
        sync.connect(broker.url("pubsub")) as pubsub,
    ):
        dmp.declare_queue("short", arguments={"x-message-ttl": 60_000})
        dmp.publish("short", b"x")
        logmq.produce_many("visits", [bytes(1000)] * 2000)
        with pubsub.subscribe("A", "a"):
            assert broker.metric("pubsub_sessions") == 1
        with waiting.timeout(0.05), pytest.raises(TimeoutError):
            waiting.fetch("visits", logmq.offsets("visits").end, wait_ms=30_000)
        assert broker.metric("logmq_fetches_waiting") == 1
        broker.advance(59)
        assert (dmp.depth("short"), broker.metric("logmq_fetches_waiting")) == (1, 0)
        broker.advance(2)
        assert dmp.depth("short") == 0
        assert (logmq.offsets("visits").first, broker.metric("pubsub_sessions")) == (0, 1)
        broker.advance(7200)
        assert logmq.offsets("visits").first > 0
        assert broker.metric("pubsub_sessions") == 0


def test_a_name_that_is_mistyped_is_an_error_and_no_empty_list(broker: Broker) -> None:
    assert broker.rows("queues", "dms") == []
    with pytest.raises(ValueError, match=r"the server has no 'queue'; there are .*queues"):
        broker.rows("queue")
    with pytest.raises(ValueError, match="logmq has no 'queues'; there are "):
        broker.rows("queues", "logmq")
    for settings, said in (({"dsm": {}}, "did you mean dms"), ({"dms": {"dept": 1}}, "dept")):
        with pytest.raises(Exception, match=said), serve(settings):
            raise AssertionError("it serves")


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
            assert broker.metric("kqmsgq_subscriptions") == 1  # what was sent has been served
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
        assert broker.metric("pubsub_subscriptions") == 1
        await client.publish("a", Kind.STRING, "hello")
        assert (await anext(messages)).value == b"hello"
