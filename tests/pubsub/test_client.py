"""The clients, against the server itself and against streams that break."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio
from trio.testing import lockstep_stream_pair, memory_stream_pair

from pubsub import client as clients
from pubsub import wire
from pubsub.admin import SessionInUse
from pubsub.client import Disconnected, Kind, Subscriber, open_publisher, open_subscriber
from pubsub.settings import PubsubSettings
from pubsub.wire import Command
from shared.client.dial import Address
from shared.client.trio_loop import trio_loop
from tests.pubsub.served import served
from tests.support.serving import Serving


async def published(server: Serving, *topics: str) -> None:
    """A STRING that is the topic itself, to each."""
    async with open_publisher(port=server.port) as publisher:
        await publisher.send_many(
            wire.datagram(topic.encode(), Kind.STRING, topic.encode()) for topic in topics
        )


async def test_a_session_is_forgotten_while_its_client_is_away_and_one_that_is_not_there_is_told_so() -> None:
    async with served() as server:
        sessions = server.service.objects[0]
        (forget,) = sessions.actions
        assert sessions.find(["A"]) is None
        async with open_subscriber("A", port=server.port) as subscriber:
            await subscriber.subscribe("hall")
            await server.until(subscriptions=1)
            with pytest.raises(SessionInUse, match="A is connected"):
                await forget.call(sessions.find(["A"]), {}, False)
        await server.until(connected=0)
        assert await forget.call(sessions.find(["A"]), {}, False) == {"deleted": 1, "subscriptions": 1}
        assert sessions.find(["A"]) is None


async def test_a_subscription_ends_and_the_others_stay() -> None:
    async with served() as server, open_subscriber("A", port=server.port) as subscriber:
        await subscriber.subscribe("a", "b")
        await server.until(subscriptions=2)
        await subscriber.unsubscribe("a")
        await server.until(subscriptions=1)
        await published(server, "a", "b")
        assert [each.topic for each in await subscriber.batch()] == [b"b"]
        assert server.value["messages_unmatched_total"] == 1


async def test_who_returns_is_subscribed_and_has_what_was_kept() -> None:
    async with served() as server:
        async with open_subscriber("A", port=server.port) as subscriber:
            await subscriber.subscribe("plain/*")
            await subscriber.subscribe("kept/*", keep=True)
            await server.until(subscriptions=2)
            await subscriber.disconnect()
            with pytest.raises(Disconnected, match="the server closed"):
                await anext(subscriber)
        await server.until(connected=0)
        await published(server, "plain/1", "kept/1", "kept/2")
        await server.until(messages_kept_total=2, messages_unmatched_total=1)
        async with open_subscriber("A", port=server.port) as subscriber:
            assert [(await anext(subscriber)).topic for _ in range(2)] == [b"kept/1", b"kept/2"]
            await published(server, "plain/2")
            assert (await anext(subscriber)).topic == b"plain/2"


async def test_a_subscriber_comes_back_by_itself_and_has_what_was_kept() -> None:
    async with served() as server, open_subscriber("A", port=server.port, retry_seconds=30) as subscriber:
        await subscriber.subscribe("plain/*")
        await subscriber.subscribe("kept/*", keep=True)
        await server.until(subscriptions=2)
        client = server.service.sessions.clients[b"A"]
        assert client.connection is not None
        client.connection.abort("test")
        await server.until(connected=0)
        await published(server, "kept/1")
        await server.until(messages_kept_total=1)
        assert (await anext(subscriber)).topic == b"kept/1"
        await published(server, "plain/1")
        assert (await anext(subscriber)).topic == b"plain/1"


async def test_an_id_that_is_connected_is_turned_away_and_the_first_stays() -> None:
    async with served() as server, open_subscriber("A", port=server.port) as first:
        await first.subscribe("*")
        await server.until(subscriptions=1)
        async with open_subscriber("A", port=server.port) as second:
            with pytest.raises(Disconnected):
                await second.batch()
        await published(server, "still")
        assert (await anext(first)).topic == b"still"
        assert server.value["faults_total{already_connected}"] == 1


@asynccontextmanager
async def attached(near: trio.abc.Stream) -> AsyncIterator[Subscriber]:
    """A subscriber whose server is a stream in memory."""
    async with trio_loop() as loop:
        subscriber = Subscriber(loop, Address("memory", 1, kind="test"))
        loop.attach(near, subscriber)
        yield subscriber


async def test_frames_are_found_however_they_are_cut() -> None:
    near, far = memory_stream_pair()
    frames = b"".join(wire.frame(b"1.2.3.4:5", b"%d" % number, Kind.STRING, b"") for number in range(5))
    async with attached(near) as subscriber:
        for at in range(0, len(frames), 700):
            await far.send_all(frames[at : at + 700])
            await trio.testing.wait_all_tasks_blocked()
        assert [(await anext(subscriber)).topic for _ in range(5)] == [b"0", b"1", b"2", b"3", b"4"]
        await far.send_all(frames[:1602])
        await far.aclose()
        with pytest.raises(Disconnected):
            await subscriber.batch()


async def test_a_command_whose_caller_is_cancelled_half_way_goes_out_whole(
    autojump_clock: trio.testing.MockClock,
) -> None:
    near, far = lockstep_stream_pair()
    async with attached(near) as subscriber:
        with trio.move_on_after(1) as scope:
            await subscriber.subscribe("a")  # nobody takes it
        assert scope.cancelled_caught
        sent = wire.encode_command(Command.SUBSCRIBE, b"a")
        assert await far.receive_some(2) + await far.receive_some(len(sent) - 2) == sent


async def test_what_is_wrong_is_said_before_anything_is_sent() -> None:
    near, _ = memory_stream_pair()
    async with attached(near) as subscriber:
        with pytest.raises(ValueError, match="at most 50 bytes"):
            await subscriber.subscribe("x" * 51)
    with pytest.raises(ValueError, match="1 to 10 printable"):
        async with open_subscriber("elevenchars", port=1):
            pass
    with pytest.raises(TypeError, match="text, not bytes"):
        async with open_subscriber(b"A", port=1):  # type: ignore[arg-type]
            pass
    async with open_publisher(port=1) as publisher:
        with pytest.raises(ValueError, match="a SHORT_REAL is"):
            await publisher.publish("t", Kind.SHORT_REAL, "655.36")


def test_the_clients_port_is_the_servers() -> None:
    assert PubsubSettings().port == clients.PORT
