"""A client's end of one connection, whatever is spoken there: bytes out, bytes in, and the trace of both."""

import trio

from tests.trials.sim.network import Wire
from tests.trials.sim.probe_client import Gone
from tests.trials.sim.world import World


class Talk:
    """What all dialogs rest on. Raises Gone when the connection ends."""

    def __init__(self, world: World, wire: Wire, who: str) -> None:
        self._world = world
        self.wire = wire
        self._who = who
        self._buffer = bytearray()
        """What came, and nobody has taken yet."""

    async def send(self, data: bytes, what: str = "") -> None:
        """`what` is for the trace, where the bytes say little."""
        shown = data if len(data) <= 80 else data[:60] + b"..." + data[-20:]
        self._world.say(f"{self._who} > {len(data)}: {what or repr(shown)}")
        try:
            await self.wire.client.send_all(data)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            raise Gone from None

    async def half_close(self) -> None:
        try:
            await self.wire.client.send_eof()
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            raise Gone from None

    async def _more(self) -> None:
        """Who is cancelled while waiting for it has taken nothing."""
        try:
            data = await self.wire.client.receive_some(65536)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            raise Gone from None
        if not data:
            raise Gone
        self._buffer += data
