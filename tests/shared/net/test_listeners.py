"""Binding, and taking connections within the caps."""

import os
import re
import socket
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import attrs
import pytest
import structlog
import trio

from shared.budget import unbounded
from shared.errors import ConfigError
from shared.net import listeners
from shared.net.admission import Admission
from shared.net.counters import NetCounters
from shared.net.keepalive import is_loopback
from shared.net.listeners import (
    Acceptor,
    CannotListen,
    bind_tcp,
    check_exposure,
    connection_options,
    format_address,
)
from shared.net.loop_turn import LoopTurn
from shared.net.outbox import Backlogs
from shared.net.settings import NetSettings, TlsSettings
from tests.shared.net.served import Recorder, Sessions, echo, make_group, read_all, serving, socket_of

SETTINGS = NetSettings()


def test_who_connects_to_a_handed_over_socket_waits_while_no_server_has_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as kept:  # as systemd keeps it
        host, port = kept.getsockname()
        for _ in range(2):  # two runs of a server
            taken = kept.dup()
            monkeypatch.setattr(listeners, "HANDED_FROM", taken.detach())
            monkeypatch.setenv("LISTEN_PID", str(os.getpid()))
            monkeypatch.setenv("LISTEN_FDS", "1")
            listeners.handed_over.cache_clear()
            with socket.create_connection((host, port)):
                (sock,) = bind_tcp(host, port, SETTINGS)
                with sock, sock.accept()[0]:
                    assert not sock.get_inheritable()
                    assert listeners.handed_over() == []
    listeners.handed_over.cache_clear()


def test_sockets_handed_over_to_another_process_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LISTEN_PID", str(os.getppid()))
    monkeypatch.setenv("LISTEN_FDS", "1")
    listeners.handed_over.cache_clear()
    assert listeners.handed_over() == []


def test_a_taken_port_is_one_clear_line() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(CannotListen) as error:
            bind_tcp("127.0.0.1", port, SETTINGS)
    assert error.value.address == f"127.0.0.1:{port}"
    assert str(error.value) == f"cannot listen on 127.0.0.1:{port}: Address already in use"


def test_an_address_that_is_not_ours_is_one_clear_line() -> None:
    with pytest.raises(CannotListen, match=r"cannot listen on 192\.0\.2\.1:0: "):
        bind_tcp("192.0.2.1", 0, SETTINGS)


@pytest.mark.parametrize("name", ["no-such-host.invalid", "a..b"])
def test_a_name_that_does_not_exist_is_one_clear_line(name: str) -> None:
    with pytest.raises(CannotListen, match=rf"cannot listen on {re.escape(name)}:1: "):
        bind_tcp(name, 1, SETTINGS)


def test_port_zero_picks_one_for_all_addresses_of_a_name() -> None:
    sockets = bind_tcp("", 0, SETTINGS)
    ports = {sock.getsockname()[1] for sock in sockets}
    for sock in sockets:
        sock.close()
    assert len(ports) == 1
    assert 0 not in ports


def _has_ipv6() -> bool:
    """Where the kernel has it, loopback may still have no such address, as in many containers."""
    try:
        with socket.socket(socket.AF_INET6) as sock:
            sock.bind(("::1", 0))
    except OSError:
        return False
    return True


@pytest.mark.skipif(not _has_ipv6(), reason="no IPv6 here")
async def test_ipv6_is_served_and_its_peers_shown_in_brackets() -> None:
    sessions = Sessions(echo)
    group = make_group()
    (address,) = group.bind_tcp("test", "::1", 0, sessions)
    async with trio.open_nursery() as nursery:
        await nursery.start(group.serve)
        client = await trio.open_tcp_stream(*address)
        session = await sessions.next()
        assert session.connection.peer == format_address("::1", client.socket.getsockname()[1])
        assert session.connection.peer.startswith("[::1]:")
        await client.aclose()
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize(
    ("host", "loopback"),
    [
        ("127.0.0.1", True),
        ("127.9.9.9", True),
        ("::1", True),
        ("localhost", True),
        ("0.0.0.0", False),
        ("", False),
        ("::", False),
        ("192.168.1.5", False),
        ("db.example.org", False),
    ],
)
def test_only_loopback_is_open_to_whoever_comes(host: str, loopback: bool) -> None:
    assert is_loopback(host) is loopback
    encrypts = TlsSettings(certificate=Path("server.pem"))
    check_exposure("logmq.host", host, attrs.evolve(encrypts, client_ca=Path("clients.pem")))
    check_exposure("logmq.host", host, encrypts, logs_in=True)
    check_exposure("logmq.host", host, None, insecure=True)
    for tls in (None, TlsSettings(), encrypts):
        if loopback:
            check_exposure("logmq.host", host, tls)
        else:
            with pytest.raises(ConfigError, match="--insecure") as error:
                check_exposure("logmq.host", host, tls)
            assert error.value.key == "logmq.host"
            assert "brokers user add" in error.value.text
    if not loopback:
        with pytest.raises(ConfigError, match="log in where everybody on the way can read it"):
            check_exposure("logmq.host", host, None, logs_in=True)


@pytest.mark.parametrize("pushes", [False, True])
async def test_accepted_sockets_have_the_options_that_find_dead_peers(pushes: bool) -> None:
    sessions = Sessions(echo)
    async with serving("plain", sessions, pushes=pushes) as served:
        _, session = await sessions.join(served)
        sock = socket_of(session)
        for level, option, value in connection_options(SETTINGS, "127.0.0.1", pushes=False):
            expected = value if option != getattr(socket, "TCP_USER_TIMEOUT", None) or not pushes else 0
            assert bool(expected) == bool(sock.getsockopt(level, option))
            if expected > 1:
                assert sock.getsockopt(level, option) == expected


