"""A client that writes header and payload apart, over a real socket whose system joins small writes."""

import socket
from collections.abc import Awaitable, Callable
from functools import partial
from statistics import median

import pytest
import trio

from dms import wire
from dms.opening import open_engine
from dms.refusals import Refusals
from dms.session import Session
from dms.wire import Frame, Type
from shared.plugin import Context
from tests.dms.world import LOG, MEMORY, NAME
from tests.shared.net.served import serving
from tests.support.fake_disk import FakeDisk
from tests.support.stores import open_store

PUT_OFF_SECONDS = 0.04
"""For so long a system puts an acknowledgement off that it was not told to send (Linux: TCP_ATO_MIN)."""
ROUNDS = 20
WARM_ROUNDS = 40
"""Before it puts any off, a system sends some at once."""


@pytest.mark.skipif(not hasattr(socket, "TCP_QUICKACK"), reason="where acknowledgements are put off so")
@pytest.mark.parametrize("kind", ["poll", "stream"])
async def test_a_payload_behind_its_header_does_not_wait_for_an_acknowledgement(kind: str) -> None:
    engine = await open_engine(Context(await open_store(FakeDisk()), LOG), MEMORY)
    async with serving(
        kind, partial(Session, engine=engine, refusals=Refusals(engine.counts, LOG))
    ) as served:
        with trio.socket.socket() as client:  # TCP_NODELAY is not set
            await client.connect(served.address)
            ask = partial(_ask, client, _reader(client))
            await ask((wire.pack(Type.HANDSHAKE, 1),), 1)
            await ask((wire.pack(Type.CREATE_QUEUE, 2, NAME),), 1)
            produce = wire.pack(Type.PRODUCE, 3, NAME + b"hello")
            consume = wire.pack(Type.CONSUME, 4, NAME)
            for _ in range(WARM_ROUNDS):
                await ask((produce,), 1)
                await _settle(ask, consume)
            seconds = []
            for _ in range(ROUNDS):
                begun = trio.current_time()
                # A CONSUME that waits has no answer, with which an acknowledgement could go along.
                first = consume + produce[: wire.HEADER_BYTES]
                (delivery,) = await _settle(ask, first, produce[wire.HEADER_BYTES :], answers=2)
                assert delivery[4] == b"hello"
                seconds.append(trio.current_time() - begun)
    assert median(seconds) < PUT_OFF_SECONDS / 2


Ask = Callable[[tuple[bytes, ...], int], Awaitable[list[Frame]]]


async def _settle(ask: Ask, *writes: bytes, answers: int = 1) -> list[Frame]:
    """Consume, and acknowledge what came."""
    deliveries = [frame for frame in await ask(writes, answers) if frame[0] == Type.DELIVER]
    for frame in deliveries:
        await ask((wire.pack(Type.ACK, frame[3]),), 1)
    return deliveries


def _reader(client: trio.socket.SocketType) -> Callable[[int], Awaitable[list[Frame]]]:
    async def read(count: int) -> list[Frame]:
        data, frames = b"", list[Frame]()
        while len(frames) < count:
            data += await client.recv(4096)
            frames, _ = wire.decode(data)
        return frames

    return read


async def _ask(
    client: trio.socket.SocketType,
    read: Callable[[int], Awaitable[list[Frame]]],
    writes: tuple[bytes, ...],
    answers: int,
) -> list[Frame]:
    for data in writes:
        await client.send(data)
    return await read(answers)
