"""Pub/sub's client for blocking code: the methods of `pubsub.client`, without `await`.

with connect() as publisher, publisher.subscribe("A", "hall/+/temperature") as messages:
    publisher.publish("hall/3/temperature", Kind.FLOAT, "21.50")
    print(next(messages).value)
"""

from pubsub import client
from shared.client.blocking import Blocking, as_it_is, block, following, itself, method, opener


class Subscriber(Blocking[client.Subscriber]):
    """An iterator over messages; as `pubsub.client.Subscriber`."""

    subscribe = method(client.Subscriber.subscribe)
    unsubscribe = method(client.Subscriber.unsubscribe)
    disconnect = method(client.Subscriber.disconnect)
    batch = method(client.Subscriber.batch)

    __iter__ = itself
    __next__ = following(client.Subscriber.__anext__, as_it_is)


class Publisher(Blocking[client.Publisher]):
    """Sends messages, as datagrams; as `pubsub.client.Publisher`."""

    publish = method(client.Publisher.publish)
    send = method(client.Publisher.send)
    send_many = method(client.Publisher.send_many)
    subscribe = block(client.Publisher.subscribe, Subscriber)


connect = opener(client.connect, Publisher)
