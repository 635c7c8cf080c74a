"""Feeds over real sockets: what a reader that goes away leaves behind, and who comes after it."""

from collections.abc import Callable, Iterator

import pytest
import trio

from dmp import client, wire
from dmp.principal import open_principal
from dmp.settings import DmpSettings
from shared.client.dial import Address
from tests.dmp.served import Served, served

PATIENCE_SECONDS = 60.0
COUNT, SIZE = 20_000, 2000


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with served(tmp_path_factory.mktemp("dmp"), DmpSettings(feed_bytes_max=1 << 20)) as server:
        yield server


class Reader:
    """A feed's connection, read as far as asked."""

    def __init__(self, stream: trio.abc.Stream, data: bytes) -> None:
        self._stream = stream
        self._data = data
        self.bodies: list[bytes] = []

    @classmethod
    async def open(cls, address: Address, lease: bytes) -> "Reader":
        return cls(*await client.open_leased(address, lease))

    async def read(self, enough: Callable[[list[bytes]], bool]) -> list[bytes]:
        while True:
            messages, end = wire.take_messages(self._data)
            self.bodies += [message.body for message in messages]
            self._data = self._data[end:]
            if enough(self.bodies):
                return self.bodies
            self._data += await self._stream.receive_some(1 << 16)

    async def leave(self) -> None:
        await trio.aclose_forcefully(self._stream)


async def test_a_reader_that_goes_away_loses_what_was_on_its_way_and_nothing_else(server: Served) -> None:
    """Some is in the sockets' buffers, some in the outbox, most in the queue: the rest comes in order."""
    address = Address("127.0.0.1", server.port, kind="DMP")
    names = [b"%05d" % number + bytes(SIZE) for number in range(COUNT)]
    with trio.fail_after(PATIENCE_SECONDS):
        async with open_principal(address, "guest", "guest") as principal:
            name = await principal.declare_queue("left")
            await principal.bind(name, "amq.fanout", "")
            first = await Reader.open(address, await principal.feed_lease(name))
            async with client.open_sink("amq.fanout", port=server.port) as sink:
                await sink.send_many(("k", each) for each in names)
            begun = await first.read(lambda bodies: len(bodies) >= 100)
            assert begun == names[: len(begun)]
            queue = server.broker.queues[b"left"]
            assert queue.ready, "not everything fits on the way"
            await first.leave()
            while queue.feed_lease is not None:  # noqa: ASYNC110 - the server is in another thread
                await trio.sleep(0.001)
            second = await Reader.open(address, await principal.feed_lease(name))
            async with client.open_sink("amq.fanout", port=server.port) as sink:
                await sink.send("k", b"last")
            rest = await second.read(lambda bodies: bodies[-1:] == [b"last"])
            await second.leave()
    gone = COUNT + 1 - len(rest)
    assert len(begun) <= gone < COUNT
    assert rest[:-1] == names[gone:]
    assert not queue.ready


async def test_a_principal_goes_and_its_connections_keep_the_queue(server: Served) -> None:
    address = Address("127.0.0.1", server.port, kind="DMP")
    with trio.fail_after(PATIENCE_SECONDS):
        async with open_principal(address, "guest", "guest") as principal:
            name = await principal.declare_queue("outlives")
            feed = await Reader.open(address, await principal.feed_lease(name))
            sink, _ = await client.open_leased(address, await principal.sink_lease(""))
        await sink.send_all(wire.message(wire.Message(b"", b"outlives", b"x")))
        assert await feed.read(bool) == [b"x"]
        await sink.aclose()
        await feed.leave()
        while b"outlives" in server.broker.queues:  # noqa: ASYNC110
            await trio.sleep(0.001)
