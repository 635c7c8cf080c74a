"""The clients, against the server itself and against streams that break."""

import socket
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import pytest
import trio
import trustme
from trio.testing import lockstep_stream_pair, memory_stream_pair

from pubsub import client as clients
from pubsub import wire
from pubsub.admin import SessionInUse
from pubsub.client import Disconnected, Kind, Subscriber, open_datagrams, open_publisher, open_subscriber
from pubsub.settings import PubsubSettings
from pubsub.wire import Command
from shared.client.dial import Address
from shared.client.trio_loop import trio_loop
from shared.net.settings import TlsSettings
from shared.net.tls import client_context
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


async def test_a_message_reaches_a_subscriber_with_its_value_and_its_senders_address() -> None:
    async with served() as server, open_subscriber("A", port=server.port) as subscriber:
        await subscriber.subscribe("hall/+/temperature", b"hall/3/\xff")
        await server.until(subscriptions=2)
        async with trio_loop() as loop:
            with socket.socket(type=socket.SOCK_DGRAM) as free:
                free.bind(("127.0.0.1", 0))
                ours = free.getsockname()
            publisher = await open_datagrams(loop, "127.0.0.1", server.port, ours)
            await publisher.publish("hall/3/temperature", Kind.FLOAT, "21.50")
            await publisher.publish("hall/3/door", Kind.STRING, "not for us")
            await publisher.publish(b"hall/3/\xff", Kind.INT, "-7")
            publisher.close()
            sender = "{}:{}".format(*ours)
        found = [await anext(subscriber), await anext(subscriber)]
    assert [(each.sender, each.topic, each.kind, each.value) for each in found] == [
        (sender, b"hall/3/temperature", Kind.FLOAT, b"21.50"),
        (sender, b"hall/3/\xff", Kind.INT, b"-7"),
    ]


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


async def test_a_subscriber_over_tls_and_what_is_kept_for_it(tmp_path: Path) -> None:
    authority = trustme.CA()
    authority.issue_cert("localhost").private_key_and_cert_chain_pem.write_to_path(tmp_path / "server.pem")
    context = client_context()
    authority.configure_trust(context)
    topics = [f"t/{number}" for number in range(200)]
    async with served(tls=TlsSettings(certificate=tmp_path / "server.pem")) as server:

        def subscriber() -> AbstractAsyncContextManager[Subscriber]:
            return open_subscriber("A", port=server.port, ssl_context=context, server_hostname="localhost")

        async with subscriber() as first:
            await first.subscribe("*", keep=True)
            await server.until(subscriptions=1)
            await published(server, *topics)
            assert [(await anext(first)).topic.decode() for _ in topics] == topics
        await server.until(connected=0)
        await published(server, *topics)
        await server.until(messages_kept_total=200)
        async with subscriber() as again:
            assert [(await anext(again)).topic.decode() for _ in topics] == topics
        await server.until(connected=0, kept_bytes=0)


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
