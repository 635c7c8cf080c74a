"""KqueueMsgQ's client for blocking code: the methods of `kqmsgq.client`, without `await`.

with connect() as producer, producer.consume("orders") as messages:
    producer.send("orders", b"hello")
    print(next(messages).body)
"""

from kqmsgq import client
from shared.client.blocking import Blocking, as_it_is, block, following, itself, method, opener


class Consumer(Blocking[client.Consumer]):
    """An iterator over messages; as `kqmsgq.client.Consumer`."""

    subscribe = method(client.Consumer.subscribe)
    subscribe_all = method(client.Consumer.subscribe_all)
    unsubscribe = method(client.Consumer.unsubscribe)
    unsubscribe_all = method(client.Consumer.unsubscribe_all)
    batch = method(client.Consumer.batch)

    __iter__ = itself
    __next__ = following(client.Consumer.__anext__, as_it_is)


class Producer(Blocking[client.Producer]):
    """The sending side; as `kqmsgq.client.Producer`."""

    send = method(client.Producer.send)
    send_many = method(client.Producer.send_many)
    consume = block(client.Producer.consume, Consumer)


connect = opener(client.connect, Producer)
