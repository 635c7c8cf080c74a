"""The client: pipelined, bounded, and exactly once where it says so."""

import ssl
from functools import partial
from pathlib import Path

import pytest
import trio
import trio.testing
import trustme

from logmq import client as client_module
from logmq.client import Client, LogmqError, Unreachable, connect
from logmq.replay import target
from shared.net.settings import NetSettings, TlsSettings
from shared.replaying import PastMessage, TargetAddress
from tests.logmq.served import served


async def test_a_producer_is_bounded(tmp_path: Path) -> None:
    async with served(tmp_path) as server, connect(port=server.port) as client:
        sent = 0
        async with client.producer("t") as producer:
            with trio.move_on_after(0) as scope:
                while True:
                    await producer.send(b"x" * 100_000)
                    sent += 1
            assert scope.cancelled_caught
            assert 32 * 2 <= sent <= 40 * 3
        assert producer.written == sent


async def send_for_ever(client: Client, message: bytes) -> None:
    async with client.producer("t") as producer:
        while True:
            await producer.send(message)
            await client.ping()


@pytest.mark.parametrize("message", [b"GET / HTTP/1.1", b"HTTP/1.0", b"x HTTP/2  "])
async def test_a_first_message_that_ends_as_http_does_is_a_message(tmp_path: Path, message: bytes) -> None:
    async with served(tmp_path) as server, connect(port=server.port) as client:
        assert await client.produce("t", message) == 0
        assert await client.produce("t", message) == 4 + len(message)


async def test_a_producers_refusal_comes_out_amid_its_block(tmp_path: Path) -> None:
    async with served(tmp_path) as server, connect(port=server.port) as client:
        with pytest.raises(LogmqError, match="TOO_LARGE"):
            await send_for_ever(client, b"x" * 2_000_000)


async def test_a_client_speaks_tls_and_checks_the_server_s_name(tmp_path: Path) -> None:
    authority = trustme.CA()
    leaf = authority.issue_cert("localhost")
    certificate, key = tmp_path / "server.pem", tmp_path / "server.key"
    leaf.cert_chain_pems[0].write_to_path(certificate)
    leaf.private_key_pem.write_to_path(key)
    context = ssl.create_default_context()
    authority.configure_trust(context)
    tls = TlsSettings(certificate=certificate, key=key)
    async with served(tmp_path / "data", tls=tls) as server:
        async with connect(port=server.port, ssl_context=context, server_hostname="localhost") as client:
            assert await client.produce("t", b"one") == 0
            async with client.tail("t") as tail:
                assert (await anext(tail)).payload == b"one"
        with pytest.raises(ssl.SSLError):
            async with connect(port=server.port, ssl_context=context, server_hostname="elsewhere"):
                raise AssertionError("trusted the wrong name")


@pytest.mark.parametrize(
    ("said", "why"),
    [
        (b"PONG\n", None),
        (b"ERR UNKNOWN_COMMAND no such request\n", None),
        (b"", "says nothing in 0.05 s"),
        (b"HTTP/1.1 400 Bad Request\r\n", "not LogMQ's"),
        (None, "closed the connection"),
    ],
)
async def test_who_is_there_can_be_asked_whether_he_is_a_server(
    said: bytes | None, why: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    if said == b"":
        monkeypatch.setattr(client_module, "FIRST_ANSWER_SECONDS", 0.05)

    async def answers(stream: trio.SocketStream) -> None:
        assert await stream.receive_some() == b"PING\n"
        if said is not None:
            await stream.send_all(said)
            await stream.receive_some()

    async with trio.open_nursery() as nursery:
        (listener,) = await nursery.start(partial(trio.serve_tcp, answers, 0, host="127.0.0.1"))
        async with connect(port=listener.socket.getsockname()[1]) as client:
            if why is None:
                await client.check_answers()
            else:
                with pytest.raises(Unreachable, match=f"no LogMQ server answers .*{why}"):
                    await client.check_answers()
        nursery.cancel_scope.cancel()


async def test_a_replay_stays_connected_however_late_its_first_records_come(tmp_path: Path) -> None:
    net = NetSettings(first_request_seconds=0.5)
    async with served(tmp_path, net=net) as server, target(TargetAddress("127.0.0.1", server.port)) as topics:
        await trio.sleep(0.7)
        assert server.group.counters.closed == {}
        await topics.send([(b"orders", PastMessage(b"orders", b"x"))], "replay", 1)
