"""How a client reaches a server: what its TLS flags mean, and how it hears that a machine is gone."""

import math
import socket
import ssl
from functools import partial
from pathlib import Path

import attrs
import pytest
import trio
import trustme
from trio.testing import MockClock, memory_stream_pair

from shared.errors import UsageError
from shared.net.dial import Address, Unreachable, open_again, tls_context
from shared.net.tls import client_context

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
        await Address("a..b", 1, kind="DMS").open()


@pytest.mark.parametrize("far", [False, True])
async def test_a_server_on_another_machine_is_asked_whether_it_is_still_there(
    far: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if far:
        monkeypatch.setattr("shared.net.dial.is_loopback", lambda host: False)
    with socket.create_server(("127.0.0.1", 0)) as server:
        stream = await Address("127.0.0.1", server.getsockname()[1], kind="test").open()
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
            await Address("127.0.0.1", port, context, kind="test").open()
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
    for seconds in (0.3, 1.0, 7.0):
        address = Away("host", 1, kind="test", back=trio.current_time() + seconds * 0.999)
        await open_again(address, seconds)
    away = Away("host", 1, kind="test", back=math.inf)
    begun = trio.current_time()
    with pytest.raises(Unreachable, match="host:1: no server answers"):
        await open_again(away, 7.0)
    assert trio.current_time() - begun == pytest.approx(7.0)
    assert 6 <= len(away.attempts) <= 20
