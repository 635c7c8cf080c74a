"""Connections that send nothing are held and closed; others are accepted, however many send nothing."""

import math
import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import attrs
import pytest
import trio
import trio.testing

from shared.net.accept_filter import READY_MAX, AcceptFilter
from shared.net.listeners import bind_tcp
from shared.net.settings import NetSettings
from shared.net.strangers import Strangers

PLACES = 4


@attrs.define(eq=False)
class Port:
    """A listening socket, and what accepts from it."""

    listening: socket.socket
    accepting: AcceptFilter
    clients: AsyncExitStack

    async def connect(self) -> trio.SocketStream:
        stream = await trio.open_tcp_stream(*self.listening.getsockname())
        return await self.clients.enter_async_context(stream)

    async def received(self) -> bytes:
        """What the next one that sent something has sent."""
        with trio.fail_after(30):
            sock, peer = await self.accepting.accept()
        with sock:
            assert peer == f"127.0.0.1:{sock.getpeername()[1]}"
            return sock.recv(100)


@asynccontextmanager
async def port_at(
    silent_seconds: float = math.inf, *, busy: bool = False, **more: Any
) -> AsyncIterator[Port]:
    """`busy`: others are served meanwhile."""
    strangers = Strangers()
    if busy:
        strangers.served_at = math.inf
    (listening,) = bind_tcp("127.0.0.1", 0, NetSettings())
    with listening:
        async with AsyncExitStack() as clients, trio.open_nursery() as nursery:
            accepting = AcceptFilter(
                [listening], strangers, places=lambda: PLACES, silent_seconds=silent_seconds, **more
            )
            nursery.start_soon(accepting.run)
            yield Port(listening, accepting, clients)
            nursery.cancel_scope.cancel()


async def is_closed(stream: trio.SocketStream) -> bool:
    with trio.fail_after(30):
        try:
            return not await stream.receive_some(1)
        except trio.BrokenResourceError:
            return True


@pytest.mark.parametrize("busy", [False, True])
async def test_who_sends_is_accepted_while_silent_ones_hold_every_place(busy: bool) -> None:
    async with port_at(busy=busy) as port:
        silent = [await port.connect() for _ in range(5 * PLACES)]
        sends = await port.connect()
        await sends.send_all(b"hello")
        assert await port.received() == b"hello"
        for stream in silent[: 4 * PLACES]:
            assert await is_closed(stream)
        await silent[-1].send_all(b"late")
        assert await port.received() == b"late"


async def test_who_sends_nothing_in_time_is_closed() -> None:
    async with port_at(silent_seconds=0.01) as port:
        assert await is_closed(await port.connect())


async def test_who_leaves_without_a_byte_is_not_accepted() -> None:
    async with port_at() as port:
        await (await port.connect()).aclose()
        sends = await port.connect()
        await sends.send_all(b"hello")
        assert await port.received() == b"hello"


async def test_those_whom_nobody_takes_yet_wait_and_above_a_bound_the_next_is_closed() -> None:
    async with port_at() as port:
        for number in range(READY_MAX):
            await (await port.connect()).send_all(b"%d" % number)
        await trio.testing.wait_all_tasks_blocked(0.01)
        beyond = await port.connect()
        await beyond.send_all(b"one more")
        assert await is_closed(beyond)
        assert sorted([int(await port.received()) for _ in range(READY_MAX)]) == list(range(READY_MAX))


async def test_what_is_answered_at_once_waits_for_nobody() -> None:
    async with port_at(answer_at_once=lambda data: b"yes" if data == b"alive?" else b"") as port:
        for _ in range(READY_MAX + 1):
            await (await port.connect()).send_all(b"hello")
        asks = await port.connect()
        await asks.send_all(b"alive?")
        with trio.fail_after(5):
            assert b"".join([part async for part in asks]) == b"yes"


async def test_at_the_end_all_are_closed() -> None:
    async with AsyncExitStack() as clients:
        async with port_at() as port:
            port.clients = clients
            silent, sends = await port.connect(), await port.connect()
            await sends.send_all(b"hello")
            await trio.testing.wait_all_tasks_blocked(0.01)
        for stream in (silent, sends):
            assert await is_closed(stream)
