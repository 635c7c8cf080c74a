"""What a session may rely on, under either driver and over every transport: input, and ends."""

import os
import struct
from contextlib import nullcontext

import pytest
import trio
import trio.testing

from shared.errors import RemoteProtocolError
from shared.net.connection import Connection
from tests.shared.net.served import (
    Recorder,
    Serve,
    Sessions,
    echo,
    everywhere,
    owe_an_answer,
    read_all,
    unencrypted,
)


@everywhere
async def test_what_is_written_while_receiving_is_sent_when_the_session_returns(serve: Serve) -> None:
    async with serve(Sessions(echo)) as served, await served.connect() as client:
        for number in range(20):
            await client.send_all(b"%d" % number)
            assert await read_all(client, len(b"%d" % number)) == b"%d" % number


@everywhere
async def test_a_hundred_thousand_requests_in_one_stream_are_answered_in_order(serve: Serve) -> None:
    def prepare(session: Recorder) -> None:
        rest = b""

        def answer(data: bytes) -> None:
            nonlocal rest
            *lines, rest = (rest + data).split(b"\n")
            for line in lines:
                session.connection.write(b"<%s>\n" % line)

        session.on_receive = answer

    requests = b"".join(b"%d\n" % number for number in range(100_000))
    answers = b"".join(b"<%d>\n" % number for number in range(100_000))
    async with (
        serve(Sessions(prepare)) as served,
        await served.connect() as client,
        trio.open_nursery() as nursery,
    ):
        nursery.start_soon(client.send_all, requests)
        assert await read_all(client, len(answers)) == answers


@everywhere
async def test_input_that_comes_byte_by_byte_loses_nothing(serve: Serve) -> None:
    sessions = Sessions(echo)
    text = os.urandom(300)
    async with serve(sessions) as served, await served.connect() as client:
        for number in range(len(text)):
            await client.send_all(text[number : number + 1])
        assert await read_all(client, len(text)) == text
        assert (await sessions.next()).data == text


@everywhere
async def test_megabytes_go_through_in_both_directions_at_once(serve: Serve) -> None:
    text = os.urandom(1 << 20) * 8
    async with (
        serve(Sessions(echo)) as served,
        await served.connect() as client,
        trio.open_nursery() as nursery,
    ):
        nursery.start_soon(client.send_all, text)
        assert await read_all(client, len(text)) == text


@unencrypted
async def test_a_half_closed_peer_gets_what_it_is_owed_and_then_the_end(serve: Serve) -> None:
    sessions = Sessions(owe_an_answer)
    async with serve(sessions) as served, await served.connect() as client:
        await client.send_all(b"request")
        await client.send_eof()  # type: ignore[attr-defined]
        session = await sessions.next()
        await session.told_eof.wait()
        session.connection.write(b"answer")
        session.connection.finish()
        assert await read_all(client) == b"answer"
        await session.lost.wait()
        assert session.calls[-2:] == ["eof", "lost"]
        assert served.group.counters.closed == {"finished": 1}


@everywhere
async def test_an_error_text_arrives_although_input_is_left_unread(serve: Serve) -> None:
    def prepare(session: Recorder) -> None:
        def refuse(data: bytes) -> None:
            raise RemoteProtocolError("no", reply=b"ERR what is that\n")

        session.on_receive = refuse

    async with serve(Sessions(prepare), linger_seconds=10) as served, await served.connect() as client:
        # It reads only when it has sent all, more than any buffers hold: the rest must be taken off its
        # hands.
        await client.send_all(b"x" * 16_000_000)
        assert await read_all(client) == b"ERR what is that\n"
        assert served.group.counters.crashes == 0


async def _send_ignoring_errors(stream: trio.abc.Stream, data: bytes) -> None:
    try:
        await stream.send_all(data)
    except trio.BrokenResourceError:
        pass


