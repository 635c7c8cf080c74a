"""What a session may rely on under either driver: how a drain ends it."""

import trio
import trio.testing

from tests.shared.net.served import (
    Serve,
    Sessions,
    echo,
    owe_an_answer,
    read_all,
    unencrypted,
)


@unencrypted
async def test_a_drain_ends_every_connection_once_it_has_said_what_it_owes(serve: Serve) -> None:
    sessions = Sessions(echo)
    async with serve(sessions) as served:
        idle, idle_session = await sessions.join(served)
        owed, owed_session = await sessions.join(served)
        owe_an_answer(owed_session)
        served.group.stop_accepting()
        served.group.drain()
        assert await read_all(idle) == b""
        await idle.aclose()
        await idle_session.lost.wait()
        assert served.group.connections == 1
        await owed.send_all(b"too late")
        owed_session.connection.write(b"owed")
        owed_session.connection.finish()
        assert await read_all(owed) == b"owed"
        await owed.aclose()
        await served.group.wait_no_connections()
        assert owed_session.data == b""


@unencrypted
async def test_a_drain_waits_for_a_session_that_has_paused(serve: Serve) -> None:
    """It still has requests in hand; the end of its input comes when it reads again."""
    sessions = Sessions(lambda session: session.connection.pause_reading())
    async with serve(sessions) as served:
        client, session = await sessions.join(served)
        served.group.stop_accepting()
        served.group.drain()
        await trio.testing.wait_all_tasks_blocked(0.01)
        assert session.calls == []
        session.connection.write(b"answer")
        session.connection.resume_reading()
        assert session.calls == [], "it was told from inside its own call"
        assert await read_all(client) == b"answer"
        await client.aclose()
        await served.group.wait_no_connections()
        assert session.calls == ["eof", "lost"]


@unencrypted
async def test_a_drain_waits_for_a_peer_that_has_yet_to_read(serve: Serve) -> None:
    size = 30_000_000
    sessions = Sessions()
    async with serve(sessions) as served:
        client, session = await sessions.join(served)
        session.connection.write(b"x" * size)
        served.group.drain()
        assert session.calls == []
        assert len(await read_all(client)) == size
        await client.aclose()
        await served.group.wait_no_connections()
        assert session.calls == ["eof", "lost"]
