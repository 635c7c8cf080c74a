"""Pub/sub as the target of a replay, by datagrams, and the messages of its recordings.

Datagrams may be lost without an error: at full speed a busy server loses some.
"""

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress

from pubsub import wire
from pubsub.client import Publisher, open_datagrams
from pubsub.recording import recorded_frames
from pubsub.wire import DATA_AT, TYPE_AT, Kind
from shared.client.loop import Loop
from shared.client.running import open_loop
from shared.recording.blocks import Block
from shared.replaying import Batch, PastMessage, Replays, Target, TargetAddress

SENDERS_MAX = 256
"""Open sockets, one for each sender; above this the oldest is closed."""


@asynccontextmanager
async def target(address: TargetAddress) -> AsyncIterator[Target]:
    """A pub/sub server's UDP port. Datagrams have no login. Raises OSError for an unknown host."""
    publishers: dict[bytes, Publisher] = {}

    async def publisher_of(sender: bytes) -> Publisher:
        if sender not in publishers:
            if len(publishers) >= SENDERS_MAX:
                publishers.pop(next(iter(publishers))).close()
            publishers[sender] = await _open(loop, address, sender)
        return publishers[sender]

    async def send(batch: Batch, writer: str, seq: int) -> None:
        for topic, message in batch:
            publisher = await publisher_of(message.sender if address.at_sender else b"")
            await publisher.send(_datagram(topic, message))
        await loop.sleep(0)

    async with open_loop() as loop:
        try:
            await publisher_of(b"")
            yield Target(_refuses, send)
        finally:
            for publisher in publishers.values():
                publisher.close()


async def _open(loop: Loop, address: TargetAddress, sender: bytes) -> Publisher:
    """Open a socket, bound to the sender's address if that is this machine's and free."""
    if sender:
        host, _, port = sender.decode("ascii", "replace").rpartition(":")
        with suppress(OSError, ValueError, OverflowError):
            return await open_datagrams(loop, address.host, address.port, (host.strip("[]"), int(port)))
    return await open_datagrams(loop, address.host, address.port)


def _refuses(topic: bytes, message: PastMessage) -> str | None:
    try:
        _datagram(topic, message)
    except ValueError as error:
        return str(error)
    return None


def _datagram(topic: bytes, message: PastMessage) -> bytes:
    kind = message.own if isinstance(message.own, Kind) else Kind.STRING
    return wire.datagram(topic, kind, message.payload)


def recorded(block: Block, frames: bytes) -> Iterator[PastMessage]:
    """Raises ValueError."""
    for frame in recorded_frames(block, frames):
        topic, sender = wire.frame_topic(frame), wire.frame_sender(frame)
        yield PastMessage(topic, frame[DATA_AT:], sender=sender, own=Kind(frame[TYPE_AT]))


REPLAYS = Replays(target, recorded)