async def test_a_peer_that_sends_the_beginning_of_something_is_acknowledged_at_once() -> None:
    waits = trio.Event()

    def answer_all_but_headers(session: Recorder) -> None:
        def received(data: bytes) -> None:
            if data == b"header":
                session.connection.await_rest()
                waits.set()
            else:
                session.connection.write(data)

        session.on_receive = received

    sessions = Sessions(answer_all_but_headers)
    async with serving("plain", sessions) as served:
        client, session = await sessions.join(served)
        sock = socket_of(session)
        for _ in range(3):
            await client.send_all(b"whole")
            assert await client.receive_some() == b"whole"
        assert not sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK), "it goes along with the answer"
        await client.send_all(b"header")
        await waits.wait()
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK)


def acceptor_of(listening: socket.socket, admit: Callable[[socket.socket], None]) -> Acceptor:
    loop = LoopTurn(
        settings=SETTINGS,
        admission=Admission(SETTINGS),
        backlogs=Backlogs(unbounded()),
        counters=NetCounters(),
        after_turn=lambda: None,
        log=structlog.stdlib.get_logger("test"),
    )
    return Acceptor(listening, lambda sock, peer, host: admit(sock), loop)


async def test_who_comes_from_this_machine_is_not_probed_wherever_else_others_may_come_from() -> None:
    (listening,) = bind_tcp("0.0.0.0", 0, SETTINGS)
    admit, admitted = trio.open_memory_channel[socket.socket](1)
    acceptor = acceptor_of(listening, admit.send_nowait)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(acceptor.run)
        stream = await trio.open_tcp_stream("127.0.0.1", listening.getsockname()[1])
        with await admitted.receive() as accepted:
            assert not accepted.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        await stream.aclose()
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize(("host", "asked"), [("127.0.0.1", False), ("0.0.0.0", True)])
def test_who_may_be_far_away_is_asked_whether_he_is_still_there(host: str, asked: bool) -> None:
    """Not who can only be on this machine: its probes come in bursts, of which loopback drops the most."""
    (listening,) = bind_tcp(host, 0, SETTINGS)
    with listening, socket.create_connection(("127.0.0.1", listening.getsockname()[1])):
        listening.setblocking(True)
        accepted, _ = listening.accept()
        with accepted:
            assert bool(accepted.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)) is asked
            if asked:
                idle = accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE)
                assert idle == SETTINGS.keepalive_seconds


async def test_above_the_cap_connections_are_closed_and_counted_and_room_is_used_again() -> None:
    sessions = Sessions(echo)
    async with serving("plain", sessions, connections_max=2) as served:
        first, session = await sessions.join(served)
        await sessions.join(served)
        third = await served.connect()
        assert await read_all(third) == b""
        assert served.group.counters.refused == {"connections_max": 1}
        await trio.aclose_forcefully(first)
        await session.lost.wait()
        again, _ = await sessions.join(served)
        await again.send_all(b"hello")
        assert await read_all(again, 5) == b"hello"


EXHAUSTION = """
import os, resource, sys, socket
import trio
from shared.net.network import Network
from shared.net.settings import NetSettings
from tests.shared.net.served import Sessions, echo, make_group, read_all

async def main():
    group = make_group(Network(NetSettings()))
    sessions = Sessions(echo)
    (address,) = group.bind_tcp("test", "127.0.0.1", 0, sessions)
    async with trio.open_nursery() as nursery:
        await nursery.start(group.serve)
        good, _ = await sessions.join(Server(address))
        hoard, waiting = [], [socket.socket() for _ in range(3)]
        while True:
            try:
                hoard.append(os.open(os.devnull, os.O_RDONLY))
            except OSError:
                break
        for sock in waiting:
            sock.setblocking(False)
            sock.connect_ex(address)
        while group.counters.refused.get("descriptors", 0) < 3:
            await good.send_all(b"hello")
            assert await read_all(good, 5) == b"hello"
        assert group.counters.emfile >= 1
        for fd in hoard:
            os.close(fd)
        for sock in waiting:
            await trio.lowlevel.wait_readable(sock)
            assert sock.recv(1) == b""
            sock.close()
        again, _ = await sessions.join(Server(address))
        await again.send_all(b"served")
        assert await read_all(again, 6) == b"served"
        await good.aclose(), await again.aclose()
        nursery.cancel_scope.cancel()
    print("survived")

class Server:
    def __init__(self, address): self.address = address
    async def connect(self): return await trio.open_tcp_stream(*self.address)

resource.setrlimit(resource.RLIMIT_NOFILE, (600, 600))
trio.run(main)
"""


def test_running_out_of_descriptors_is_survived() -> None:
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(EXHAUSTION)],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert done.stdout.endswith("survived\n"), done.stdout + done.stderr
    assert "connections refused" in done.stdout


async def test_a_turn_of_accepting_is_short_whatever_sessions_do_meanwhile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = iter(range(1000))
    monkeypatch.setattr(listeners, "perf_counter", lambda: next(clock) / 1000)
    (listening,) = bind_tcp("127.0.0.1", 0, SETTINGS)
    taken: list[socket.socket] = []
    acceptor = acceptor_of(listening, taken.append)
    clients = [socket.create_connection(listening.getsockname()) for _ in range(20)]
    while (before := len(taken)) < 20:
        await trio.lowlevel.wait_readable(listening)
        acceptor.accept_many()
        assert 0 < len(taken) - before < 10
    acceptor.close()
    for sock in (*clients, *taken):
        sock.close()
