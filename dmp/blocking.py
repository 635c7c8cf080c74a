"""DMP's and AMQP's client for blocking code: the methods of `dmp.client`, without `await`."""

from collections.abc import Sequence

from dmp import amqp_client, client
from shared.client.blocking import Blocking, as_it_is, block, following, itself, method, opener


class Delivery(Blocking[amqp_client.Delivery]):
    """A message to acknowledge; as `dmp.amqp_client.Delivery`."""

    ack = method(amqp_client.Delivery.ack)
    nack = method(amqp_client.Delivery.nack)

    @property
    def body(self) -> bytes:
        return self.core.body

    @property
    def exchange(self) -> str:
        return self.core.exchange

    @property
    def key(self) -> str:
        return self.core.key

    @property
    def redelivered(self) -> bool:
        return self.core.redelivered

    @property
    def properties(self) -> amqp_client.Properties:
        return self.core.properties


class Deliveries(Blocking[amqp_client.Deliveries]):
    """An iterator over what a queue delivers; as `dmp.amqp_client.Deliveries`."""

    __iter__ = itself
    __next__ = following(amqp_client.Deliveries.__anext__, Delivery)


class Sink(Blocking[client.Sink]):
    """The writing side; as `dmp.client.Sink`."""

    send = method(client.Sink.send)
    send_many = method(client.Sink.send_many)
    finish = method(client.Sink.finish)

    @property
    def returned(self) -> Sequence[amqp_client.Returned]:
        return self.core.returned


class Feed(Blocking[client.Feed]):
    """An iterator over messages; as `dmp.client.Feed`."""

    batch = method(client.Feed.batch)

    @property
    def queue(self) -> str:
        return self.core.queue

    __iter__ = itself
    __next__ = following(client.Feed.__anext__, as_it_is)


class Client(Blocking[client.Client]):
    """A connection that is logged in; as `dmp.client.Client`."""

    declare_queue = method(client.Client.declare_queue)
    depth = method(client.Client.depth)
    declare_exchange = method(client.Client.declare_exchange)
    bind = method(client.Client.bind)
    unbind = method(client.Client.unbind)
    bind_exchange = method(client.Client.bind_exchange)
    unbind_exchange = method(client.Client.unbind_exchange)
    purge = method(client.Client.purge)
    delete_queue = method(client.Client.delete_queue)
    delete_exchange = method(client.Client.delete_exchange)
    publish = method(client.Client.publish)
    publish_many = method(client.Client.publish_many)
    consume = block(client.Client.consume, Deliveries)
    sink = block(client.Client.sink, Sink)
    feed = block(client.Client.feed, Feed)


connect = opener(client.connect, Client)
