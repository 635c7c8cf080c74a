"""What only the poll driver has to prove: turns, wake-ups, and what ten thousand connections cost."""

import contextlib
import errno
import gc
import os
import socket
import sys
import tracemalloc
from functools import partial
from itertools import pairwise
from time import perf_counter
from typing import Any

import pytest
import trio
import trio.testing

from shared.net.connection import Connection
from shared.net.listeners import ACCEPTS_BEHIND
from tests.shared.net.served import (
    PATIENCE_SECONDS,
    Recorder,
    Served,
    Sessions,
    echo,
    read_all,
    serving,
    wait_arrived,
)

if sys.platform != "linux":
    pytest.skip("epoll is Linux's", allow_module_level=True)

from shared.net import loop_turn, poll
from shared.net.liveness import TCP_INFO, WAITING
from shared.net.loop_turn import HOLD_LEAST
from shared.net.poll import EVENTS_MAX, READ_BYTES, SLICE_SECONDS, SLICES_MAX


def work_for(seconds: float) -> None:
    ends = perf_counter() + seconds
    while perf_counter() < ends:
        pass


def note_sends(session: Recorder, sends: list[bytes]) -> None:
    """Whatever is sent to its peer, from now on."""
    connection: Any = session.connection
    send = connection.send_some

    def note(data: bytes, flags: int = 0) -> int:
        sends.append(bytes(data))
        return int(send(data, flags))

    connection.send_some = note


async def test_a_flood_on_one_connection_does_not_starve_another_nor_other_tasks() -> None:
    sessions = Sessions(echo)
    async with serving("poll", sessions) as served:
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
    async with serving("poll", sessions) as served:
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
    async with serving("poll", sessions) as served:
        with served.connect_socket() as client:
            session = await sessions.next()
            client.send(b"before")
            client.send(b"!", socket.MSG_OOB)
            client.send(b"behind")
            while len(session.data) < len(b"beforebehind"):
                await trio.lowlevel.checkpoint()
            assert session.data == b"beforebehind"


async def test_reads_are_as_large_as_what_comes_and_nothing_of_it_is_lost() -> None:
    sessions = Sessions()
    sent = os.urandom(3_000_000)
    async with serving("poll", sessions, read_bytes_max=READ_BYTES * 4) as served:
        stream, session = await sessions.join(served)
        read = session.connection.recv_some
        asked: list[int] = []

        def recv_some(size: int) -> bytes:
            asked.append(size)
            data: bytes = read(size)
            return data

        session.connection.recv_some = recv_some
        before = len(session.data)
        await stream.send_all(sent)
        while len(session.data) < before + len(sent):
            await trio.lowlevel.checkpoint()
        await stream.send_all(b"little")
        while not session.data.endswith(b"little"):
            await trio.lowlevel.checkpoint()
        await stream.send_all(b"less")
        while not session.data.endswith(b"less"):
            await trio.lowlevel.checkpoint()
        assert session.data[before:] == sent + b"littleless"
        assert asked[:2] == [READ_BYTES, READ_BYTES * 3], "a full read takes the rest"
        assert READ_BYTES * 4 in asked[2:]
        assert asked[-1] == READ_BYTES, "no more than comes is asked for"


@pytest.mark.parametrize("number", [errno.ECONNRESET, errno.ETIMEDOUT])
async def test_what_came_before_an_error_is_received_and_the_connection_ends(number: int) -> None:
    sessions = Sessions()
    async with serving("poll", sessions, read_bytes_max=READ_BYTES * 4) as served:
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
    async with serving("poll", sessions) as served:
        sockets = []
        for _ in range(3 * EVENTS_MAX):
            sockets.append(served.connect_socket())
            await sessions.next()
        for sock in sockets:
            sock.send(b"?")
        for sock in sockets:
            await trio.lowlevel.wait_readable(sock)
            assert sock.recv(10) == b"?"


