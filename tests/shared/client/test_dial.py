"""How a client reaches a server: what its TLS flags mean, and how it hears that a machine is gone."""

import math
import os
import socket
import ssl
from functools import partial
from pathlib import Path

import attrs
import pytest
import trio
import trustme
from trio.testing import MockClock, memory_stream_pair

from shared.client.dial import Address, Disconnected, Unreachable, tls_context
from shared.client.loop import Loop
from shared.client.pipelining import PipelinedConnection
from shared.client.reconnecting import keep_trying
from shared.client.retry import Retry
from shared.client.trio_loop import open_stream, trio_loop
from shared.errors import UsageError
from shared.net.tls import client_context, in_words
from shared.net.tls_socket import TlsStream

NOTHING = {"ca": None, "certificate": None, "key": None}


def test_no_flag_is_no_tls_and_any_file_implies_it(tmp_path: Path) -> None:
    assert tls_context(wanted=False, **NOTHING) is None
    assert isinstance(tls_context(wanted=True, **NOTHING), ssl.SSLContext)
    authority, ours = tmp_path / "ca.pem", tmp_path / "ours.pem"
    issued = trustme.CA()
    issued.cert_pem.write_to_path(authority)
    issued.issue_cert("localhost").private_key_and_cert_chain_pem.write_to_path(ours)
    assert tls_context(wanted=False, ca=authority, certificate=ours, key=None) is not None


@pytest.mark.parametrize(
    ("file", "flag"), [("ca", "ca"), ("certificate", "certificate"), ("key", "key-file")]
)
def test_a_file_that_is_not_there_is_named_with_its_flag(tmp_path: Path, file: str, flag: str) -> None:
    with pytest.raises(UsageError, match=f"^--{flag}: cannot read {tmp_path}/nowhere: No such file"):
        tls_context(wanted=True, **{**NOTHING, file: tmp_path / "nowhere"})


@pytest.mark.parametrize("flag", ["ca", "certificate"])
def test_a_file_that_is_something_else_is_named_with_its_flag(tmp_path: Path, flag: str) -> None:
    other = tmp_path / "other"
    other.write_text("something else")
    with pytest.raises(UsageError, match=f"^--{flag}: {other} "):
        tls_context(wanted=True, **{**NOTHING, flag: other})


async def test_a_name_that_no_host_can_have_is_one_clear_line() -> None:
    with pytest.raises(ConnectionRefusedError, match="no DMS server answers"):
        await open_stream(Address("a..b", 1, kind="DMS"))


@pytest.mark.parametrize("far", [False, True])
async def test_a_server_on_another_machine_is_asked_whether_it_is_still_there(
    far: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if far:
        monkeypatch.setattr("shared.client.dial.is_loopback", lambda host: False)
    with socket.create_server(("127.0.0.1", 0)) as server:
        stream = await open_stream(Address("127.0.0.1", server.getsockname()[1], kind="test"))
        async with stream:
            assert isinstance(stream, trio.SocketStream)
            assert bool(stream.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)) is far


async def test_a_server_without_tls_is_named_by_the_error() -> None:
    async with trio.open_nursery() as nursery:
        (listener,) = await nursery.start(
            partial(trio.serve_tcp, lambda stream: stream.send_all(b"in the clear"), 0, host="127.0.0.1")
        )
        port = listener.socket.getsockname()[1]
        context = client_context()
        with pytest.raises(ssl.SSLError) as refused:
            await open_stream(Address("127.0.0.1", port, context, kind="test"))
        assert refused.value.filename == f"127.0.0.1:{port}"
        nursery.cancel_scope.cancel()


@attrs.frozen
class Away(Address):
    """A server that is back at a time."""

    back: float = 0.0
    attempts: list[float] = attrs.field(factory=list)

    async def open(self) -> trio.abc.Stream:
        self.attempts.append(trio.current_time())
        if trio.current_time() < self.back:
            raise ConnectionRefusedError("no server answers")
        return memory_stream_pair()[0]


