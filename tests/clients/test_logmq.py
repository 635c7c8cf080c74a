"""The LogMQ client on trio, on asyncio and blocking: each promise on all three."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from brokers import aio
from logmq import connector
from logmq.client import Topic
from logmq.connector import LogmqError, NoTopic
from logmq.wire import Refusal
from shared.client.dial import Disconnected, Unreachable
from tests.support.cutting_proxy import CuttingProxy
from tests.support.ends import Connect, End

Url = Callable[[str], str]
ProxyTo = Callable[[str], CuttingProxy]


def test_every_request_has_its_method(end: End, url: Url) -> None:
    topic = f"methods-{end.name}"

    async def program(connect: Connect) -> None:
        async with connect(url("logmq")) as client:
            assert await client.produce(topic, b"one") == 0
            assert await client.produce(topic, b"two\nline\r") == 7
            assert await client.produce_many(topic, [b"a", b"", b"b\n"]) == [20, 25, 29]
            record = await client.consume(topic, 7)
            assert (record.offset, record.payload, record.next_offset) == (7, b"two\nline\r", 20)
            assert await client.consume(topic, 35) is None
            assert await client.fetch(topic, 35) == []
            assert [each.payload for each in await client.fetch(topic, 20)] == [b"a", b"", b"b\n"]
            assert await client.offsets(topic) == Topic(topic, 0, 35)
            assert Topic(topic, 0, 35) in await client.topics()
            assert await client.committed("g", topic) is None
            await client.commit("g", topic, 20)
            assert await client.committed("g", topic) == 20
            assert await client.seek(topic, 0) == 0
            assert sum(mark.length for mark in await client.marks(topic, 0, 35)) in (0, 35)
            assert await client.batch(topic, "w", 1, [b"x", b"y"]) == 35
            assert await client.batch(topic, "w", 1, [b"x", b"y"]) == 35
            assert await client.append(topic, b"z") == 45
            await client.ping()
            await client.delete(topic)
            with pytest.raises(NoTopic):
                await client.offsets(topic)
            with pytest.raises(Refusal, match="BAD_TOPIC"):
                await client.produce("a b", b"x")
            with pytest.raises(TypeError, match="text, not by bytes"):
                await client.produce(b"t", b"x")  # type: ignore[arg-type]

    end.run(program)


def test_records_come_in_order_to_the_end_and_a_tail_is_pushed_what_comes(end: End, url: Url) -> None:
    topic = f"reading-{end.name}"
    payloads = [b"%d" % number * (number % 50) for number in range(2000)]

    async def program(connect: Connect) -> None:
        async with connect(url("logmq")) as client:
            await client.produce_many(topic, payloads)
            for size in (1, 1000, 1 << 20):
                reader = client.records(topic, bytes_max=size)
                assert [record.payload async for record in reader] == payloads
                assert reader.offset == (await client.offsets(topic)).end
            async with client.tail(topic, reader.offset) as tail:
                await client.produce(topic, b"news")
                assert (await anext(tail)).payload == b"news"
                await client.delete(topic)
                with pytest.raises(LogmqError, match="NO_TOPIC"):
                    await anext(tail)

    end.run(program)


def test_what_was_read_ahead_is_handed_out_though_the_server_has_gone(end: End, proxy_to: ProxyTo) -> None:
    topic, proxy = f"ahead-{end.name}", proxy_to("logmq")

    async def program(connect: Connect) -> None:
        async with connect(f"logmq://127.0.0.1:{proxy.port}", retry_seconds=0.1) as client:
            await client.produce_many(topic, [b"%03d" % number for number in range(30)])
            chunk = len(await client.fetch(topic, 0, 50))
            records = client.records(topic, bytes_max=50)
            assert (await anext(records)).payload == b"000"
            await client.ping()  # answered behind the second chunk
            proxy.stop()
            with pytest.raises(Unreachable):
                await client.ping()
            read = [(await anext(records)).payload for _ in range(2 * chunk - 1)]
            assert read == [b"%03d" % number for number in range(1, 2 * chunk)]
            with pytest.raises(Unreachable):
                await anext(records)

    end.run(program)


def test_a_read_that_was_cancelled_goes_on_with_the_answer_that_is_to_come(
    url: Url, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []
    fetch = connector.fetch

    def counted(topic: str, offset: int, bytes_max: int, wait_ms: int) -> connector.Ask:
        asked.append(offset)
        return fetch(topic, offset, bytes_max, wait_ms)

    async def program() -> None:
        async with aio.connect(url("logmq")) as client, aio.connect(url("logmq")) as other:
            await other.produce("waited", b"one")
            records = client.records("waited", follow=True)
            assert (await anext(records)).payload == b"one"
            for _ in range(3):
                with pytest.raises(TimeoutError):
                    await asyncio.wait_for(anext(records), 0.02)
            await other.produce("waited", b"two")
            assert (await anext(records)).payload == b"two"
            await other.delete("waited")

    monkeypatch.setattr(connector, "fetch", counted)
    asyncio.run(program())
    assert asked == [0, 7, 14]


async def fail_at_the_second(client: Any, topic: str) -> None:
    async with client.read("g", topic) as records:
        assert (await anext(records)).payload == b"one"
        assert (await anext(records)).payload == b"two"
        raise ZeroDivisionError


def test_a_group_goes_on_behind_what_it_has_handled(end: End, url: Url) -> None:
    topic = f"group-{end.name}"

    async def program(connect: Connect) -> None:
        async with connect(url("logmq")) as client:
            await client.produce_many(topic, [b"one", b"two", b"three"])
            with pytest.raises(ZeroDivisionError):
                await fail_at_the_second(client, topic)
            assert await client.committed("g", topic) == 7, "one is handled, two is not"
            async with client.read("g", topic, follow=False) as records:
                assert [record.payload async for record in records] == [b"two", b"three"]
            assert await client.committed("g", topic) == (await client.offsets(topic)).end
            async with client.read("g", topic) as records:
                await client.produce_many(topic, [b"four", b"five"])
                assert (await anext(records)).payload == b"four"
                assert (await anext(records)).payload == b"five"
            assert await client.committed("g", topic) == (await client.offsets(topic)).end
            await client.delete(topic)

    end.run(program)


def test_a_producer_writes_everything_once_and_in_order_over_lost_connections(
    end: End, proxy_to: ProxyTo
) -> None:
    topic = f"once-{end.name}"
    proxy = proxy_to("logmq")
    payloads = [b"%08d" % number * 100 for number in range(3000)]

    async def program(connect: Connect) -> None:
        proxy.deaf_after = [3000, 1, 200_000, 400_000, 500_000]
        written: list[int] = []
        async with connect(f"logmq://127.0.0.1:{proxy.port}") as client:
            async with client.producer(
                topic, on_written=lambda _, offsets: written.extend(offsets)
            ) as producer:
                for payload in payloads:
                    await producer.send(payload)
            assert producer.written == len(payloads)
            records = [record async for record in client.records(topic)]
            assert [record.payload for record in records] == payloads
            assert [record.offset for record in records] == written
            await client.delete(topic)
        assert proxy.connections == 6

    end.run(program)


def test_what_may_be_asked_twice_survives_a_lost_connection_and_a_plain_write_is_not_made_twice(
    end: End, proxy_to: ProxyTo
) -> None:
    topic = f"cut-{end.name}"
    proxy = proxy_to("logmq")

    async def program(connect: Connect) -> None:
        proxy.deaf_after = [len(f"PRODUCE {topic} one\n")]
        async with connect(f"logmq://127.0.0.1:{proxy.port}") as client:
            with pytest.raises(Disconnected):
                await client.produce(topic, b"one")
            written: list[bytes] = []
            while not written:  # the server may read it after it has seen the new connection
                written = [record.payload async for record in client.records(topic)]
            assert written == [b"one"]
            proxy.cut()
            assert await client.offsets(topic) == Topic(topic, 0, 7)
            async with client.tail(topic) as tail:
                assert (await anext(tail)).payload == b"one"
                proxy.cut()
                await client.batch(topic, "w", 1, [b"two"])
                assert (await anext(tail)).payload == b"two"
            await client.delete(topic)

    end.run(program)


def test_a_refusal_comes_out_where_it_is_used(end: End, url: Url) -> None:
    topic = f"large-{end.name}"

    async def program(connect: Connect) -> None:
        async with connect(url("logmq")) as client:
            with pytest.raises(LogmqError, match="TOO_LARGE"):
                await client.produce_many(topic, [b"one", bytes(2_000_000), b"two"])
            assert [record.payload async for record in client.records(topic)] == [b"one", b"two"]
            with pytest.raises(LogmqError, match="TOO_LARGE"):
                async with client.producer(topic) as producer:
                    await producer.send(bytes(2_000_000))  # the end of the block waits for the answer
            await client.delete(topic)

    end.run(program)


def test_a_server_that_stays_away_is_unreachable_after_a_while(end: End, proxy_to: ProxyTo) -> None:
    proxy = proxy_to("logmq")

    async def program(connect: Connect) -> None:
        async with connect(f"logmq://127.0.0.1:{proxy.port}?retry-seconds=0.1") as client:
            await client.ping()
            proxy.stop()
            with pytest.raises(Unreachable):
                async with client.producer("away") as producer:
                    await producer.send(b"x")
            with pytest.raises(Unreachable):
                await client.ping()

    end.run(program)
