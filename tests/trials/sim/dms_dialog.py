"""A client's end of one DMS connection: frames out and in, in the words of DMS's PROTOCOL.md."""

import struct

from tests.trials.sim.probe_client import Gone, Talk
from tests.trials.sim.world import BrokenPromise

HEADER = struct.Struct(">IIBBHI")
MAGIC = 0xDEADBEEF

HANDSHAKE, HANDSHAKE_ACK = 0x01, 0x02
CREATE, DELETE, LIST, PRODUCE = 0x11, 0x13, 0x15, 0x21
CONSUME, DELIVER = 0x31, 0x34
ACK, NACK, DISCONNECT, ERROR = 0x41, 0x43, 0x51, 0xFE

FULL, MISSING, EXISTS, TIMEOUT, PROTOCOL, TYPE, INTERNAL = 1, 2, 3, 4, 5, 9, 10

Frame = tuple[int, int, int, bytes]
"""Type, status, message id, payload."""


def pack(type_: int, message_id: int, payload: bytes = b"") -> bytes:
    return HEADER.pack(MAGIC, len(payload), type_, 1, 0, message_id) + payload


def named(queue: str, rest: bytes = b"") -> bytes:
    """A payload that begins with a queue's name."""
    return len(queue.encode()).to_bytes(2, "big") + queue.encode() + rest


class DmsDialog(Talk):
    """Frames over a wire. Raises Gone when the connection ends, BrokenPromise on nonsense."""

    async def frame(self) -> Frame:
        """The next one. Who is cancelled while waiting for it has taken nothing of it."""
        while (end := self._end()) is None:
            await self._more()
        _, _, type_, _, status, message_id = HEADER.unpack_from(self._buffer)
        payload = bytes(self._buffer[HEADER.size : end])
        del self._buffer[:end]
        self._world.say(f"{self._who} < {type_:#04x} {status} {message_id:#x} {payload[:40]!r}")
        if type_ == DISCONNECT:
            raise Gone
        return type_, status, message_id, payload

    def _end(self) -> int | None:
        if len(self._buffer) < HEADER.size:
            return None
        magic, length, _, version, _, _ = HEADER.unpack_from(self._buffer)
        if magic != MAGIC or length > 4096 or version != 1:
            raise BrokenPromise(f"{self._who} was sent what is no frame: {bytes(self._buffer[:32])!r}")
        end = HEADER.size + int(length)
        return end if len(self._buffer) >= end else None

    async def answer(self, type_: int, message_id: int) -> tuple[int, bytes]:
        """The reply to a request of this type, while no CONSUME waits: status and payload."""
        came, status, came_id, payload = await self.frame()
        if came_id != message_id or came not in (type_ + 1, ERROR) or (came == ERROR) != (status != 0):
            raise BrokenPromise(f"{self._who} asked {type_:#04x} {message_id}, and got {came:#04x} {came_id}")
        return status, payload

    async def shake_hands(self) -> None:
        await self.send(pack(HANDSHAKE, 1, b"sim"), "HANDSHAKE")
        status, payload = await self.answer(HANDSHAKE, 1)
        if status:
            raise BrokenPromise(f"{self._who} was not greeted: {status} {payload!r}")
