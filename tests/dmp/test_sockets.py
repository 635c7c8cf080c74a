"""Both protocols on one port, over real sockets, plain and TLS: clients, and a reader that goes away."""

import ssl
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import trio
import trustme

from dmp import client, wire
from dmp.amqp_client import opened
from dmp.client import Principal
from dmp.data_types import short, take_short
from dmp.settings import DmpSettings
from shared.client.dial import Address
from shared.client.trio_loop import open_stream, trio_loop
from shared.net.settings import TlsSettings
from shared.net.tls import client_context
from tests.dmp.served import Served, served

PATIENCE_SECONDS = 60.0
SIZE = 2000


@pytest.fixture(scope="module", params=["plain", "TLS"])
def context(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> ssl.SSLContext | None:
    """What a client needs; None: no TLS."""
    if request.param == "plain":
        return None
    authority = trustme.CA()
    certificate = authority.issue_cert("localhost")
    certificate.private_key_and_cert_chain_pem.write_to_path(_pem(tmp_path_factory.getbasetemp()))
    context = client_context()
    authority.configure_trust(context)
    return context


@pytest.fixture(scope="module")
def server(context: ssl.SSLContext | None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    tls = None if context is None else TlsSettings(certificate=_pem(tmp_path_factory.getbasetemp()))
    settings = DmpSettings(feed_bytes_max=256 << 10)
    with served(tmp_path_factory.mktemp("dmp"), settings, tls=tls) as server:
        yield server


def _pem(folder: Path) -> Path:
    return folder / "dmp-server.pem"


async def open_leased(address: Address, lease: bytes) -> tuple[trio.abc.Stream, bytes]:
    """A DMP connection by that lease, and what has come behind its answer."""
    stream, data = await open_stream(address), b""
    await stream.send_all(wire.DMP_HEADER + short(lease))
    for _ in ("the greeting", "the answer to the lease"):
        while (text := take_short(data)) is None:
            data += await stream.receive_some(1 << 16)
        assert wire.read_reply(text)[0] == wire.Reply.OK
        data = data[1 + len(text) :]
    return stream, data


class Reader:
    """A feed's connection, read as far as asked."""

    def __init__(self, stream: trio.abc.Stream, data: bytes) -> None:
        self._stream = stream
        self._data = data
        self.bodies: list[bytes] = []

    @classmethod
    async def open(cls, address: Address, lease: bytes) -> "Reader":
        return cls(*await open_leased(address, lease))

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


async def test_a_reader_that_goes_away_loses_what_was_on_its_way_and_nothing_else(
    server: Served, context: ssl.SSLContext | None
) -> None:
    """Some is in the sockets' buffers, some in the outbox, most in the queue: the rest comes in order."""
    count = 20_000 if context is None else 5_000
    address = Address("127.0.0.1", server.port, context, "localhost", kind="DMP")
    names = [b"%05d" % number + bytes(SIZE) for number in range(count)]
    with trio.fail_after(PATIENCE_SECONDS):
        async with trio_loop() as loop, opened(loop, address, Principal) as principal:
            name = await principal.declare_queue("left", durable=False, exclusive=True)
            first = await Reader.open(address, await principal.feed_lease(name))
            sink, _ = await open_leased(address, await principal.sink_lease(""))
            await sink.send_all(b"".join(wire.message(wire.Message(b"", b"left", each)) for each in names))
            begun = await first.read(lambda bodies: len(bodies) >= 100)
            queue = server.broker.queues[b"left"]
            while not queue.row.ready:  # noqa: ASYNC110 - the server is in another thread
                await trio.sleep(0.001)
            await first.leave()
            while queue.feed_lease is not None:  # noqa: ASYNC110
                await trio.sleep(0.001)
            second = await Reader.open(address, await principal.feed_lease(name))
            await sink.send_all(wire.message(wire.Message(b"", b"left", b"last")))
            rest = await second.read(lambda bodies: bodies[-1:] == [b"last"])
            await second.leave()
            await sink.aclose()
    gone = count + 1 - len(rest)
    assert begun == names[: len(begun)]
    assert len(begun) <= gone < count
    assert rest[:-1] == names[gone:]
    assert not queue.row.ready


async def test_a_feed_gets_what_a_sink_is_sent(server: Served, context: ssl.SSLContext | None) -> None:
    bodies = [b"%05d" % number + bytes(SIZE) for number in range(5_000)]
    with trio.fail_after(PATIENCE_SECONDS):
        async with (
            client.open_feed(
                [("amq.topic", "a.#")], port=server.port, ssl_context=context, server_hostname="localhost"
            ) as feed,
            trio.open_nursery() as nursery,
        ):

            async def send() -> None:
                async with client.open_sink(
                    "amq.topic", port=server.port, ssl_context=context, server_hostname="localhost"
                ) as sink:
                    await sink.send_many(("a.b", body) for body in bodies)

            nursery.start_soon(send)
            got = [(await anext(feed)).body for _ in bodies]
    assert got == bodies
