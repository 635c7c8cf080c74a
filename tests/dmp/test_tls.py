"""Both protocols over TLS, on the one port: a principal, its sinks and feeds, and an ordinary client."""

import ssl
from collections.abc import Iterator
from pathlib import Path

import pika
import pytest
import trio
import trustme

from dmp import client, wire
from dmp.principal import open_principal
from dmp.settings import DmpSettings
from shared.client.dial import Address
from shared.net.settings import TlsSettings
from shared.net.tls import client_context
from tests.dmp.served import Served, served
from tests.dmp.test_feeds_served import Reader

PATIENCE_SECONDS = 60.0
COUNT, SIZE = 5_000, 2000


@pytest.fixture(scope="module")
def context(tmp_path_factory: pytest.TempPathFactory) -> ssl.SSLContext:
    authority = trustme.CA()
    certificate = authority.issue_cert("localhost")
    certificate.private_key_and_cert_chain_pem.write_to_path(_pem(tmp_path_factory.getbasetemp()))
    context = client_context()
    authority.configure_trust(context)
    return context


@pytest.fixture(scope="module")
def server(context: ssl.SSLContext, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    tls = TlsSettings(certificate=_pem(tmp_path_factory.getbasetemp()))
    settings = DmpSettings(feed_bytes_max=256 << 10)
    with served(tmp_path_factory.mktemp("dmp"), settings, tls=tls) as server:
        yield server


def _pem(folder: Path) -> Path:
    return folder / "dmp-server.pem"


async def test_a_feed_gets_what_a_sink_is_sent(server: Served, context: ssl.SSLContext) -> None:
    bodies = [b"%05d" % number + bytes(SIZE) for number in range(COUNT)]
    with trio.fail_after(PATIENCE_SECONDS):
        async with (
            client.open_feed(
                [("amq.topic", "a.#")],
                port=server.port,
                ssl_context=context,
                server_hostname="localhost",
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


async def test_what_a_reader_had_no_room_for_comes_to_the_next_once_and_in_order(
    server: Served, context: ssl.SSLContext
) -> None:
    """What was on its way is gone; behind it nothing is missing, and nothing comes twice."""
    address = Address("127.0.0.1", server.port, context, "localhost", kind="DMP")
    names = [b"%05d" % number + bytes(SIZE) for number in range(COUNT)]
    with trio.fail_after(PATIENCE_SECONDS):
        async with open_principal(address, "guest", "guest") as principal:
            name = await principal.declare_queue("left")
            first = await Reader.open(address, await principal.feed_lease(name))
            sink, _ = await client.open_leased(address, await principal.sink_lease(""))
            await sink.send_all(b"".join(wire.message(wire.Message(b"", b"left", each)) for each in names))
            begun = await first.read(lambda bodies: len(bodies) >= 100)
            while not server.broker.queues[b"left"].ready:  # noqa: ASYNC110 - the server is in another thread
                await trio.sleep(0.001)
            await first.leave()
            while server.broker.queues[b"left"].feed_lease is not None:  # noqa: ASYNC110
                await trio.sleep(0.001)
            second = await Reader.open(address, await principal.feed_lease(name))
            await sink.send_all(wire.message(wire.Message(b"", b"left", b"last")))
            rest = await second.read(lambda bodies: bodies[-1:] == [b"last"])
            await second.leave()
            await sink.aclose()
    gone = COUNT + 1 - len(rest)
    assert begun == names[: len(begun)]
    assert len(begun) <= gone < COUNT
    assert rest[:-1] == names[gone:]


def test_an_ordinary_client_speaks_amqp(server: Served, context: ssl.SSLContext) -> None:
    options = pika.SSLOptions(context, "localhost")
    parameters = pika.ConnectionParameters("127.0.0.1", server.port, ssl_options=options, heartbeat=0)
    connection = pika.BlockingConnection(parameters)
    channel = connection.channel()
    channel.confirm_delivery()
    name = channel.queue_declare("", exclusive=True).method.queue
    body = bytes(range(256)) * 4096
    channel.basic_publish("", name, body)
    assert channel.basic_get(name, auto_ack=True)[2] == body
    connection.close()