async def test_what_first_words_bring_is_much_work_and_others_have_a_turn_after_each() -> None:
    """A client that has come back is given what it had: a thousand subscriptions for twelve bytes."""
    count, done = 12, 0
    since_a_turn: list[int] = []

    def prepare(session: Recorder) -> None:
        def come_back(_: bytes) -> None:
            nonlocal done
            session.connection.first_request_done()
            done += 1
            work_for(0.002)

        session.connection.await_first_request()
        session.on_receive = come_back

    async def others() -> None:
        before = 0
        while before < count:
            since_a_turn.append(done - before)
            before = done
            await trio.lowlevel.checkpoint()

    sessions = Sessions(prepare)
    async with serving("poll", sessions) as served, trio.open_nursery() as nursery:
        sockets = []
        for _ in range(count):
            sockets.append(served.connect_socket())
            await sessions.next()
        nursery.start_soon(others)
        for sock in sockets:
            sock.send(b"x")
    assert max(since_a_turn) <= 3, since_a_turn  # twice is possible: trio shuffles who goes first in a turn


async def test_while_some_wait_to_be_served_few_new_connections_are_taken() -> None:
    """Else a flood of short ones piles up inside, faster than they are closed, and all others behind them."""

    def prepare(session: Recorder) -> None:
        def take_a_turn(data: bytes) -> None:
            work_for(SLICE_SECONDS)

        session.on_receive = take_a_turn

    sessions = Sessions(prepare)
    async with serving("poll", sessions) as served:
        slow = []
        for _ in range(EVENTS_MAX):
            sock = served.connect_socket()
            slow.append((sock, await sessions.next()))
        for sock, _ in slow:
            sock.send(b"?")
        for _, session in slow:
            wait_arrived(session)
        while not any(session.data for _, session in slow):
            await trio.lowlevel.checkpoint()
        open_before = served.group.connections
        came = [served.connect_socket() for _ in range(4 * ACCEPTS_BEHIND)]
        _wait_queued(served, len(came))
        taken = [open_before]
        while taken[-1] < open_before + len(came):
            await trio.lowlevel.checkpoint()
            taken.append(served.group.connections)
        # Twice is possible: trio shuffles who goes first in a turn.
        assert max(after - before for before, after in pairwise(taken)) <= 2 * ACCEPTS_BEHIND


def _wait_queued(served: Served, count: int) -> None:
    """As `wait_arrived`, until so many connections wait to be accepted (for a listener, `tcpi_unacked`)."""
    (acceptor,) = served.group.acceptors
    until = perf_counter() + PATIENCE_SECONDS
    info = partial(acceptor.listening.getsockopt, socket.IPPROTO_TCP, TCP_INFO, WAITING.size)
    while WAITING.unpack(info())[1] < count:
        assert perf_counter() < until


