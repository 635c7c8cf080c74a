"""The clients of pub/sub and KqueueMsgQ on trio, on asyncio and blocking: each promise on all three.

Their subscriptions are not answered, so a test waits for the server's count of them.
"""

import threading
from collections.abc import Callable

import pytest

from brokers import sync
from pubsub.client import Kind
from shared.client.dial import Disconnected, Unreachable
from tests.support.cutting_proxy import CuttingProxy
from tests.support.ends import Connect, End
from tests.support.server import Server, counter, until

Url = Callable[[str], str]
ProxyTo = Callable[[str], CuttingProxy]


@pytest.fixture
def subscribed(clients_server: Server) -> Callable[[str, int], None]:
    """Waits until a protocol has so many subscriptions."""
    return lambda protocol, count: until(
        lambda: counter(clients_server.data, f"{protocol}_subscriptions ") == count
    )


Subscribed = Callable[[str, int], None]


def test_a_value_reaches_who_listens(end: End, url: Url, subscribed: Subscribed) -> None:
    async def program(connect: Connect) -> None:
        async with (
            connect(url("pubsub")) as client,
            client.subscribe(end.name, f"{end.name}/+/temperature") as messages,
        ):
            subscribed("pubsub", 1)
            await client.publish(f"{end.name}/hall/door", Kind.STRING, "not for us")
            await client.publish(f"{end.name}/hall/temperature", Kind.FLOAT, "21.50")
            message = await anext(messages)
            assert (message.topic.decode(), message.value) == (f"{end.name}/hall/temperature", b"21.50")
            await messages.unsubscribe(f"{end.name}/+/temperature")
            subscribed("pubsub", 0)

    end.run(program)


def test_every_consumer_has_every_message(end: End, url: Url, subscribed: Subscribed) -> None:
    bodies = [b"%d" % number * (number % 50) for number in range(2000)]

    async def program(connect: Connect) -> None:
        async with (
            connect(url("kqmsgq")) as client,
            client.consume(end.name) as some,
            client.consume() as everything,
        ):
            subscribed("kqmsgq", 2)
            await client.send("other", b"first")
            await client.send_many([(end.name, body) for body in bodies])
            assert [(await anext(some)).body for _ in bodies] == bodies
            assert [(await anext(everything)).body for _ in range(2001)] == [b"first", *bodies]
        subscribed("kqmsgq", 0)

    end.run(program)


def keep_sending(url: str, stop: threading.Event) -> None:
    with sync.connect(url) as producer:
        while not stop.wait(0.01):
            producer.send("again", b"hello")


def test_who_pushes_is_asked_again_over_a_new_connection(end: End, proxy_to: ProxyTo, url: Url) -> None:
    proxy, stop, bodies = proxy_to("kqmsgq"), threading.Event(), []
    sending = threading.Thread(target=keep_sending, args=(url("kqmsgq"), stop))

    async def program(connect: Connect) -> None:
        to_proxy = f"kqmsgq://127.0.0.1:{proxy.port}?retry-seconds=20"
        async with connect(to_proxy) as client, client.consume("again") as messages:
            bodies.append((await anext(messages)).body)
            proxy.cut()
            while proxy.connections < 3:
                bodies.append((await anext(messages)).body)
            bodies.append((await anext(messages)).body)

    sending.start()
    try:
        with pytest.raises(Disconnected):  # what the lost producer had sent may not have been read
            end.run(program)
    finally:
        stop.set()
        sending.join()
    assert set(bodies) == {b"hello"}
    assert len(bodies) >= 2


def test_a_lost_connection_is_an_error_unless_the_url_says_otherwise(end: End, proxy_to: ProxyTo) -> None:
    proxy = proxy_to("pubsub")

    async def program(connect: Connect) -> None:
        async with (
            connect(f"pubsub://127.0.0.1:{proxy.port}") as client,
            client.subscribe(f"x{end.name}", "a") as messages,
        ):
            until(lambda: proxy.connections)  # nothing answers a subscription
            proxy.cut()
            with pytest.raises(Disconnected) as caught:
                await anext(messages)
            assert not isinstance(caught.value, Unreachable)

    end.run(program)
