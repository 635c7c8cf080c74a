"""The AMQP client against a real server: confirms, acknowledgements, refusals, ends."""

from collections.abc import Iterator

import pytest
import trio
import trio.testing
from pamqp import commands

from dmp import amqp_client, client
from dmp.amqp_client import Client, Deliveries, Disconnected, NotTaken, Refused, Unroutable, open_amqp
from dmp.principal import NotThere
from dmp.settings import DmpSettings
from shared.net.dial import Unreachable
from tests.dmp.served import Served, served

PATIENCE_SECONDS = 60.0


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with served(tmp_path_factory.mktemp("amqp"), DmpSettings()) as server:
        yield server


async def bodies(deliveries: Deliveries, count: int) -> list[bytes]:
    found = []
    with trio.fail_after(PATIENCE_SECONDS):
        while len(found) < count:
            delivery = await anext(deliveries)
            found.append(delivery.body)
            await delivery.ack()
    return found


async def test_what_is_published_is_confirmed_delivered_and_acknowledged(server: Served) -> None:
    async with open_amqp(port=server.port) as client:
        assert await client.declare_queue("jobs") == "jobs"
        for number in range(100):
            await client.publish("jobs", b"%d" % number)
        async with client.consume("jobs", prefetch=7) as deliveries:
            assert await bodies(deliveries, 100) == [b"%d" % number for number in range(100)]
        assert await client.delete_queue("jobs") == 0


async def test_many_tasks_publish_at_once_and_each_hears_of_its_own(server: Served) -> None:
    async with open_amqp(port=server.port) as client:
        await client.declare_queue("some")
        unroutable = 0

        async def publish(number: int) -> None:
            nonlocal unroutable
            try:
                await client.publish("nowhere" if number % 3 == 0 else "some", b"%d" % number)
            except Unroutable:
                assert number % 3 == 0
                unroutable += 1

        async with trio.open_nursery() as nursery:
            for number in range(300):
                nursery.start_soon(publish, number)
        assert unroutable == 100
        await client.publish("nowhere", b"nobody asks", mandatory=False)
        assert await client.delete_queue("some") == 200


async def test_what_is_not_acknowledged_goes_back_when_the_consumer_ends(server: Served) -> None:
    async with open_amqp(port=server.port) as client:
        await client.declare_queue("back")
        for body in (b"one", b"two", b"three"):
            await client.publish("back", body)
        async with client.consume("back", prefetch=1) as deliveries:
            first = await anext(deliveries)
            assert (first.body, first.redelivered) == (b"one", False)
            await first.nack()
            again = await anext(deliveries)
            assert (again.body, again.redelivered) == (b"one", True)
            await again.ack()
            assert (await anext(deliveries)).body == b"two"
        async with client.consume("back") as deliveries:
            assert await bodies(deliveries, 2) == [b"two", b"three"]
        await client.delete_queue("back")


async def test_large_bodies_and_properties_pass(server: Served) -> None:
    large = bytes(range(256)) * 12_000
    properties = commands.Basic.Properties(content_type="text/plain", headers={"n": 1}, message_id="x")
    async with open_amqp(port=server.port) as client:
        queue = await client.declare_queue(exclusive=True, durable=False)
        await client.declare_exchange("events", "topic")
        await client.bind(queue, "events", "a.#")
        await client.publish("a.b", large, exchange="events", properties=properties)
        await client.publish("a.c", b"", exchange="events")
        async with client.consume(queue) as deliveries:
            first, second = await anext(deliveries), await anext(deliveries)
        assert (first.body == large, first.exchange, first.key) == (True, "events", "a.b")
        assert (first.properties.headers, first.properties.message_id) == ({"n": 1}, "x")
        assert (second.body, second.properties.delivery_mode) == (b"", 2)


async def test_a_refusal_costs_its_channel_and_the_client_goes_on(server: Served) -> None:
    async with open_amqp(port=server.port) as client:
        with pytest.raises(NotThere):
            await client.publish("x", b"", exchange="no such exchange")
        with pytest.raises(NotThere):
            async with client.consume("no such queue"):
                raise AssertionError("there is none")
        queue = await client.declare_queue(exclusive=True, durable=False)
        with pytest.raises(Refused, match="PRECONDITION_FAILED"):
            await client.declare_queue(queue, exclusive=True, durable=True)
        await client.publish(queue, b"still here")
        assert await client.purge(queue) == 1


async def test_a_full_queue_takes_nothing(server: Served) -> None:
    async with open_amqp(port=server.port) as client:
        arguments = {"x-max-length": 1, "x-overflow": "reject-publish"}
        await client.declare_queue("full", arguments=arguments)
        await client.publish("full", b"one")
        with pytest.raises(NotTaken):
            await client.publish("full", b"two")
        assert await client.delete_queue("full") == 1


async def test_a_consumer_hears_that_its_queue_was_deleted(server: Served) -> None:
    async with open_amqp(port=server.port) as client:
        await client.declare_queue("doomed")
        async with client.consume("doomed") as deliveries:
            await client.delete_queue("doomed")
            with pytest.raises(NotThere, match="deleted"), trio.fail_after(PATIENCE_SECONDS):
                await anext(deliveries)


async def test_a_lost_connection_fails_all_that_waits() -> None:
    left, right = trio.testing.memory_stream_pair()
    client = Client(left, 4096)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(client._run)
        asked: list[type[Exception]] = []

        async def ask() -> None:
            with pytest.raises(Disconnected):
                await client.publish("x", b"")
            asked.append(Disconnected)

        nursery.start_soon(ask)
        nursery.start_soon(ask)
        await right.receive_some()
        await right.aclose()
    assert len(asked) == 2
    with pytest.raises(Disconnected):
        await client.declare_queue("too late")


async def test_nobody_there_and_somebody_else_are_told_apart() -> None:
    async with trio.open_nursery() as nursery:
        (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
        port = listener.socket.getsockname()[1]
        nursery.start_soon(trio.serve_listeners, trio.aclose_forcefully, [listener])
        with pytest.raises(Unreachable, match="no AMQP server answers"):
            async with open_amqp(port=port):
                raise AssertionError("it is none")
        nursery.cancel_scope.cancel()
    with pytest.raises(ConnectionRefusedError):
        async with open_amqp(port=port):
            raise AssertionError("it is gone")


async def test_a_wrong_password_is_refused(server: Served) -> None:
    with pytest.raises(Refused, match="ACCESS_REFUSED"):
        async with open_amqp(port=server.port, password="wrong"):
            raise AssertionError("it was let in")


def test_the_clients_port_is_that_of_dmps_other_client() -> None:
    assert amqp_client.PORT == client.PORT
