"""The LogMQ client for blocking code: the methods of `logmq.client`, without `await`.

    with connect() as client:
        offset = client.produce("orders", b"hello")
        for record in client.records("orders", offset):
            ...

A client is for one thread at a time. Between calls nothing is sent and nothing is read: what a `producer`
gathers goes out with its next `send`, and at the end of its block at the latest.
"""

from logmq import client
from shared.client.blocking import Blocking, as_it_is, block, following, itself, method, opener


class Records(Blocking[client.Records]):
    """An iterator over records; as `logmq.client.Records`."""

    chunk = method(client.Records.chunk)

    __iter__ = itself
    __next__ = following(client.Records.__anext__, as_it_is)

    @property
    def offset(self) -> int:
        return self.core.offset


class Tail(Blocking[client.Tail]):
    """An iterator over records as they are written; as `logmq.client.Tail`."""

    __iter__ = itself
    __next__ = following(client.Tail.__anext__, as_it_is)

    @property
    def offset(self) -> int:
        return self.core.offset


class GroupReader(Blocking[client.GroupReader]):
    """An iterator over what a group has not read; as `logmq.client.GroupReader`."""

    commit = method(client.GroupReader.commit)

    __iter__ = itself
    __next__ = following(client.GroupReader.__anext__, as_it_is)


class Producer(Blocking[client.Producer]):
    """Writes to one topic, each made once; as `logmq.client.Producer`."""

    send = method(client.Producer.send)
    flush = method(client.Producer.flush)

    @property
    def written(self) -> int:
        return self.core.written


class Client(Blocking[client.Client]):
    """A connection to a server; as `logmq.client.Client`."""

    produce = method(client.Client.produce)
    produce_many = method(client.Client.produce_many)
    append = method(client.Client.append)
    batch = method(client.Client.batch)
    producer = block(client.Client.producer, Producer)
    consume = method(client.Client.consume)
    fetch = method(client.Client.fetch)
    tail = block(client.Client.tail, Tail)
    read = block(client.Client.read, GroupReader)
    offsets = method(client.Client.offsets)
    seek = method(client.Client.seek)
    marks = method(client.Client.marks)
    topics = method(client.Client.topics)
    commit = method(client.Client.commit)
    committed = method(client.Client.committed)
    delete = method(client.Client.delete)
    ping = method(client.Client.ping)

    def records(
        self,
        topic: str,
        offset: int = 0,
        *,
        follow: bool = False,
        bytes_max: int = client.FETCH_BYTES,
    ) -> Records:
        """An iterator over records from `offset` on; as `logmq.client.Client.records`."""
        records = self.core.records(topic, offset, follow=follow, bytes_max=bytes_max)
        return Records(records, self.loop)


connect = opener(client.connect, Client)
