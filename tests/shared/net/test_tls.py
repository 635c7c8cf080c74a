"""TLS over real sockets, with Python's own client at the other end."""

import socket
import ssl
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio

from shared.budget import Account
from shared.errors import ConfigError
from shared.net import tls
from shared.net.admission import CONNECTION_BYTES, TLS_BYTES
from shared.net.network import Network
from shared.net.outbox import Policy
from shared.net.settings import NetSettings, TlsSettings
from shared.net.tls import ServerTls, server_context
from shared.net.tls_socket import ALERT
from tests.shared.net.served import (
    PATIENCE_SECONDS,
    Certificates,
    Sessions,
    echo,
    make_group,
    read_all,
    serving,
)


async def test_a_half_closed_tls_peer_still_gets_its_answer(certificates: Certificates) -> None:
    """Python's own sockets cannot half-close TLS, so the client is OpenSSL by hand."""
    sessions = Sessions(lambda session: setattr(session, "on_eof", lambda: None))
    async with serving("tls", sessions, certificates=certificates) as served:
        assert not isinstance(served.address, str)
        transport = await trio.open_tcp_stream(*served.address)
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        tls = certificates.client_context().wrap_bio(incoming, outgoing, server_hostname="localhost")

        async def step() -> None:
            await transport.send_all(outgoing.read())
            incoming.write(await transport.receive_some())

        while True:
            try:
                tls.do_handshake()
                break
            except ssl.SSLWantReadError:
                await step()
        tls.write(b"request")
        with pytest.raises(ssl.SSLWantReadError):
            tls.unwrap()  # says goodbye, and waits for the other's
        await transport.send_all(outgoing.read())
        session = await sessions.next()
        await session.told_eof.wait()
        assert session.data == b"request"
        session.connection.write(b"answer")
        session.connection.finish()
        received = b""
        while True:
            try:
                part = tls.read(100)
            except ssl.SSLWantReadError:
                incoming.write(await transport.receive_some())
            except ssl.SSLZeroReturnError:
                break
            else:
                received += part
        assert received == b"answer"
        await transport.aclose()


async def test_a_peer_that_ends_without_an_alert_still_gets_its_answer(certificates: Certificates) -> None:
    sessions = Sessions(lambda session: setattr(session, "on_eof", lambda: None))
    async with serving("tls", sessions, certificates=certificates) as served:
        client = await served.connect()
        assert isinstance(client, trio.SSLStream)
        await client.send_all(b"request")
        await client.transport_stream.send_eof()
        session = await sessions.next()
        await session.told_eof.wait()
        session.connection.write(b"answer")
        session.connection.finish()
        assert await read_all(client) == b"answer"


async def test_a_server_with_a_client_authority_takes_only_its_clients(certificates: Certificates) -> None:
    group = make_group(tls=certificates.mutual)
    (address,) = group.bind_tcp("test", "127.0.0.1", 0, Sessions(echo))
    known, stranger = certificates.client_context(), certificates.client_context()
    certificates.authority.issue_cert("client@example.org").configure_cert(known)

    async def ask(context: ssl.SSLContext) -> bytes:
        async with await trio.open_ssl_over_tcp_stream(*address, ssl_context=context) as client:
            await client.send_all(b"hello")
            return await read_all(client, 5)

    async with trio.open_nursery() as nursery:
        await nursery.start(group.serve)
        with trio.fail_after(PATIENCE_SECONDS):
            assert await ask(known) == b"hello"
            with pytest.raises(trio.BrokenResourceError) as refused:
                await ask(stranger)
            assert "alert certificate required" in str(refused.value.__cause__)
        nursery.cancel_scope.cancel()
    assert group.counters.handshakes_failed == 1
    assert group.counters.accepted == 2


async def test_tls_that_there_is_no_memory_for_is_refused_before_the_handshake(
    certificates: Certificates,
) -> None:
    process = Account("process", 2 * (CONNECTION_BYTES + TLS_BYTES) - 1)
    connections = process.account("connections")
    told: list[str] = []
    process.on_refused = lambda account: told.append(account.name)
    group = make_group(Network(NetSettings(), process), tls=certificates.server)
    sessions = Sessions(echo)
    (address,) = group.bind_tcp("test", "127.0.0.1", 0, sessions)

    async def ask(client: trio.SSLStream[trio.SocketStream]) -> bytes:
        await client.send_all(b"hello")
        return await read_all(client, 5)

    async with trio.open_nursery() as nursery:
        await nursery.start(group.serve)
        with trio.fail_after(PATIENCE_SECONDS):
            context = certificates.client_context()
            first = await trio.open_ssl_over_tcp_stream(*address, ssl_context=context)
            assert await ask(first) == b"hello"
            assert connections.used_bytes == CONNECTION_BYTES + TLS_BYTES
            async with await trio.open_tcp_stream(*address) as second:
                assert await second.receive_some() == b"", "it is closed though it has sent nothing"
            assert (group.counters.refused, told) == ({"memory": 1}, ["connections"])
            assert group.counters.handshakes_failed == 0
            assert await ask(first) == b"hello"
            await trio.aclose_forcefully(first)
            await (await sessions.next()).lost.wait()
            assert process.used_bytes == 0
            async with await trio.open_ssl_over_tcp_stream(*address, ssl_context=context) as third:
                assert await ask(third) == b"hello"
        nursery.cancel_scope.cancel()
    assert process.used_bytes == 0