async def test_what_a_round_brings_goes_out_with_the_answer_to_input_that_is_there_already(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One send, not two, where the peer has gone on meanwhile; and at once to a peer that waits."""
    waiting: list[Recorder] = []
    sends: list[bytes] = []

    def prepare(session: Recorder) -> None:
        note_sends(session, sends)

        def answer(data: bytes) -> None:
            session.connection.write(b"now ")
            waiting.append(session)

        session.on_receive = answer

    def after_turn() -> None:
        waited, waiting[:] = waiting[:], []
        for session in waited:
            if not clients.get(session):
                continue
            clients[session].send(b"more")  # as a peer does that the commit gave the time to
            wait_arrived(session, len(b"more"))
            del clients[session]
            session.connection.write(b"later ")
        for session in waited:
            if session.data == b"onemore":
                session.connection.write(b"last ")

    monkeypatch.setattr(loop_turn, "HOLD_LEAST", 1)
    clients: dict[Recorder, socket.socket] = {}
    sessions = Sessions(prepare)
    async with serving("poll", sessions, after_turn=after_turn) as served:
        sock = served.connect_socket()
        clients[await sessions.next()] = sock
        sock.send(b"one")
        received = b""
        while len(received) < 19:
            await trio.lowlevel.wait_readable(sock)
            received += sock.recv(100)
        assert received == b"now later now last "
        assert sends == [b"now ", b"later now ", b"last "]


async def test_who_goes_on_as_soon_as_answered_is_in_the_round_of_who_was_ready_before() -> None:
    """Else a commit begins with one request, and four wait for it and for the next."""
    asked: list[Recorder] = []
    rounds_of: list[int] = []
    clients: dict[Recorder, socket.socket] = {}

    def prepare(session: Recorder) -> None:
        send = session.connection.send_some  # type: ignore[attr-defined]

        def answer_and_hear_more(data: bytes, flags: int = 0) -> int:
            sent = int(send(data, flags))
            if len(rounds_of) == 1:
                clients[session].send(b"more")
                wait_arrived(session)
            return sent

        session.connection.send_some = answer_and_hear_more  # type: ignore[attr-defined]
        session.on_receive = lambda _: asked.append(session)

    def after_turn() -> None:
        if not asked:
            return
        rounds_of.append(len(asked))
        if len(rounds_of) == 1:
            (late,) = clients.keys() - set(asked)
            clients[late].send(b"one")
            wait_arrived(late)
        for session in asked:
            session.connection.write(b"answer")
        asked.clear()

    sessions = Sessions(prepare)
    async with serving("poll", sessions, after_turn=after_turn) as served:
        for _ in range(HOLD_LEAST + 1):
            sock = served.connect_socket()
            clients[await sessions.next()] = sock
        for session in list(clients)[:HOLD_LEAST]:
            clients[session].send(b"one")
            wait_arrived(session)
        with trio.fail_after(PATIENCE_SECONDS):
            while len(rounds_of) < 2:
                await trio.lowlevel.checkpoint()
        assert rounds_of == [HOLD_LEAST, HOLD_LEAST + 1]


async def test_a_round_is_all_that_was_ready_though_other_tasks_have_turns_meanwhile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One `after_turn` for many; for fewer, where each takes long."""
    turns = 0
    turn_of: list[int] = []
    rounds_of: list[int] = []

    def prepare(session: Recorder) -> None:
        def take_a_turn(data: bytes) -> None:
            turn_of.append(turns)
            work_for(SLICE_SECONDS)

        session.on_receive = take_a_turn

    def after_turn() -> None:
        if turn_of:
            rounds_of.append(len(turn_of))

    monkeypatch.setattr(poll, "LOOK_WORK", 0)  # the clock is read after each
    sessions = Sessions(prepare)
    async with serving("poll", sessions, after_turn=after_turn) as served:
        ready = []
        for _ in range(2 * SLICES_MAX):
            sock = served.connect_socket()
            ready.append((sock, await sessions.next()))
        for sock, _ in ready:
            sock.send(b"?")
        for _, session in ready:
            wait_arrived(session)
        while len(rounds_of) < 2:
            turns += 1
            await trio.lowlevel.checkpoint()
        assert rounds_of == [SLICES_MAX, 2 * SLICES_MAX]
        assert len(set(turn_of)) >= SLICES_MAX, "no other task had a turn in a round"


async def test_what_a_session_expects_at_the_end_of_the_round_goes_along_with_what_it_says_now() -> None:
    sends: list[bytes] = []
    expecting: list[Recorder] = []

    def prepare(session: Recorder) -> None:
        note_sends(session, sends)

        def answer(data: bytes) -> None:
            session.connection.write(b"now ")
            if data == b"expect":
                session.connection.expect()
                expecting.append(session)

        session.on_receive = answer

    def after_turn() -> None:
        while expecting:
            expecting.pop().connection.write(b"later ")

    sessions = Sessions(prepare)
    async with serving("poll", sessions, after_turn=after_turn) as served:
        client, session = await sessions.join(served)
        await client.send_all(b"expect")
        assert await read_all(client, 10) == b"now later "
        assert sends == [b"now later "]
        await client.send_all(b"nothing")
        assert await read_all(client, 4) == b"now "
        session.connection.expect()  # not in a round: nothing that ends would bring more
        await client.send_all(b"nothing")
        assert await read_all(client, 4) == b"now "


async def test_a_call_from_outside_wakes_the_parked_driver() -> None:
    sessions = Sessions(lambda session: session.connection.pause_reading())
    async with serving("poll", sessions) as served:
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
    async with serving("poll", sessions) as served:
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
        async with serving("poll", sessions, after_turn=after_turn) as served:
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
    async with serving("poll", Quiet) as served:
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
