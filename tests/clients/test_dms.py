"""The DMS client on trio, on asyncio and blocking: each promise on all three."""

import asyncio
import time
from collections.abc import Callable

import pytest

from brokers import aio
from dms import link
from dms.client import QueueOptions
from dms.errors import ProtocolError, QueueExists, QueueFull, QueueNotFound
from dms.wire import HEADER_BYTES
from shared.client.dial import Disconnected, Unreachable
from tests.clients.silent import silent
from tests.support.cutting_proxy import CuttingProxy
from tests.support.ends import Connect, End

Url = Callable[[str], str]
ProxyTo = Callable[[str], CuttingProxy]
HELLO_BYTES = HEADER_BYTES + len(link.hello(link.NOBODY))


def test_every_request_has_its_method(end: End, url: Url) -> None:
    queue = f"Über-{end.name}"

    async def program(connect: Connect) -> None:
        async with connect(url("dms")) as client:
            await client.create(queue)
            with pytest.raises(QueueExists):
                await client.create(queue)
            await client.produce(queue, b"one")
            assert await client.produce_many(queue, [b"two", b"", b"\0" * 4080]) == 0
            assert {each.name: each.depth for each in await client.queues()}[queue] == 4
            async with client.consume(queue, prefetch=4, at_most=5) as messages:
                first = await anext(messages)
                assert first.body == b"one"
                assert await first.nack()
                bodies = []
                async for message in messages:
                    assert await message.ack()
                    bodies.append(message.body)
                assert sorted(bodies) == [b"", b"\0" * 4080, b"one", b"two"]
            await client.delete(queue)
            with pytest.raises(QueueNotFound):
                await client.produce(queue, b"x")

    end.run(program)


def test_every_request_of_jobs_has_its_method(end: End, url: Url) -> None:
    queue = f"jobs-{end.name}"

    async def program(connect: Connect) -> None:
        async with connect(url("dms")) as client:
            await client.create(queue, QueueOptions(ack_ms=60_000))
            await client.produce(queue, b"later", delay_ms=3_600_000, dedup="a", headers={"to": "änn"})
            await client.produce(queue, b"again", dedup="a")
            await client.produce_many(
                queue, [b"gone", b"gone too"], at=round(1000 * time.time()) + 10**8, key="k"
            )
            with pytest.raises(ProtocolError, match="priority"):
                await client.produce(queue, b"x", priority=10)
            job = await client.job(queue, dedup="a")
            assert (job.about["state"], job.about["headers"], job.body) == (
                "waiting",
                {"to": "änn"},
                b"later",
            )
            for seq in (1, 2):
                await client.cancel(queue, seq=job.about["seq"] + seq)
            with pytest.raises(ProtocolError, match="no job"):
                await client.cancel(queue, seq=job.about["seq"] + 1)
            await client.reschedule(queue, dedup="a", delay_ms=0)
            async with client.consume(queue, with_about=True) as messages:
                first = await anext(messages)
                assert (first.body, first.about["deliveries"]) == (b"later", 1)
                assert first.about["headers"] == {"to": "änn"}
                assert await first.touch()
                assert await first.touch()
                assert await first.nack(text="nö", delay_ms=10)
                again = await anext(messages)
                assert again.about["deliveries"] == 2
                assert (await client.job(queue, dedup="a")).about["text"] == "nö"
                assert await again.ack()

    end.run(program)


def test_a_message_is_acknowledged_by_its_block_and_given_back_where_that_fails(end: End, url: Url) -> None:
    queue = f"blocks-{end.name}"

    async def program(connect: Connect) -> None:
        async with connect(url("dms")) as client:
            await client.create(queue)
            await client.produce(queue, b"again and again")
            async with client.consume(queue) as messages:
                with pytest.raises(ZeroDivisionError):
                    async with await anext(messages):
                        raise ZeroDivisionError
                async with await anext(messages) as message:
                    assert message.body == b"again and again"
            assert {each.name: each.depth for each in await client.queues()}[queue] == 0
            await client.delete(queue)

    end.run(program)


def test_a_message_whose_block_is_cancelled_is_given_back(end: End, url: Url) -> None:
    """BaseException stands for the cancellation of each loop, which is none of Exception's kind."""
    queue = f"cancelled-{end.name}"

    async def program(connect: Connect) -> None:
        async with connect(url("dms")) as client:
            await client.create(queue)
            await client.produce(queue, b"again")
            async with client.consume(queue, prefetch=1) as messages:
                with pytest.raises(BaseException, match="cancelled"):
                    async with await anext(messages):
                        raise BaseException("cancelled")
                assert (await anext(messages)).body == b"again"
            await client.delete(queue)

    end.run(program)


def test_a_message_is_acknowledged_once_however_often_that_is_called(end: End, url: Url) -> None:
    queue = f"once-{end.name}"

    async def program(connect: Connect) -> None:
        async with connect(url("dms")) as client:
            await client.create(queue)
            await client.produce_many(queue, [b"one", b"two"])
            async with client.consume(queue, prefetch=2) as messages:
                first, second = await anext(messages), await anext(messages)
                assert [await first.ack(), await first.ack()] == [True, True]
                assert await second.ack()
                with pytest.raises(ProtocolError):
                    await first.nack()
            await client.delete(queue)

    end.run(program)


