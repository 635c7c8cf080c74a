"""The DMS client for blocking code: the methods of `dms.client`, without `await`.

    with connect() as client:
        client.produce("jobs", b"hello")
        with client.consume("jobs", prefetch=16) as messages:
            for message in messages:
                with message:  # acknowledged at the end of the block, given back where it fails
                    ...

A client is for one thread at a time. Between calls nothing is sent and nothing is read.
"""

from collections.abc import Mapping
from typing import Any, Self

from dms import client, consumer
from shared.client.blocking import Blocking, block, following, itself, method, opener


class Message(Blocking[consumer.Message]):
    """A delivered message; as `dms.client.Message`."""

    ack = method(consumer.Message.ack)
    nack = method(consumer.Message.nack)
    touch = method(consumer.Message.touch)

    @property
    def body(self) -> bytes:
        return self.core.body

    @property
    def about(self) -> Mapping[str, Any]:
        return self.core.about

    @property
    def id(self) -> int:
        return self.core.id

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.loop.run(self.core.__aexit__(*error))  # type: ignore[arg-type]


class Consumer(Blocking[consumer.Consumer]):
    """An iterator over a queue's messages; as `dms.client.Consumer`."""

    __iter__ = itself
    __next__ = following(consumer.Consumer.__anext__, Message)

    def receive(self) -> Message | None:
        """The next message; as `dms.client.Consumer.receive`."""
        message = self.loop.run(self.core.receive())
        return None if message is None else Message(message, self.loop)


class Client(Blocking[client.Client]):
    """A connection to a server; as `dms.client.Client`."""

    produce = method(client.Client.produce)
    produce_many = method(client.Client.produce_many)
    consume = block(client.Client.consume, Consumer)
    create = method(client.Client.create)
    delete = method(client.Client.delete)
    queues = method(client.Client.queues)
    cancel = method(client.Client.cancel)
    reschedule = method(client.Client.reschedule)
    job = method(client.Client.job)


connect = opener(client.connect, Client)
