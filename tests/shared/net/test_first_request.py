"""Who connects and says nothing is closed; who has spoken may be silent for ever."""

from contextlib import AsyncExitStack

import pytest
import trio
from trio.testing import MockClock, memory_stream_pair

from shared.access import Access, Required
from shared.net.connection import Connection
from shared.net.session import SessionBase
from tests.shared.net.served import Recorder, Serve, Sessions, everywhere, read_all
from tests.support.connections import StreamServer, running


def speak_at_the_first_byte(session: Recorder) -> None:
    session.connection.await_first_request(b"say something")

    def receive(data: bytes) -> None:
        session.connection.first_request_done()
        session.connection.write(data)

    session.on_receive = receive


async def test_thirty_seconds_from_the_connection_on(autojump_clock: MockClock) -> None:
    server, sessions = StreamServer(), Sessions(speak_at_the_first_byte)
    async with running(server) as nursery:
        pairs = [memory_stream_pair() for _ in range(100)]
        start = trio.current_time()
        for number, (near, far) in enumerate(pairs):
            nursery.start_soon(server.serve, far, sessions)
            await sessions.next()
            if number % 2:
                await near.send_all(b"x")
            await trio.sleep(0.1)
        for number, (near, _) in enumerate(pairs):
            if not number % 2:
                assert await read_all(near) == b"say something"
                assert trio.current_time() - start == pytest.approx(30 + number / 10)
        await trio.sleep(50_000)
        for near, _ in pairs[1::2]:
            await near.send_all(b"y")
            assert await read_all(near, 2) == b"xy"
        assert server.counters.closed == {"silent": 50}
        for near, _ in pairs:
            await near.aclose()


async def test_who_leaves_or_finishes_before_is_not_told(autojump_clock: MockClock) -> None:
    server = StreamServer()

    def prepare(session: Recorder) -> None:
        session.connection.await_first_request(b"say something")
        session.connection.write(b"bye")
        session.connection.finish()

    async with running(server) as nursery:
        async with AsyncExitStack() as stack:
            near, far = memory_stream_pair()
            await stack.enter_async_context(near)
            nursery.start_soon(server.serve, far, Sessions(prepare))
            assert await read_all(near) == b"bye"
        left, far = memory_stream_pair()
        sessions = Sessions(speak_at_the_first_byte)
        nursery.start_soon(server.serve, far, sessions)
        session = await sessions.next()
        await left.aclose()
        await session.lost.wait()
        await trio.sleep(100)
        assert server.counters.closed == {"finished": 2}
        assert server.counters.deadlines <= 1  # that of the lingering close


@everywhere
async def test_silence_ends_over_every_transport(serve: Serve) -> None:
    sessions = Sessions(speak_at_the_first_byte)
    async with serve(sessions, first_request_seconds=0.1) as served:
        speaker, _ = await sessions.join(served)
        await speaker.send_all(b"x")
        assert await read_all(speaker, 1) == b"x"
        silent, session = await sessions.join(served)
        assert await read_all(silent) == b"say something"
        await silent.aclose()  # or the server lingers for a second, in case more comes
        await session.lost.wait()
        await speaker.send_all(b"y")
        assert await read_all(speaker, 1) == b"y"
        assert served.group.counters.closed == {"silent": 1}
        assert served.network.admission.connections == 1


class Silent(SessionBase):
    """One whose client is asked for a login, or not."""

    def __init__(self, connection: Connection, required: Required) -> None:
        super().__init__(connection)
        self.identity.admit(Access({}).guard("echo", required))
        self.identity.await_first_request(b"bye")

    def release(self) -> None:
        pass


@pytest.mark.parametrize(("required", "seconds"), [("never", 30), ("always", 10)])
async def test_where_a_login_is_required_it_is_ten_seconds(
    autojump_clock: MockClock, required: Required, seconds: float
) -> None:
    server = StreamServer()
    async with running(server) as nursery:
        near, far = memory_stream_pair()
        start = trio.current_time()
        nursery.start_soon(server.serve, far, lambda connection: Silent(connection, required))
        assert await read_all(near) == b"bye"
        assert trio.current_time() - start == pytest.approx(seconds)
        await near.aclose()
