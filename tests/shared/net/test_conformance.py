"""What a session may rely on, plain and with TLS."""

import os
import struct
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from shared.errors import RemoteProtocolError
from shared.file_range import FileRange
from shared.net.connection import Connection
from shared.net.outbox import Policy
from shared.net.session import SessionBase
from shared.net.stops import Stop
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

    sessions = Sessions(prepare)
    async with serve(sessions, linger_seconds=10) as served, await served.connect() as client:
        # It reads only when it has sent all, more than any buffers hold: the rest must be taken off its
        # hands.
        await client.send_all(b"x" * 16_000_000)
        assert await read_all(client) == b"ERR what is that\n"
        await client.aclose()
        await (await sessions.next()).lost.wait()
        assert served.group.counters.crashes == 0
        assert served.group.counters.closed == {"protocol error": 1}


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
            crashing.connection.fail(ZeroDivisionError("in a callback of the store's"))
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


class Held(SessionBase):
    """It reads nothing more after its first bytes, until `go`."""

    def __init__(self, connection: Connection) -> None:
        super().__init__(connection)
        self.told = trio.Event()
        self.ended_input = trio.Event()

    def apply(self, data: bytes, at: int) -> int:
        if at == 0 and data.startswith(b"first"):
            self.pause_input(Stop.FIRST_OWN)
            self.connection.write(b"stopped")
            return len(b"first")
        self.connection.write(data[at:])
        return len(data)

    def hang_up(self) -> None:
        super().hang_up()
        self.told.set()

    def input_ended(self) -> None:
        self.ended_input.set()
        self.end()
        self.finish_when_answered()

    def release(self) -> None:
        pass


@everywhere
async def test_a_peer_that_ends_while_its_input_is_held_back_is_known_and_the_rest_is_applied(
    serve: Serve,
) -> None:
    opened: list[Held] = []

    def open_session(connection: Connection) -> Held:
        opened.append(Held(connection))
        return opened[0]

    async with serve(open_session) as served:
        client = await served.connect()
        await client.send_all(b"first")
        assert await read_all(client, 7) == b"stopped"
        rest = b"x" * 40_000  # more than TLS reads at once, less than the socket holds
        await client.send_all(rest)
        transport: Any = client.transport_stream if isinstance(client, trio.SSLStream) else client
        await transport.send_eof()
        (session,) = opened
        await session.told.wait()
        assert not session.ended_input.is_set()
        session.resume_input(Stop.FIRST_OWN)
        assert await read_all(client, len(rest)) == rest
        await session.ended_input.wait()


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


# -- output


@everywhere
async def test_after_turn_runs_after_the_sessions_and_its_writes_leave_too(serve: Serve) -> None:
    unanswered: list[Connection] = []

    def after_turn() -> None:
        while unanswered:
            unanswered.pop().write(b"committed")

    def prepare(session: Recorder) -> None:
        session.on_receive = lambda data: unanswered.append(session.connection)

    async with serve(Sessions(prepare), after_turn=after_turn) as served, await served.connect() as client:
        await client.send_all(b"append")
        assert await read_all(client, 9) == b"committed"


@everywhere
async def test_who_fills_another_connection_is_told_when_there_is_room_again(serve: Serve) -> None:
    """Also where one write did it, and the socket took it all at once afterwards."""
    sessions = Sessions()
    async with serve(sessions) as served:
        producer, publishing = await sessions.join(served)
        consumer, consuming = await sessions.join(served)
        outbox = consuming.connection.outbox
        outbox.bound = 1000
        drained = trio.Event()
        consuming.connection.on_drained = drained.set

        def publish(data: bytes) -> None:
            consuming.connection.write(b"x" * 1001)
            assert outbox.size > outbox.bound

        publishing.on_receive = publish
        await producer.send_all(b"!")
        await drained.wait()
        assert len(await read_all(consumer, 1001)) == 1001