async def test_a_server_that_is_back_in_time_is_reached_though_pauses_have_grown(
    autojump_clock: MockClock,
) -> None:
    async with trio_loop() as loop:
        for seconds in (0.3, 1.0, 7.0):
            address = Away("host", 1, kind="test", back=trio.current_time() + seconds * 0.999)
            await keep_trying(loop, address, Retry(seconds), address.open)
        away = Away("host", 1, kind="test", back=math.inf)
        begun = trio.current_time()
        with pytest.raises(Unreachable, match="host:1: no server answers"):
            await keep_trying(loop, away, Retry(7.0), away.open)
    assert trio.current_time() - begun == pytest.approx(7.0)
    assert 6 <= len(away.attempts) <= 20


@pytest.fixture
def authority() -> trustme.CA:
    return trustme.CA()


async def refusal(client: ssl.SSLContext | None, server: ssl.SSLContext | None) -> str:
    """What a client is told by a server that speaks TLS in that way, or none, and what the server logs."""
    heard: list[str] = []

    async def serve(stream: trio.SocketStream) -> None:
        if server is None:
            await stream.send_all(b"in the clear\r\n")
            return
        sock = socket.socket(fileno=os.dup(stream.socket.fileno()))
        sock.setblocking(False)
        async with TlsStream(sock, server) as tls:
            try:
                await tls.do_handshake()
            except trio.BrokenResourceError as error:
                heard.append(in_words(error.__cause__ or error, server_side=True))
                await stream.send_eof()
                while await stream.receive_some():
                    pass

    async with trio.open_nursery() as nursery:
        (listener,) = await nursery.start(partial(trio.serve_tcp, serve, 0, host="127.0.0.1"))
        address = Address("127.0.0.1", listener.socket.getsockname()[1], client, kind="test")
        try:
            async with trio_loop() as loop:
                link = Told(loop)
                await loop.connect(address, link)
                link.transport.write(b"hello\r\n")
                with trio.fail_after(5):
                    await link.end.wait()
                told = str(link.lost)
        except ssl.SSLError as error:
            told = str(error.strerror)
        nursery.cancel_scope.cancel()
    return f"{told} / {' '.join(heard)}"


class Told(PipelinedConnection[None]):
    def __init__(self, loop: Loop) -> None:
        super().__init__(loop)
        self.end = loop.event()

    def lose(self, error: Disconnected) -> None:
        super().lose(error)
        self.end.set()

    def receive(self, data: bytearray) -> int:
        return len(data)

    def fail(self, answer: None, error: Disconnected) -> None: ...


async def test_what_fails_in_tls_is_said_in_words_on_both_sides(authority: trustme.CA) -> None:
    other = trustme.CA()
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    asking = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert("127.0.0.1").configure_cert(asking)
    authority.configure_trust(asking)
    asking.verify_mode = ssl.CERT_REQUIRED
    named = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert("broker.example").configure_cert(named)
    trusting = client_context()
    authority.configure_trust(trusting)
    stranger = client_context()
    authority.configure_trust(stranger)
    other.issue_cert("c@example").configure_cert(stranger)

    said = await refusal(trusting, None)
    assert said == "the server speaks no TLS: leave out --tls, --ca and --certificate / "
    said = await refusal(None, context)
    assert "the server speaks TLS: ask for it with --tls" in said
    assert "the peer speaks no TLS" in said
    said = await refusal(client_context(), context)
    assert "is not trusted" in said
    assert "--ca" in said
    said = await refusal(trusting, named)
    assert "the server's certificate is another's" in said
    assert "--host" in said
    said = await refusal(trusting, asking)
    assert "the server asks for a certificate of ours: name it with --certificate" in said
    assert "the peer shows no certificate, which client_ca asks for" in said
    said = await refusal(stranger, asking)
    assert "the server does not trust our certificate" in said
    assert "the peer's certificate is of no authority in client_ca" in said