def test_old_versions_of_tls_and_renegotiation_are_refused(certificates: Certificates) -> None:
    context = server_context(certificates.server)
    assert context.minimum_version == ssl.TLSVersion.TLSv1_2
    assert context.options & ssl.OP_NO_RENEGOTIATION


async def test_tls_keeps_connections_it_has_while_a_handshake_dawdles(certificates: Certificates) -> None:
    async with serving("tls", Sessions(echo), certificates=certificates) as served:
        assert not isinstance(served.address, str)
        dawdlers = [socket.create_connection(served.address) for _ in range(10)]
        client = await served.connect()
        await client.send_all(b"hello")
        assert await read_all(client, 5) == b"hello"
        for dawdler in dawdlers:
            dawdler.close()


async def test_a_handshake_that_takes_too_long_is_ended(certificates: Certificates) -> None:
    async with serving("tls", Sessions(), certificates=certificates, handshake_seconds=0.05) as served:
        memory = served.network.admission.memory
        async with await trio.open_tcp_stream(*served.address) as client:
            await client.send_all(b"\x16\x03\x01")  # how a handshake begins
            assert await read_all(client) == b""
            assert memory.used_bytes == CONNECTION_BYTES + TLS_BYTES
        await served.group.wait_no_connections()
        assert served.group.counters.handshakes_failed == 1
        assert served.network.admission.connections == memory.used_bytes == 0


@pytest.mark.parametrize("said", [b"PRODUCE orders hello\n", b""])
async def test_who_speaks_no_tls_is_told_so_and_gets_the_end(said: bytes, certificates: Certificates) -> None:
    sessions = Sessions()
    async with serving("tls", sessions, certificates=certificates) as served:
        async with await trio.open_tcp_stream(*served.address) as client:
            await client.send_all(said)
            await client.send_eof()
            assert (await read_all(client))[:1] == ALERT[:1]
        await served.group.wait_no_connections()
        assert served.group.counters.handshakes_failed == 1


async def test_what_is_large_and_begun_is_sent_whole_whatever_is_dropped_meanwhile(
    certificates: Certificates,
) -> None:
    sessions = Sessions()
    async with serving("tls", sessions, certificates=certificates) as served:
        client, session = await sessions.join(served)
        connection = session.connection
        connection.outbox.bound, connection.outbox.policy = 100_000, Policy.DROP
        lines = [b"%06d" % number + b"x" * (number * 37 % 2000) + b"\n" for number in range(20_000)]
        for line in lines:
            connection.write(line)
            await trio.lowlevel.checkpoint()
        assert connection.outbox.dropped_chunks > 0
        connection.finish()
        received = (await read_all(client)).splitlines(keepends=True)
        assert received == sorted(set(received) & set(lines))
        assert received[-1] == lines[-1]
        assert len(received) + connection.outbox.dropped_chunks == len(lines)


@pytest.mark.parametrize("field", ["certificate", "key", "client_ca"])
def test_a_file_that_is_missing_or_is_none_of_its_kind_is_named(
    field: str, certificates: Certificates, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError) as missing:
        server_context(attrs.evolve(certificates.mutual, **{field: tmp_path / "none.pem"}), "dms.tls")
    assert missing.value.key == f"dms.tls.{field}"
    assert "none.pem" in missing.value.text
    (tmp_path / "wrong.pem").write_text("this is no PEM")
    with pytest.raises(ConfigError) as wrong:
        server_context(attrs.evolve(certificates.mutual, **{field: tmp_path / "wrong.pem"}), "dms.tls")
    assert wrong.value.key == f"dms.tls.{field}" or field == "certificate"


def test_a_key_without_a_certificate_is_refused(certificates: Certificates) -> None:
    with pytest.raises(ConfigError) as error:
        server_context(TlsSettings(key=certificates.server.key))
    assert error.value.key == "tls.certificate"


@pytest.mark.parametrize("left", [None, b"", b"-----BEGIN CERTIFICATE-----MIIB-----END CERTIFICATE-----"])
def test_a_certificate_that_is_written_at_this_moment_is_named(
    left: bytes | None, certificates: Certificates, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Any other error in a reload ended the server; a file that has changed is read within a minute."""
    file = tmp_path / "server.pem"
    assert certificates.server.certificate is not None
    whole = certificates.server.certificate.read_bytes()
    settings = attrs.evolve(certificates.server, certificate=file)

    def changed() -> None:
        file.unlink(missing_ok=True) if left is None else file.write_bytes(left)

    def loaded_then_changed(*arguments: Any) -> ssl.SSLContext:
        context = server_context(*arguments)
        changed()
        return context

    for name, meanwhile in (("server_context", loaded_then_changed), ("_readable", lambda *_: changed())):
        file.write_bytes(whole)
        with monkeypatch.context() as patched:
            patched.setattr(tls, name, meanwhile)
            with pytest.raises(ConfigError) as error:
                ServerTls.load(settings, "dms.tls")
        assert error.value.key in ("dms.tls.certificate", "dms.tls.key")
        assert "server.pem" in error.value.text