@everywhere
async def test_a_file_range_is_sent_in_its_place_and_then_released(serve: Serve, tmp_path: Path) -> None:
    path = tmp_path / "log"
    content = os.urandom(3_000_000)
    path.write_bytes(content)
    released = []

    with path.open("rb") as file:

        def prepare(session: Recorder) -> None:
            def answer(data: bytes) -> None:
                session.connection.write(b"head")
                session.connection.write_file(
                    FileRange(file.fileno(), 10, 2_500_000, lambda: released.append(True))
                )
                session.connection.write_file(FileRange(file.fileno(), 0, 0, lambda: released.append(True)))
                session.connection.write(b"tail")

            session.on_receive = answer

        async with serve(Sessions(prepare)) as served, await served.connect() as client:
            await client.send_all(b"fetch")
            expected = b"head" + content[10:2_500_010] + b"tail"
            assert await read_all(client, len(expected)) == expected
            assert released == [True, True]


class Late(FileRange):
    """Bytes that are not there before `come`, and then some at a time."""

    def __init__(self, connection: Connection, content: bytes) -> None:
        super().__init__(-1, 0, len(content), lambda: None)
        self.connection = connection
        self.content = content
        self.there = 0

    def read(self, bytes_max: int) -> bytes:
        if self.offset < self.there:
            return self.content[self.offset : min(self.there, self.offset + bytes_max)]
        trio.lowlevel.current_trio_token().run_sync_soon(self.come)
        raise BlockingIOError

    def come(self) -> None:
        self.there = min(self.there + 200_000, len(self.content))
        self.connection.go_on()


@everywhere
async def test_a_range_whose_bytes_come_later_is_sent_in_its_place(serve: Serve) -> None:
    content = os.urandom(1_500_000)

    def prepare(session: Recorder) -> None:
        def answer(data: bytes) -> None:
            session.connection.write(b"head")
            session.connection.write_file(Late(session.connection, content))
            session.connection.write(b"tail")

        session.on_receive = answer

    async with serve(Sessions(prepare)) as served, await served.connect() as client:
        await client.send_all(b"fetch")
        expected = b"head" + content + b"tail"
        assert await read_all(client, len(expected)) == expected


@everywhere
async def test_a_file_shorter_than_its_range_closes_the_connection(serve: Serve, tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"short")
    released = []
    with path.open("rb") as file:

        def prepare(session: Recorder) -> None:
            session.on_receive = lambda data: session.connection.write_file(
                FileRange(file.fileno(), 0, 100, lambda: released.append(True))
            )

        sessions = Sessions(prepare)
        async with serve(sessions) as served, await served.connect() as client:
            await client.send_all(b"fetch")
            await (await sessions.next()).lost.wait()
            assert released == [True]
            assert served.group.counters.closed == {"file ended early": 1}


@everywhere
async def test_a_slow_reader_under_the_wait_policy_is_not_read_from_until_it_has_caught_up(
    serve: Serve,
) -> None:
    """What it asks for is kept up to the bound; then its own requests wait, in its own buffers."""
    sessions = Sessions(echo)
    requests = 20_000_000  # more than any socket's buffers hold
    async with serve(sessions) as served:
        client, session = await sessions.join(served)
        drained: list[int] = []
        session.connection.outbox.bound = 100_000
        session.connection.on_drained = lambda: drained.append(session.connection.outbox.size)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(client.send_all, b"?" * requests)
            await trio.testing.wait_all_tasks_blocked(0.1)
            assert session.connection.outbox.size <= 100_000 + served.network.settings.read_bytes_max
            assert len(session.data) < requests, "all was read although nothing was taken"
            assert len(await read_all(client, requests)) == requests
        assert drained
        assert max(drained) <= 50_000


@everywhere
async def test_a_session_that_stops_at_the_bound_is_told_when_to_go_on(serve: Serve) -> None:
    """A thousand requests of one batch, answered no further than the outbox should hold, then further."""
    pending = 0

    def prepare(session: Recorder) -> None:
        connection = session.connection
        connection.outbox.bound = 100_000

        def answer() -> None:
            nonlocal pending
            while pending and connection.outbox.size <= connection.outbox.bound:
                connection.write(b"x" * 30_000)
                pending -= 1

        def ask(data: bytes) -> None:
            nonlocal pending
            pending += len(data)
            answer()
            assert connection.outbox.size <= 130_000

        session.on_receive, connection.on_drained = ask, answer

    async with serve(Sessions(prepare)) as served, await served.connect() as client:
        await client.send_all(b"?" * 1000)
        assert len(await read_all(client, 30_000_000)) == 30_000_000
        assert pending == 0


