"""The end of what is only sent: success is that the server has read it all, and nothing less."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio
from trio.testing import MockClock, memory_stream_pair

from shared.client.dial import Disconnected
from shared.client.sender import CLOSING_SECONDS, Sender
from shared.client.trio_loop import trio_loop


@asynccontextmanager
async def attached(near: trio.abc.Stream) -> AsyncIterator[Sender]:
    """A sender whose server is a stream in memory."""
    async with trio_loop() as loop:
        sender = Sender(loop)
        loop.attach(near, sender)
        yield sender


async def test_all_is_read_where_the_server_closes_behind_our_end() -> None:
    near, far = memory_stream_pair()
    async with attached(near) as sender, trio.open_nursery() as nursery:

        async def server() -> None:
            assert await far.receive_some() == b"a"
            assert await far.receive_some() == b""
            await far.aclose()

        nursery.start_soon(server)
        await sender.send(b"a")
        await sender.finish()


async def test_a_server_that_reads_no_more_is_no_success(autojump_clock: MockClock) -> None:
    near, _far = memory_stream_pair()
    async with attached(near) as sender:
        await sender.send(b"a")
        began = trio.current_time()
        with pytest.raises(Disconnected, match="not read everything in 30 s"):
            await sender.finish()
        assert trio.current_time() - began == pytest.approx(CLOSING_SECONDS, abs=1)


async def test_a_server_that_closes_before_our_end_has_not_read_all(autojump_clock: MockClock) -> None:
    near, far = memory_stream_pair()
    async with attached(near) as sender:
        await sender.send(b"a")
        await far.send_eof()
        with pytest.raises(Disconnected, match="closed before it had read everything"):
            await sender.finish()


@pytest.mark.parametrize("ends_first", [True, False])
async def test_a_server_that_answers_where_nothing_is_answered_is_another(
    autojump_clock: MockClock, ends_first: bool
) -> None:
    near, far = memory_stream_pair()
    async with attached(near) as sender:
        await sender.send(b"a")
        if not ends_first:
            await far.send_all(b"ERR SYNTAX\n")
        async with trio.open_nursery() as nursery:

            async def server() -> None:
                while await far.receive_some():
                    pass
                if ends_first:
                    await far.send_all(b"ERR SYNTAX\n")
                await far.send_eof()

            nursery.start_soon(server)
            with pytest.raises(Disconnected, match="another protocol: it says b'ERR SYNTAX"):
                await sender.finish()
