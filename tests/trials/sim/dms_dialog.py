"""A client's end of one DMS connection: frames out and in, in the words of DMS's PROTOCOL.md."""

from collections import deque

import attrs

from tests.support import dms_spec as dms
from tests.support.promises import BrokenPromiseError
from tests.trials.sim.probe_client import Gone, Talk


@attrs.define(eq=False)
class DmsDialog(Talk):
    """Frames over a wire. Raises Gone when the connection ends, BrokenPromiseError on nonsense."""

    _frames: deque[dms.Reply] = attrs.field(factory=deque, init=False)
    """What came whole, and nobody has taken yet."""

    async def frame(self) -> dms.Reply:
        """The next one. Who is cancelled while waiting for it has taken nothing of it."""
        while not self._frames:
            await self._more()
            try:
                self._frames.extend(dms.parse(self._buffer))
            except ValueError as error:
                raise BrokenPromiseError(f"{self._who} was sent what is no frame: {error}") from None
        type_, status, message_id, payload = self._frames.popleft()
        self._world.say(f"{self._who} < {type_:#04x} {status} {message_id:#x} {payload[:40]!r}")
        if type_ == dms.DISCONNECT:
            raise Gone
        return type_, status, message_id, payload

    async def answer(self, type_: int, message_id: int) -> tuple[int, bytes]:
        """The reply to a request of this type, while no CONSUME waits: status and payload."""
        came, status, came_id, payload = await self.frame()
        if (
            came_id != message_id
            or came not in (dms.answer_to(type_), dms.ERROR)
            or (came == dms.ERROR) != (status != 0)
        ):
            raise BrokenPromiseError(
                f"{self._who} asked {type_:#04x} {message_id}, and got {came:#04x} {came_id}"
            )
        return status, payload

    async def shake_hands(self) -> None:
        await self.send(dms.frame(dms.HANDSHAKE, 1, b"sim"), "HANDSHAKE")
        status, payload = await self.answer(dms.HANDSHAKE, 1)
        if status:
            raise BrokenPromiseError(f"{self._who} was not greeted: {status} {payload!r}")
