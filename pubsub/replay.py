"""Pub/sub as the target of a replay, by datagrams, and the messages of its recordings.

Datagrams may be lost without an error: at full speed a busy server loses some.
"""

import struct
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from functools import partial

import trio

from pubsub import wire
from pubsub.client import PORT, open_datagrams
from pubsub.wire import (
    DATA_AT,
    DATAGRAM_BYTES_MIN,
    PAYLOAD_BYTES_MIN,
    RECORDED_FRAMES,
    TYPE_AT,
    Kind,
)
from shared.client.dial import How
from shared.recording.blocks import Block
from shared.replaying import Batch, PastMessage, Replays

SENDERS_MAX = 256
"""Open sockets, one for each sender; above this the oldest is closed."""


class DatagramReplay:
    """A pub/sub server's UDP port. `at_sender`: datagrams leave from the recorded senders' addresses."""

    once_each = False

    def __init__(self, host: str, port: int, *, at_sender: bool) -> None:
        self.address = host, port
        self._at_sender = at_sender
        self._sockets: dict[bytes, trio.socket.SocketType] = {}

    def close(self) -> None:
        for sock in self._sockets.values():
            sock.close()

    def refuses(self, topic: bytes, message: PastMessage) -> str | None:
        try:
            wire.datagram(topic, _kind(message), message.payload)
        except ValueError as error:
            return str(error)
        return None

    async def send(self, batch: Batch, writer: str, seq: int) -> None:
        for topic, message in batch:
            sock = await self._socket(message.sender if self._at_sender else b"")
            await sock.send(wire.datagram(topic, _kind(message), message.payload))

    async def _socket(self, sender: bytes) -> trio.socket.SocketType:
        sock = self._sockets.get(sender)
        if sock is None:
            if len(self._sockets) >= SENDERS_MAX:
                self._sockets.pop(next(iter(self._sockets))).close()
            sock = self._sockets[sender] = await self._open(sender)
        return sock

    async def _open(self, sender: bytes) -> trio.socket.SocketType:
        """Open a socket, bound to the sender's address if that is this machine's and free."""
        if sender:
            host, _, port = sender.decode("ascii", "replace").rpartition(":")
            with suppress(OSError, ValueError, OverflowError):
                return await open_datagrams(*self.address, (host.strip("[]"), int(port)))
        return await open_datagrams(*self.address)


def _kind(message: PastMessage) -> Kind:
    return message.own if isinstance(message.own, Kind) else Kind.STRING


@asynccontextmanager
async def target(
    host: str, port: int | None, how: How, *, at_sender: bool = False
) -> AsyncIterator[DatagramReplay]:
    """Open the target. Datagrams have no login: `how` is not used. Raises OSError for an unknown host."""
    found = DatagramReplay(host, PORT if port is None else port, at_sender=at_sender)
    try:
        (await open_datagrams(*found.address)).close()
        yield found
    finally:
        found.close()


def recorded(block: Block, frames: bytes) -> Iterator[PastMessage]:
    """Raises ValueError."""
    if block.codec != RECORDED_FRAMES:
        raise ValueError(f"codec {block.codec}")
    lengths_end = 2 * block.messages
    if lengths_end > len(frames):
        raise ValueError("its lengths reach past its end")
    at = lengths_end
    for (length,) in struct.iter_unpack(">H", frames[:lengths_end]):
        end = at + length + DATA_AT - DATAGRAM_BYTES_MIN
        kind = frames[at + TYPE_AT] if end <= len(frames) and length >= DATAGRAM_BYTES_MIN else -1
        if kind not in PAYLOAD_BYTES_MIN:
            raise ValueError("a datagram that is too short, or reaches past its end")
        frame = frames[at:end]
        topic, sender = wire.frame_topic(frame), wire.frame_sender(frame)
        yield PastMessage(topic, frame[DATA_AT:], sender=sender, own=Kind(kind))
        at = end


REPLAYS = Replays(target, recorded=recorded, open_at_sender=partial(target, at_sender=True))
