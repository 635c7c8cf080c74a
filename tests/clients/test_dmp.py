"""The clients of DMP and AMQP on trio, on asyncio and blocking: each promise on all three."""

import threading
from collections.abc import Callable

import pytest

from brokers import sync
from dmp.amqp_client import Unroutable
from dmp.principal import NotThere
from shared.client.dial import Disconnected
from tests.support.cutting_proxy import CuttingProxy
from tests.support.ends import Connect, End
from tests.support.server import Server, counter, until

Url = Callable[[str], str]
ProxyTo = Callable[[str], CuttingProxy]


def test_what_is_confirmed_is_delivered_until_it_is_acknowledged(end: End, url: Url) -> None:
    queue = f"jobs-{end.name}"

    async def program(connect: Connect) -> None:
        async with connect(url("dmp")) as client:
            assert await client.declare_queue(queue) == queue
            for number in range(20):
                await client.publish(queue, b"%d" % number)
            async with client.consume(queue, prefetch=7) as deliveries:
                for number in range(10):
                    delivery = await anext(deliveries)
                    assert (delivery.body, delivery.redelivered) == (b"%d" % number, False)
                    await delivery.ack()
                assert (await anext(deliveries)).body == b"10"
            async with client.consume(queue) as deliveries:
                delivery = await anext(deliveries)
                assert (delivery.body, delivery.redelivered) == (b"10", True)
                await delivery.nack(requeue=False)
            assert await client.delete_queue(queue) == 9

    end.run(program)


def test_a_delivery_is_settled_once_however_often_that_is_called(end: End, url: Url) -> None:
    async def program(connect: Connect) -> None:
        async with connect(url("dmp")) as client:
            queue = await client.declare_queue(exclusive=True)
            for body in (b"one", b"two"):
                await client.publish(queue, body)
            async with client.consume(queue) as deliveries:
                first, second = await anext(deliveries), await anext(deliveries)
                for _ in range(2):
                    await first.ack()
                    await second.nack(requeue=False)
                with pytest.raises(ValueError, match="acknowledged or given back already"):
                    await first.nack()
                await client.publish(queue, b"three")
                assert (await anext(deliveries)).body == b"three"  # the server has refused nothing

    end.run(program)


def test_large_bodies_pass_both_ways(end: End, url: Url) -> None:
    queue = f"large-{end.name}"
    bodies = [bytes([number]) * 700_000 for number in range(6)]

    async def program(connect: Connect) -> None:
        async with connect(url("dmp")) as client:
            await client.declare_queue(queue)
            for body in bodies:
                await client.publish(queue, body)
            async with client.consume(queue) as deliveries:
                assert [(await anext(deliveries)).body for _ in bodies] == bodies
            await client.delete_queue(queue)

    end.run(program)


def test_a_refusal_is_an_error_and_the_client_goes_on(end: End, url: Url) -> None:
    async def program(connect: Connect) -> None:
        async with connect(url("dmp")) as client:
            with pytest.raises(NotThere):
                await client.depth(f"nothing-{end.name}")
            with pytest.raises(Unroutable):
                await client.publish(f"nothing-{end.name}", b"x")
            await client.publish(f"nothing-{end.name}", b"x", mandatory=False)

    end.run(program)


def test_a_lost_connection_fails_who_waits(end: End, proxy_to: ProxyTo) -> None:
    proxy = proxy_to("dmp")

    async def program(connect: Connect) -> None:
        async with connect(f"dmp://127.0.0.1:{proxy.port}") as client:
            await client.declare_queue(exclusive=True)
            proxy.cut()
            with pytest.raises(Disconnected):
                await client.declare_queue(exclusive=True)

    end.run(program)


def test_a_feed_has_what_a_sink_sends_and_what_no_queue_takes_comes_back(end: End, proxy_to: ProxyTo) -> None:
    proxy = proxy_to("dmp")
    bodies = [b"%d" % number * (number % 50) for number in range(2000)]

    async def program(connect: Connect) -> None:
        async with (
            connect(f"dmp://127.0.0.1:{proxy.port}?retry-seconds=20") as client,
            client.feed([("amq.topic", f"{end.name}.#")]) as feed,
        ):
            async with client.sink("amq.topic") as sink:
                await sink.send_many([(f"{end.name}.a", body) for body in bodies])
                await sink.send("elsewhere", b"x", mandatory=True)
            assert [each.code for each in sink.returned] == [312]
            assert [(await anext(feed)).body for _ in bodies] == bodies

    end.run(program)


def test_a_sink_whose_block_fails_is_closed_and_its_client_goes_on(
    end: End, clients_server: Server, url: Url
) -> None:
    def connections() -> int:
        return counter(clients_server.data, 'connections{protocol="dmp"}')

    async def program(connect: Connect) -> None:
        async with connect(url("dmp")) as client:
            before = connections()
            with pytest.raises(ZeroDivisionError):
                async with client.sink("amq.topic"):
                    raise ZeroDivisionError
            await client.declare_queue(exclusive=True)
            until(lambda: connections() == before)

    end.run(program)


def keep_sending(url: str, key: str, stop: threading.Event) -> None:
    with sync.connect(url) as client:
        while not stop.wait(0.01):
            client.publish(key, b"hello", exchange="amq.topic", mandatory=False)


def test_a_feed_is_leased_again_over_a_new_connection(end: End, proxy_to: ProxyTo, url: Url) -> None:
    proxy, stop, key = proxy_to("dmp"), threading.Event(), f"again-{end.name}"
    sending = threading.Thread(target=keep_sending, args=(url("dmp"), key, stop))

    async def program(connect: Connect) -> None:
        async with (
            connect(f"dmp://127.0.0.1:{proxy.port}?retry-seconds=20") as client,
            client.feed([("amq.topic", key)]) as feed,
        ):
            assert (await anext(feed)).body == b"hello"
            before = proxy.connections
            proxy.cut()
            while proxy.connections < before + 2:  # a principal, and the feed
                assert (await anext(feed)).body == b"hello"
            assert (await anext(feed)).body == b"hello"

    sending.start()
    try:
        end.run(program)
    finally:
        stop.set()
        sending.join()


def test_in_blocking_code_an_acknowledgement_has_left_when_its_call_returns(
    clients_server: Server, url: Url
) -> None:
    def acknowledged() -> int:
        return counter(clients_server.data, "dmp_messages_acknowledged_total")

    before = acknowledged()
    with sync.connect(url("dmp")) as client:
        queue = client.declare_queue(exclusive=True)
        client.publish(queue, b"x")
        with client.consume(queue) as deliveries:
            next(deliveries).ack()
            until(lambda: acknowledged() == before + 1)