@everywhere
async def test_the_rest_of_the_input_is_not_delivered_after_finish(serve: Serve) -> None:
    sessions = Sessions(
        lambda session: setattr(session, "on_receive", lambda data: session.connection.finish())
    )
    async with serve(sessions) as served, await served.connect() as client:
        await client.send_all(b"one")
        session = await sessions.next()
        assert await read_all(client) == b""
        await _send_ignoring_errors(client, b"two")
        await client.aclose()
        await session.lost.wait()
        assert session.data == b"one"
        assert session.calls == ["receive", "lost"]


@everywhere
@pytest.mark.parametrize("when", ["it is given input", "others have their turn", "there is room again"])
async def test_a_session_that_crashes_costs_its_own_connection_only(serve: Serve, when: str) -> None:
    sessions = Sessions(echo)
    async with serve(sessions) as served:
        good, _ = await sessions.join(served)
        bad, crashing = await sessions.join(served)
        if when == "it is given input":
            crashing.on_receive = lambda data: [][0]
            await bad.send_all(b"1")
        elif when == "others have their turn":
            crashing.connection.crashed(ZeroDivisionError("in a callback of the store's"))
        else:
            crashing.connection.outbox.bound = 1000
            crashing.connection.on_drained = lambda: [][0]
            await bad.send_all(b"x" * 1001)
        await crashing.lost.wait()
        if when != "there is room again":
            with pytest.raises(trio.BrokenResourceError) if _is_tls(bad) else nullcontext():
                assert await read_all(bad) == b""
        await good.send_all(b"2")
        assert await read_all(good, 1) == b"2"
        assert served.group.counters.crashes == 1
        assert served.group.counters.closed == {"crash": 1}


def _is_tls(stream: trio.abc.Stream) -> bool:
    return isinstance(stream, trio.SSLStream)


@everywhere
async def test_a_session_that_cannot_be_opened_closes_its_connection(serve: Serve) -> None:
    def refuse(connection: Connection) -> Recorder:
        raise ZeroDivisionError

    async with serve(refuse) as served:
        client = await served.connect()
        with pytest.raises(trio.BrokenResourceError) if _is_tls(client) else nullcontext():
            assert await read_all(client) == b""
        assert served.group.counters.closed == {"crash": 1}
        assert served.network.admission.connections == 0


@everywhere
async def test_a_connection_lost_is_told_once_whoever_ends_it(serve: Serve) -> None:
    sessions = Sessions(echo)
    async with serve(sessions) as served:
        client, by_peer = await sessions.join(served)
        _, by_abort = await sessions.join(served)
        _, by_stop = await sessions.join(served)
        await trio.aclose_forcefully(client)
        await by_peer.lost.wait()
        by_abort.connection.abort("test")
        by_abort.connection.abort("test")
        by_abort.connection.finish()
        by_abort.connection.write(b"nobody hears this")
        assert by_abort.connection.closed
        assert "lost" not in by_abort.calls, "it was told from inside its own call"
        await by_abort.lost.wait()
    assert [each.calls.count("lost") for each in (by_peer, by_abort, by_stop)] == [1, 1, 1]
    closed = served.group.counters.closed
    assert (closed["test"], closed["shutdown"], sum(closed.values())) == (1, 1, 3)
    assert served.network.admission.connections == 0


@unencrypted
async def test_a_peer_that_resets_amid_a_frame_is_gone_and_no_more(serve: Serve) -> None:
    sessions = Sessions(echo)
    async with serve(sessions) as served:
        sock = served.connect_socket()
        sock.send(b"half a fr")
        session = await sessions.next()
        while session.data != b"half a fr":
            await trio.lowlevel.checkpoint()
        sock.setsockopt(1, 13, struct.pack("ii", 1, 0))  # SOL_SOCKET, SO_LINGER: close resets
        sock.close()
        await session.lost.wait()
        assert session.calls[-1] == "lost"
        assert served.group.counters.crashes == 0


