"""asyncio's loop, as other loops of its kind have it."""

import asyncio

from shared.client.asyncio_loop import AsyncioTransport
from shared.client.dial import Disconnected
from shared.client.loop import ClientConnection


class Silent(ClientConnection):
    def received(self, data: bytes | bytearray) -> None: ...

    def ended(self, error: Disconnected | None) -> None: ...


class UvloopTransport:
    """It is none of asyncio's classes."""

    def __init__(self) -> None:
        self.written: list[bytes] = []

    def set_write_buffer_limits(self, high: int, low: int) -> None: ...

    def write(self, data: bytes) -> None:
        self.written.append(data)


def test_what_is_written_in_one_turn_goes_out_together_by_any_loop_s_transport() -> None:
    theirs, connection = UvloopTransport(), Silent()

    async def program() -> None:
        ours = AsyncioTransport(asyncio.get_running_loop(), connection, set())
        ours.connection_made(theirs)  # type: ignore[arg-type]
        connection.transport.write(b"one ")
        connection.transport.write(b"two")
        await connection.transport.drain()

    asyncio.run(program())
    assert theirs.written == [b"one two"]
