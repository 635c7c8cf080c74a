"""The stream driver over streams made by hand, where time is the test's."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
import trio.testing
from trio.testing import MockClock, lockstep_stream_pair, memory_stream_pair

from shared.net.admission import CONNECTION_BYTES, TLS_BYTES
from shared.net.outbox import Policy
from shared.net.settings import NetSettings
from shared.net.tls import server_context
from shared.net.tls_stream import TlsStream
from tests.shared.net.served import Certificates, Recorder, Sessions, echo, read_all
from tests.support.connections import StreamServer


@asynccontextmanager
async def joined(
    pair: tuple[trio.abc.Stream, trio.abc.Stream] | None = None,
) -> AsyncIterator[tuple[StreamServer, Any, Recorder]]:
    """A server, its one peer, and the peer's session."""
    server, sessions = StreamServer(), Sessions()
    near, far = pair or memory_stream_pair()
    async with running(server) as nursery:
        nursery.start_soon(server.serve, far, sessions)
        yield server, near, await sessions.next()


@asynccontextmanager
async def running(server: StreamServer) -> AsyncIterator[trio.Nursery]:
    async with trio.open_nursery() as nursery:
        await nursery.start(server.run)
        yield nursery
        nursery.cancel_scope.cancel()


async def test_a_lingering_close_discards_input_for_a_second_and_no_longer(autojump_clock: MockClock) -> None:
    def say_bye(data: bytes) -> None:
        session.connection.write(b"bye")
        session.connection.finish()

    async with joined() as (_, near, session):
        session.on_receive = say_bye
        await near.send_all(b"quit")
        start = trio.current_time()
        assert await read_all(near) == b"bye"
        assert trio.current_time() == start, "the end is told at once"
        await near.send_all(b"more")
        await session.lost.wait()
        assert trio.current_time() == pytest.approx(start + 1)
        assert session.data == b"quit"


async def test_a_peer_that_ends_first_is_not_lingered_for(autojump_clock: MockClock) -> None:
    server, sessions = StreamServer(), Sessions()
    near, far = memory_stream_pair()
    async with running(server) as nursery:
        nursery.start_soon(server.serve, far, sessions)
        await near.send_eof()
        session = await sessions.next()
        start = trio.current_time()
        await session.lost.wait()
        assert trio.current_time() == start


async def test_a_finished_connection_whose_peer_takes_nothing_ends_after_its_time(
    autojump_clock: MockClock,
) -> None:
    assert NetSettings().flush_seconds == 30
    async with joined(lockstep_stream_pair()) as (server, near, session):  # takes nothing until it is read
        for _ in range(3):
            session.connection.write(b"x" * 300_000)
        session.connection.finish()
        start = trio.current_time()
        await trio.sleep(20)
        assert len(await near.receive_some(300_000)) == 300_000  # some progress: another 30 seconds
        await session.lost.wait()
        assert 30 < trio.current_time() - start <= 61
        assert server.counters.closed == {"stalled": 1}


async def test_a_slow_reader_in_lockstep_gets_every_byte_in_order() -> None:
    server = StreamServer()
    near, far = lockstep_stream_pair()
    text = bytes(range(256)) * 40
    async with running(server) as nursery:
        nursery.start_soon(server.serve, far, Sessions(echo))
        nursery.start_soon(near.send_all, text)
        received = b""
        while len(received) < len(text):
            received += await near.receive_some(7)
        assert received == text


@pytest.mark.parametrize("policy", [Policy.DROP, Policy.DISCONNECT])
async def test_what_is_large_and_written_first_is_sent_whatever_is_written_before_the_writer_has_its_turn(
    policy: Policy,
) -> None:
    async with joined(lockstep_stream_pair()) as (_, near, session):
        connection = session.connection
        connection.outbox.bound, connection.outbox.policy = 10, policy
        connection.write(b"kept" * 5)
        connection.write(b"new")
        with trio.fail_after(5):
            assert await read_all(near, 23) == b"kept" * 5 + b"new"
        assert connection.outbox.dropped_chunks == 0


async def test_a_tls_handshake_that_takes_too_long_is_ended(
    autojump_clock: MockClock, certificates: Certificates
) -> None:
    server, sessions = StreamServer(), Sessions()
    near, far = memory_stream_pair()
    context = server_context(certificates.server)
    async with running(server) as nursery:
        start = trio.current_time()
        nursery.start_soon(server.serve, TlsStream(far, context), sessions)
        await near.send_all(b"\x16\x03\x01")  # how a handshake begins
        await trio.testing.wait_all_tasks_blocked()
        memory = server.loop.admission.memory
        assert memory.used_bytes == CONNECTION_BYTES + TLS_BYTES
        assert await read_all(near) == b""
        assert trio.current_time() == pytest.approx(start + 5)
        assert server.counters.handshakes_failed == 1
        assert server.counters.accepted == 0
        assert server.loop.admission.connections == memory.used_bytes == 0


async def test_what_is_no_tls_at_all_gets_the_end(certificates: Certificates) -> None:
    server = StreamServer()
    near, far = memory_stream_pair()
    async with running(server) as nursery:
        nursery.start_soon(server.serve, TlsStream(far, server_context(certificates.server)), Sessions())
        await near.send_all(b"PRODUCE orders hello\n")
        await read_all(near)
        assert server.counters.handshakes_failed == 1
