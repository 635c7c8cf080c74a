"""What the driver has to prove besides: turns, wake-ups, and what ten thousand connections cost."""

import contextlib
import errno
import gc
import os
import select
import socket
import sys
import tracemalloc
from time import perf_counter

import pytest
import trio
import trio.testing

from shared.net.connection import Connection
from tests.shared.net.served import (
    PATIENCE_SECONDS,
    Recorder,
    Sessions,
    echo,
    read_all,
    serving,
    wait_arrived,
)

if sys.platform != "linux":
    pytest.skip("epoll is Linux's", allow_module_level=True)

from shared.net import poll
from shared.net.poll import EVENTS_MAX, READ_BYTES, SLICE_SECONDS


def work_for(seconds: float) -> None:
    ends = perf_counter() + seconds
    while perf_counter() < ends:
        pass


async def test_a_flood_on_one_connection_does_not_starve_another_nor_other_tasks() -> None:
    sessions = Sessions(echo)
    async with serving("plain", sessions) as served:
        flooding, flood = await sessions.join(served)
        quick, _ = await sessions.join(served)
        async with trio.open_nursery() as nursery:

            async def send_for_ever() -> None:
                while True:
                    await flooding.send_all(b"x" * 100_000)

            async def read_for_ever() -> None:
                while True:
                    await flooding.receive_some(100_000)

            nursery.start_soon(send_for_ever)
            nursery.start_soon(read_for_ever)
            while len(flood.data) < 5_000_000:
                await trio.lowlevel.checkpoint()
            before = len(flood.data)
            for number in range(100):
                await quick.send_all(b"%d" % number)
                assert await read_all(quick, len(b"%d" % number)) == b"%d" % number
            assert len(flood.data) - before < 100 * 8_000_000, "the other waited for megabytes each time"
            nursery.cancel_scope.cancel()


async def test_a_read_for_which_there_is_no_memory_costs_its_own_connection_only() -> None:
    def no_memory(_: int) -> bytes:
        raise MemoryError

    sessions = Sessions(echo)
    async with serving("plain", sessions) as served:
        good, _ = await sessions.join(served)
        bad, starved = await sessions.join(served)
        starved.connection.recv_some = no_memory
        await bad.send_all(b"1")
        with trio.fail_after(PATIENCE_SECONDS):
            await starved.lost.wait()
            await good.send_all(b"2")
            assert await read_all(good, 1) == b"2"
        assert served.group.counters.closed == {"crash": 1}


async def test_what_stands_behind_an_urgent_byte_is_read_too() -> None:
    sessions = Sessions()
    async with serving("plain", sessions) as served:
        with served.connect_socket() as client:
            session = await sessions.next()
            client.send(b"before")
            client.send(b"!", socket.MSG_OOB)
            client.send(b"behind")
            while len(session.data) < len(b"beforebehind"):
                await trio.lowlevel.checkpoint()
            assert session.data == b"beforebehind"


@pytest.mark.parametrize("number", [errno.ECONNRESET, errno.ETIMEDOUT])
async def test_what_came_before_an_error_is_received_and_the_connection_ends(number: int) -> None:
    sessions = Sessions()
    async with serving("plain", sessions, read_bytes_max=READ_BYTES * 4) as served:
        stream, session = await sessions.join(served)
        read = session.connection.recv_some

        def recv_some(size: int) -> bytes:
            if size == READ_BYTES * 3:
                raise OSError(number, os.strerror(number))
            wait_arrived(session, size)
            data: bytes = read(size)
            return data

        session.connection.recv_some = recv_some
        before = len(session.data)
        await stream.send_all(bytes(READ_BYTES))
        while not session.connection.closed:
            await trio.lowlevel.checkpoint()
        assert len(session.data) - before == READ_BYTES


async def test_a_slow_session_leaves_others_to_the_next_round_and_forgets_none() -> None:
    def prepare(session: Recorder) -> None:
        def answer(data: bytes) -> None:
            work_for(SLICE_SECONDS)
            session.connection.write(data)

        session.on_receive = answer

    sessions = Sessions(prepare)
    async with serving("plain", sessions) as served:
        sockets = []
        for _ in range(3 * EVENTS_MAX):
            sockets.append(served.connect_socket())
            await sessions.next()
        for sock in sockets:
            sock.send(b"?")
        for sock in sockets:
            await trio.lowlevel.wait_readable(sock)
            assert sock.recv(10) == b"?"