def test_what_is_overdue_is_not_acknowledged_and_raises_nothing(end: End, url: Url) -> None:
    queue = f"slow-{end.name}"

    async def program(connect: Connect) -> None:
        async with connect(url("dms")) as client:
            await client.create(queue, QueueOptions(ack_ms=100))
            await client.produce(queue, b"slow")
            async with client.consume(queue, prefetch=2) as messages:
                first = await anext(messages)
                await anext(messages)  # its time is over: here it is again
                assert [await first.touch(), await first.ack(), await first.ack()] == [False, False, False]
                with pytest.raises(ProtocolError):
                    await first.nack()
            await client.delete(queue)

    end.run(program)


def test_an_acknowledgement_that_was_cancelled_may_be_called_again(url: Url) -> None:
    async def program() -> None:
        async with aio.connect(url("dms")) as client:
            await client.create("cancelled-ack")
            await client.produce("cancelled-ack", b"x")
            async with client.consume("cancelled-ack") as messages:
                message = await anext(messages)
                acknowledging = asyncio.create_task(message.ack())
                await asyncio.sleep(0)
                acknowledging.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await acknowledging
                assert await message.ack()
            await client.delete("cancelled-ack")

    asyncio.run(program())


def test_of_many_messages_those_that_were_refused_are_named(end: End, url: Url) -> None:
    queue = f"refused-{end.name}"

    async def program(connect: Connect) -> None:
        from dms.client import QueueOptions

        async with connect(url("dms")) as client:
            await client.create(queue, QueueOptions(depth=100))
            with pytest.raises(QueueFull) as caught:
                await client.produce_many(queue, [bytes(4000)] * 200)
            assert caught.value.refused == tuple(range(100, 200))
            await client.delete(queue)

    end.run(program)


def test_what_may_be_asked_twice_survives_a_lost_connection(end: End, proxy_to: ProxyTo) -> None:
    queue = f"cut-{end.name}"
    proxy = proxy_to("dms")

    async def program(connect: Connect) -> None:
        async with connect(f"dms://127.0.0.1:{proxy.port}?retry-seconds=20") as client:
            await client.create(queue)
            await client.produce_many(queue, [b"one", b"two"])
            async with client.consume(queue, prefetch=2) as messages:
                held = await anext(messages)
                proxy.cut()
                assert queue in {each.name for each in await client.queues()}
                assert not await held.ack(), "it was delivered over a connection that is lost"
                bodies = {(await anext(messages)).body, (await anext(messages)).body}
                assert bodies == {b"one", b"two"}
            await client.delete(queue)
        assert proxy.connections == 4

    end.run(program)


def test_a_write_whose_answer_is_lost_says_so_and_is_sent_again_where_that_is_asked(
    end: End, proxy_to: ProxyTo
) -> None:
    queue = f"lost-{end.name}"
    proxy = proxy_to("dms")

    async def program(connect: Connect) -> None:
        url = f"dms://127.0.0.1:{proxy.port}"
        async with connect(url) as client:
            await client.create(queue)
        request = HEADER_BYTES + 2 + len(queue) + len(b"unheard")
        proxy.deaf_after = [HELLO_BYTES + request] * 2
        async with connect(url) as client:
            with pytest.raises(Disconnected) as caught:
                await client.produce(queue, b"unheard")
            assert not isinstance(caught.value, Unreachable)
            await client.produce(queue, b"unheard", again=True)
            assert {each.name: each.depth for each in await client.queues()}[queue] == 3
            await client.delete(queue)

    end.run(program)


def test_a_server_that_stays_away_is_unreachable_after_a_while(end: End, proxy_to: ProxyTo) -> None:
    proxy = proxy_to("dms")

    async def program(connect: Connect) -> None:
        async with connect(f"dms://127.0.0.1:{proxy.port}", retry_seconds=0.2) as client:
            await client.queues()
            proxy.stop()
            with pytest.raises(Unreachable, match="no DMS server answers"):
                await client.queues()

    end.run(program)


def test_nobody_there_is_a_connection_refused(end: End) -> None:
    async def program(connect: Connect) -> None:
        with pytest.raises(ConnectionRefusedError, match=r"no DMS server answers \(Connection refused\)"):
            async with connect("dms://127.0.0.1:1"):
                raise AssertionError("connected to nobody")
        with pytest.raises(ConnectionRefusedError, match="no DMS server answers"):
            async with connect("dms://a..b:1"):
                raise AssertionError("connected to nobody")

    end.run(program)


def test_a_server_that_says_nothing_is_given_up(end: End, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link, "FIRST_ANSWER_SECONDS", 0.05)

    async def program(connect: Connect) -> None:
        with pytest.raises(Unreachable, match=r"says nothing to a handshake in 0\.05 s"):
            async with connect(f"dms://127.0.0.1:{port}"):
                raise AssertionError("connected")

    with silent() as port:
        end.run(program)
