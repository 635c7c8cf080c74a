"""The AMQP client against a real server: confirms, acknowledgements, refusals, ends."""

import pytest
import trio
import trio.testing
from pamqp import commands

from dmp import amqp_client
from dmp.amqp_client import Deliveries, Disconnected, Refused, Unroutable, open_amqp
from dmp.principal import NotThere
from tests.dmp.served import Served

PATIENCE_SECONDS = 60.0


async def bodies(deliveries: Deliveries, count: int) -> list[bytes]:
    found = []
    with trio.fail_after(PATIENCE_SECONDS):
        while len(found) < count:
            delivery = await anext(deliveries)
            found.append(delivery.body)
            await delivery.ack()
    return found


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


async def test_a_consumer_has_arguments_and_those_that_nobody_knows_are_refused(server: Served) -> None:
    async with open_amqp(port=server.port) as client:
        await client.declare_queue("ranked")
        async with (
            client.consume("ranked"),
            client.consume("ranked", arguments={"x-priority": 5}) as first,
        ):
            await client.publish("ranked", b"to the first in rank")
            assert await bodies(first, 1) == [b"to the first in rank"]
        with pytest.raises(Refused, match="x-rank"):
            async with client.consume("ranked", arguments={"x-rank": 5}):
                pass
        await client.delete_queue("ranked")


async def test_a_message_that_need_not_arrive_is_not_taken_for_its_twin_that_came_back(
    server: Served,
) -> None:
    heard: dict[bool, set[str]] = {False: set(), True: set()}
    async with open_amqp(port=server.port) as client, trio.open_nursery() as nursery:

        async def publish(mandatory: bool) -> None:
            try:
                await client.publish("nowhere", b"twin", mandatory=mandatory)
                heard[mandatory].add("taken")
            except Unroutable:
                heard[mandatory].add("unroutable")

        await client.publish("nowhere", b"first", mandatory=False)
        for number in range(40):
            nursery.start_soon(publish, number == 0)
    assert heard == {False: {"taken"}, True: {"unroutable"}}


async def test_what_cannot_be_sent_shifts_nobodys_answer(server: Served) -> None:
    odd: dict[str, object] = {"odd": object()}
    async with open_amqp(port=server.port) as client:
        with trio.fail_after(PATIENCE_SECONDS):
            await client.declare_queue("even")
            with pytest.raises(TypeError):
                await client.declare_queue("odd", arguments=odd)
            with pytest.raises(TypeError):
                await client.publish("even", b"", properties=commands.Basic.Properties(headers=odd))
            await client.publish("even", b"one")
            assert await client.purge("even") == 1
            assert await client.delete_queue("even") == 0


async def test_several_tasks_share_what_is_delivered(server: Served) -> None:
    found: list[bytes] = []
    async with open_amqp(port=server.port) as client:
        queue = await client.declare_queue(exclusive=True, durable=False)
        async with client.consume(queue) as deliveries:

            async def take() -> None:
                found.extend(await bodies(deliveries, 2))

            async with trio.open_nursery() as nursery:
                for _ in range(3):
                    nursery.start_soon(take)
                await trio.testing.wait_all_tasks_blocked()
                for number in range(6):
                    await client.publish(queue, b"%d" % number)
    assert sorted(found) == [b"%d" % number for number in range(6)]


@pytest.mark.parametrize("name", ["jobs*", "[1", "k=v", "caf\u00e9 \u2615"])
async def test_queues_and_exchanges_have_any_name(server: Served, name: str) -> None:
    async with open_amqp(port=server.port) as client:
        assert await client.declare_queue(name) == name
        for exchange in (name, "other"):
            await client.declare_exchange(exchange)
        await client.bind(name, name, "x")
        await client.bind_exchange("other", name, "x")
        await client.publish("x", b"here", exchange=name)
        async with client.consume(name) as deliveries:
            assert await bodies(deliveries, 1) == [b"here"]
        assert await client.purge(name) == 0
        await client.unbind(name, name, "x")
        await client.unbind_exchange("other", name, "x")
        for exchange in (name, "other"):
            await client.delete_exchange(exchange)
        assert await client.delete_queue(name) == 0


async def test_a_delivery_outlives_its_consumer_without_harm(server: Served) -> None:
    async with open_amqp(port=server.port) as client:
        queue = await client.declare_queue(exclusive=True, durable=False)
        await client.publish(queue, b"late")
        async with client.consume(queue) as deliveries:
            delivery = await anext(deliveries)
        for late in (delivery.ack, delivery.nack, deliveries.__anext__):
            with pytest.raises(Disconnected, match="gone back"), trio.fail_after(PATIENCE_SECONDS):
                await late()
        async with client.consume(queue) as deliveries:
            assert await bodies(deliveries, 1) == [b"late"]


async def test_a_consumer_that_is_given_up_while_it_begins_leaves_no_channel(
    server: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(amqp_client, "CHANNELS_MAX", 2)
    async with open_amqp(port=server.port) as client:
        queue = await client.declare_queue(exclusive=True, durable=False)
        for _ in range(3):
            with trio.move_on_after(0):
                async with client.consume(queue):
                    raise AssertionError("it waits for an answer first")
            await client.purge(queue)  # the end of the channel is answered before
        async with client.consume(queue) as deliveries:
            await client.publish(queue, b"here")
            assert await bodies(deliveries, 1) == [b"here"]
        for prefetch in (0, 65536):
            with pytest.raises(ValueError, match="from 1 to 65535"):
                async with client.consume(queue, prefetch=prefetch):
                    raise AssertionError("it has no bound")


async def test_a_consumer_hears_that_its_queue_was_deleted(server: Served) -> None:
    async with open_amqp(port=server.port) as client:
        await client.declare_queue("doomed")
        async with client.consume("doomed") as deliveries:
            await client.delete_queue("doomed")
            with pytest.raises(NotThere, match="deleted"), trio.fail_after(PATIENCE_SECONDS):
                await anext(deliveries)