async def test_a_call_from_outside_wakes_the_parked_driver() -> None:
    sessions = Sessions(lambda session: session.connection.pause_reading())
    async with serving("plain", sessions) as served:
        client, session = await sessions.join(served)
        await client.send_all(b"waiting")
        await trio.testing.wait_all_tasks_blocked(0.01)
        assert session.calls == []
        session.connection.resume_reading()
        while session.data != b"waiting":
            await trio.lowlevel.checkpoint()
        session.connection.abort("test")
        await session.lost.wait()


async def test_a_connection_that_ends_itself_in_the_midst_of_a_round_harms_no_neighbour() -> None:
    """Everybody closes everybody else: events of the round that are about the dead are skipped."""
    everybody: list[Connection] = []

    def prepare(session: Recorder) -> None:
        everybody.append(session.connection)

        def close_others(data: bytes) -> None:
            for other in everybody:
                if other is not session.connection:
                    other.abort("test")
            session.connection.write(b"survivor")

        session.on_receive = close_others

    sessions = Sessions(prepare)
    async with serving("plain", sessions) as served:
        clients = []
        for _ in range(10):
            client, _ = await sessions.join(served)
            clients.append(client)
        for client in clients:
            sock = client.socket  # type: ignore[attr-defined]
            await sock.send(b"!")
        answers = 0
        for client in clients:
            try:
                answers += await client.receive_some() == b"survivor"
            except trio.BrokenResourceError:
                pass
        assert answers == 1
        assert served.group.counters.crashes == 0
        assert served.group.counters.closed == {"test": 9}


async def test_a_connection_that_ends_as_its_peer_does_is_asked_for_no_error_any_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its peer has reset it while nothing was read from it, and its session ends it for that."""
    sessions = Sessions()
    async with serving("plain", sessions) as served:
        _, session = await sessions.join(served)
        connection = session.connection
        monkeypatch.setattr(type(connection), "hang_up", lambda self: self.abort("gone"))
        connection.pause_reading()
        connection.attend(poll.ENDING | select.EPOLLIN)
        assert connection.closed


async def test_what_was_told_of_a_closed_connection_is_not_told_to_the_next_with_its_descriptor(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One session aborts another whose last word is still to be looked at; a new client comes at once."""
    monkeypatch.setattr(poll, "SLICE_SECONDS", 0.0)
    monkeypatch.setattr(poll, "LOOK_WORK", 0)  # so a turn is one event
    rounds_had = 0

    def after_turn() -> None:
        nonlocal rounds_had
        rounds_had += 1

    sessions = Sessions()
    with contextlib.ExitStack() as stack:
        async with serving("plain", sessions, after_turn=after_turn) as served:
            sockets = [served.connect_socket() for _ in range(30)]
            first, *_, last = [await sessions.next() for _ in sockets]
            freed = last.connection.fd  # type: ignore[attr-defined]

            def replace_last(data: bytes) -> None:
                served.connect_socket()
                while (fd := os.dup(0)) < freed:
                    stack.callback(os.close, fd)
                os.close(fd)
                last.connection.abort("test")

            first.on_receive = replace_last
            for sock in sockets[:-1]:
                sock.send(b"!")
            sockets[-1].shutdown(socket.SHUT_WR)
            new = await sessions.next()
            assert new.connection.fd == freed  # type: ignore[attr-defined]
            for _ in range(500):
                await trio.lowlevel.checkpoint()
            before = rounds_had
            for _ in range(20):
                await trio.lowlevel.checkpoint()
            assert rounds_had == before, "there is nothing to do, and no end to it"
            assert not last.calls or last.calls == ["lost"]


class Quiet:
    """The smallest session."""

    __slots__ = ("connection",)

    def __init__(self, connection: Connection) -> None:
        self.connection = connection

    def receive(self, data: bytes) -> None:
        self.connection.write(data)

    def receive_eof(self) -> None:
        self.connection.finish()

    def on_deadline(self, now: float) -> None: ...

    def drain(self) -> None: ...

    def connection_lost(self) -> None: ...


async def test_an_idle_connection_costs_less_than_four_kibibytes() -> None:
    count = 300
    async with serving("plain", Quiet) as served:
        warm = served.connect_socket()
        gc.collect()
        tracemalloc.start()
        try:
            clients = []
            for _ in range(count):
                clients.append(served.connect_socket())
            while served.group.connections < count + 1:
                await trio.lowlevel.checkpoint()
            own = sum(sys.getsizeof(client) for client in clients)
            used, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        warm.close()
        assert (used - own) / count < 4096
        for connection in served.group.loop.connections:
            assert connection.outbox.chunks is None