@everywhere
async def test_a_slow_consumer_under_the_drop_policy_loses_its_oldest_whole_chunks(serve: Serve) -> None:
    sessions = Sessions()
    async with serve(sessions) as served, await served.connect() as client:
        await client.send_all(b"subscribe")
        connection = (await sessions.next()).connection
        connection.outbox.bound, connection.outbox.policy = 500_000, Policy.DROP
        count = 500
        for number in range(count):  # 50 MB, and nobody reads
            connection.write(b"%08d" % number * 12_500)
            await trio.lowlevel.checkpoint()
        assert connection.outbox.waiting_bytes <= 500_000
        counters = served.group.counters
        assert counters.dropped_chunks == connection.outbox.dropped_chunks > 0
        connection.finish()
        received = await read_all(client)
        chunks = [received[at : at + 100_000] for at in range(0, len(received), 100_000)]
        assert all(chunk == chunk[:8] * 12_500 for chunk in chunks), "a chunk was torn"
        numbers = [int(chunk[:8]) for chunk in chunks]
        assert numbers == sorted(numbers)
        assert numbers[-1] == count - 1, "the newest stays"
        assert len(numbers) + counters.dropped_chunks == count
        assert counters.dropped_bytes == counters.dropped_chunks * 100_000


@everywhere
async def test_a_slow_consumer_under_the_disconnect_policy_is_closed(serve: Serve) -> None:
    sessions = Sessions()
    async with serve(sessions) as served, await served.connect() as client:
        await client.send_all(b"subscribe")
        session = await sessions.next()
        session.connection.outbox.bound = 500_000
        session.connection.outbox.policy = Policy.DISCONNECT
        while not session.connection.closed:
            session.connection.write(b"x" * 100_000)
            await trio.lowlevel.checkpoint()
        await session.lost.wait()
        assert served.group.counters.closed == {"slow consumer": 1}
        assert served.network.backlogs.held_bytes == 0


@everywhere
async def test_a_slow_consumer_holds_up_nobody_else(serve: Serve) -> None:
    sessions = Sessions(echo)
    async with serve(sessions) as served:
        _, slow = await sessions.join(served)
        quick, _ = await sessions.join(served)
        slow.connection.outbox.policy = Policy.DROP
        for _ in range(100):
            slow.connection.write(b"x" * 1_000_000)
        for number in range(50):
            await quick.send_all(b"%d" % number)
            assert await read_all(quick, len(b"%d" % number)) == b"%d" % number


@everywhere
async def test_all_outboxes_together_are_bounded_and_the_largest_pays(serve: Serve) -> None:
    sessions = Sessions()
    async with serve(sessions) as served:
        served.network.backlogs.memory.limit_bytes = 40_000_000
        _, dropping = await sessions.join(served)
        _, largest = await sessions.join(served)
        _, small = await sessions.join(served)
        for session in (dropping, largest, small):
            session.connection.outbox.bound = 1 << 40
        dropping.connection.outbox.policy = Policy.DROP
        for _ in range(20):
            dropping.connection.write(b"x" * 1_000_000)
        small.connection.write(b"x" * 1000)
        while not largest.connection.closed:
            largest.connection.write(b"x" * 1_000_000)
            await trio.lowlevel.checkpoint()  # it may wait for the driver, and is not counted until then
            assert served.network.backlogs.held_bytes <= 40_000_000
        assert served.network.backlogs.times_shed > 0
        assert not small.connection.closed
        assert not dropping.connection.closed
        await largest.lost.wait()
        assert served.group.counters.closed == {"outbox memory": 1}


@everywhere
async def test_what_sessions_hold_of_unfinished_input_counts_with_the_outboxes(serve: Serve) -> None:
    sessions = Sessions()
    async with serve(sessions) as served:
        backlogs = served.network.backlogs
        _, sending = await sessions.join(served)
        _, done = await sessions.join(served)
        _, largest = await sessions.join(served)
        sending.connection.outbox.bound = 1 << 40
        while backlogs.held_bytes < 10_000_000:  # whatever the sockets' buffers hold
            sending.connection.write(b"x" * 1_000_000)
            await trio.testing.wait_all_tasks_blocked()
        unsent = backlogs.held_bytes
        backlogs.memory.limit_bytes = unsent + 20_000_000
        done.connection.hold(10_000_000)
        done.connection.hold(0)  # it came to its end
        largest.connection.hold(15_000_000)
        assert 15_000_000 < backlogs.held_bytes <= unsent + 15_000_000
        assert backlogs.times_shed == 0
        largest.connection.hold(25_000_000)
        await largest.lost.wait()
        largest.connection.hold(30_000_000)  # nobody is there to pay
        assert not done.connection.closed
        assert not sending.connection.closed
        assert served.group.counters.closed == {"input memory": 1}
        assert backlogs.held_bytes <= unsent


