"""A connection on which requests are answered in order: what it bounds, and how it is made again."""

import pytest
import trio
import trio.testing

from shared.client.dial import Address, Disconnected, Unreachable
from shared.client.pipelining import UNANSWERED_BYTES_MAX, PipelinedConnection
from shared.client.reconnecting import Reconnecting
from shared.client.retry import STOOD_SECONDS
from shared.client.trio_loop import trio_loop


class Lines(PipelinedConnection[None]):
    """Each line of the server's answers one request."""

    def receive(self, data: bytearray) -> int:
        for _ in range(data.count(b"\n")):
            self.answered()
        return data.rfind(b"\n") + 1

    def fail(self, answer: None, error: Disconnected) -> None: ...


async def test_what_is_unanswered_is_bounded_also_where_those_who_asked_are_cancelled(
    autojump_clock: trio.testing.MockClock,
) -> None:
    ours, _ = trio.testing.lockstep_stream_pair()
    asked = 0
    async with trio_loop() as loop:
        link = Lines(loop)
        loop.attach(ours, link)
        for _ in range(1000):
            with trio.move_on_after(1):
                await link.ask(bytes(64 * 1024), None)
                asked += 64 * 1024
    assert UNANSWERED_BYTES_MAX <= asked <= UNANSWERED_BYTES_MAX + 2 * 64 * 1024


async def test_a_lost_connection_is_made_again_by_the_first_who_needs_it_and_shared(
    autojump_clock: trio.testing.MockClock,
) -> None:
    servers: list[trio.abc.Stream] = []

    async def open_link() -> Lines:
        if len(servers) == 1:
            servers.append(servers[0])
            raise ConnectionRefusedError("it is away for a moment")
        ours, theirs = trio.testing.memory_stream_pair()
        servers.append(theirs)
        link = Lines(loop)
        loop.attach(ours, link)
        return link

    async with trio_loop() as loop:
        connection = Reconnecting(loop, Address("host", 1, kind="test"), 30.0, open_link)
        first = await connection.connected()
        await servers[0].aclose()
        await trio.testing.wait_all_tasks_blocked()
        assert first.lost is not None
        found: list[Lines] = []

        async def need() -> None:
            found.append(await connection.connected())

        async with trio.open_nursery() as askers:
            askers.start_soon(need)
            askers.start_soon(need)
        assert found[0] is found[1] is not first
        assert len(servers) == 3
        connection.close()
        with pytest.raises(Unreachable, match="the client is closed"):
            await found[0].ask(b"x", None)


async def test_a_server_that_closes_without_an_answer_is_given_up_however_long_it_waits(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async def open_link() -> Lines:
        ours, theirs = trio.testing.memory_stream_pair()
        nursery.start_soon(close_late, theirs)
        link = Lines(loop)
        loop.attach(ours, link)
        return link

    async def close_late(stream: trio.abc.Stream) -> None:
        await trio.sleep(STOOD_SECONDS * 2)
        await stream.aclose()

    async def ask() -> None:
        link = await connection.connected()
        await link.ask(b"x", None)
        await trio.sleep(STOOD_SECONDS * 2)
        await trio.testing.wait_all_tasks_blocked()
        assert link.lost is not None
        raise link.lost

    async with trio_loop() as loop, trio.open_nursery() as nursery:
        connection = Reconnecting(loop, Address("host", 1, kind="test"), 30.0, open_link)
        for _ in range(2):
            begun = trio.current_time()
            with pytest.raises(Unreachable, match="no connection stays: the server"), trio.fail_after(600):
                await connection.repeat(ask)
            assert 30 <= trio.current_time() - begun < 30 + 3 * STOOD_SECONDS


async def test_who_waits_for_a_server_that_is_away_is_told_when_the_client_is_closed(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async def open_link() -> Lines:
        raise ConnectionRefusedError("nobody there")

    async with trio_loop() as loop, trio.open_nursery() as nursery:
        connection = Reconnecting(loop, Address("host", 1, kind="test"), 30.0, open_link)

        async def close() -> None:
            await trio.sleep(1)
            connection.close()

        nursery.start_soon(close)
        with pytest.raises(Unreachable, match="the client is closed"):
            await connection.connected()
        assert trio.current_time() < 5