@everywhere
async def test_a_deadline_comes_once_and_may_be_replaced(serve: Serve) -> None:
    passed = trio.Event()

    def prepare(session: Recorder) -> None:
        def start(data: bytes) -> None:
            now = session.connection.now
            session.connection.wake_at(now + 3600)
            session.connection.wake_at(now + 0.01)

        def due(now: float) -> None:
            assert now == session.connection.now
            session.connection.write(b"late")
            passed.set()

        session.on_receive, session.on_time = start, due

    sessions = Sessions(prepare)
    async with serve(sessions) as served, await served.connect() as client:
        await client.send_all(b"go")
        assert await read_all(client, 4) == b"late"
        session = await sessions.next()
        assert session.calls == ["receive", "deadline"]
        assert served.group.counters.deadlines == 1


@everywhere
@pytest.mark.parametrize("at", ["the start", "a request"])
async def test_reading_pauses_and_resumes_when_the_session_says(serve: Serve, at: str) -> None:
    def prepare(session: Recorder) -> None:
        session.on_receive = lambda data: session.connection.pause_reading()
        if at == "the start":
            session.connection.pause_reading()

    sessions = Sessions(prepare)
    async with serve(sessions) as served:
        client, session = await sessions.join(served)
        if at == "a request":
            await client.send_all(b"first")
            while session.data != b"first":
                await trio.lowlevel.checkpoint()
        session.data.clear()
        await client.send_all(b"one")
        await trio.testing.wait_all_tasks_blocked(0.01)
        assert session.data == b""
        session.on_receive = session.connection.write
        session.connection.resume_reading()
        assert await read_all(client, 3) == b"one"


@everywhere
async def test_a_deadline_of_a_connection_that_is_gone_does_not_come(serve: Serve) -> None:
    sessions = Sessions()
    async with serve(sessions) as served:
        _, gone = await sessions.join(served)
        _, here = await sessions.join(served)
        passed = trio.Event()
        here.on_time = lambda now: passed.set()
        now = gone.connection.now
        gone.connection.wake_at(now + 0.02)
        here.connection.wake_at(now + 0.03)
        gone.connection.abort("test")
        await passed.wait()
        assert gone.calls == ["lost"]
        assert (served.group.counters.deadlines, served.group.counters.crashes) == (1, 0)


@everywhere
async def test_a_session_that_crashes_at_its_end_is_counted_and_others_are_told_of_theirs(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    sessions = Sessions()
    async with serve(sessions) as served:
        _, bad = await sessions.join(served)
        _, good = await sessions.join(served)
        monkeypatch.setattr(bad, "connection_lost", lambda: [][0])
        bad.connection.abort("test")
        good.connection.abort("test")
        await good.lost.wait()
        assert served.group.counters.crashes == 1


@everywhere
async def test_why_a_connection_ended_is_counted(serve: Serve) -> None:
    def prepare(session: Recorder) -> None:
        def refuse(data: bytes) -> None:
            raise RemoteProtocolError("no", reply=b"ERR")

        session.on_receive = refuse

    sessions = Sessions(prepare)
    async with serve(sessions) as served:
        client, session = await sessions.join(served)
        await client.send_all(b"what")
        assert await read_all(client) == b"ERR"
        await client.aclose()
        await session.lost.wait()
        assert served.group.counters.closed == {"protocol error": 1}


@unencrypted
async def test_what_is_cut_short_ends_in_a_reset_and_not_as_if_it_were_whole(serve: Serve) -> None:
    sessions = Sessions()
    async with serve(sessions, outbox_bytes_max=1 << 30) as served:
        client, session = await sessions.join(served)
        session.connection.write(bytes(50_000_000))
        session.connection.abort("test")
        with pytest.raises(trio.BrokenResourceError):
            await read_all(client)
        assert session.connection.tcp_info() is None  # type: ignore[attr-defined]