@everywhere
async def test_a_connection_goes_on_with_the_session_that_it_is_handed_to(serve: Serve) -> None:
    sessions = Sessions()
    async with serve(sessions) as served:
        client, first = await sessions.join(served)
        second = Recorder(first.connection)
        echo(second)

        def hand_over(data: bytes) -> None:
            first.connection.hand_over(second)
            first.connection.write(b"handed over")

        first.on_receive = hand_over
        async with client:
            await client.send_all(b"header")
            assert await read_all(client, 11) == b"handed over"
            await client.send_all(b"more")
            assert await read_all(client, 4) == b"more"
        await second.lost.wait()
        assert first.calls == ["receive"]
        assert (second.data, second.calls[-1]) == (b"more", "lost")


# -- a drain


@unencrypted
async def test_a_drain_ends_every_connection_once_it_has_said_what_it_owes(serve: Serve) -> None:
    sessions = Sessions(echo)
    async with serve(sessions) as served:
        idle, idle_session = await sessions.join(served)
        waiting, waiting_session = await sessions.join(served)
        owe_an_answer(waiting_session)
        served.group.stop_accepting()
        served.group.drain()
        assert await read_all(idle) == b""
        await idle.aclose()
        await idle_session.lost.wait()
        assert served.group.connections == 1
        await waiting.send_all(b"too late")
        waiting_session.connection.write(b"owed")
        waiting_session.connection.finish()
        assert await read_all(waiting) == b"owed"
        await waiting.aclose()
        await served.group.wait_no_connections()
        assert waiting_session.data == b""


@unencrypted
async def test_a_drain_waits_for_a_session_that_has_paused(serve: Serve) -> None:
    """It still has requests in hand; the end of its input comes when it reads again."""
    sessions = Sessions(lambda session: session.connection.pause_reading())
    async with serve(sessions) as served:
        client, session = await sessions.join(served)
        served.group.stop_accepting()
        served.group.drain()
        await trio.testing.wait_all_tasks_blocked(0.01)
        assert session.calls == ["drain"]
        session.connection.write(b"answer")
        session.connection.resume_reading()
        assert session.calls == ["drain"], "it was told from inside its own call"
        assert await read_all(client) == b"answer"
        await client.aclose()
        await served.group.wait_no_connections()
        assert session.calls == ["drain", "eof", "lost"]


@unencrypted
async def test_a_session_that_fails_in_a_drain_does_not_keep_the_others_from_their_goodbye(
    serve: Serve,
) -> None:
    sessions = Sessions()
    async with serve(sessions) as served:
        crashing, first = await sessions.join(served)
        other, second = await sessions.join(served)
        first.on_drain = lambda: 1 / 0  # type: ignore[assignment]
        second.on_drain = lambda: second.connection.write(b"goodbye")
        served.group.stop_accepting()
        served.group.drain()
        assert await read_all(other) == b"goodbye"
        with suppress(trio.BrokenResourceError):
            assert await read_all(crashing) == b""
        await other.aclose()
        await served.group.wait_no_connections()
        assert first.calls == ["drain", "lost"]
        assert second.calls == ["drain", "eof", "lost"]
        assert served.group.counters.crashes == 1


@unencrypted
async def test_a_drain_waits_for_a_peer_that_has_yet_to_read(serve: Serve) -> None:
    size = 30_000_000
    sessions = Sessions()
    async with serve(sessions) as served:
        client, session = await sessions.join(served)
        session.connection.write(b"x" * size)
        served.group.drain()
        assert session.calls == ["drain"]
        assert len(await read_all(client)) == size
        await client.aclose()
        await served.group.wait_no_connections()
        assert session.calls == ["drain", "eof", "lost"]
