"""KqueueMsgQ as the target of a replay, and the messages of its recordings. No message is acknowledged."""

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

from kqmsgq.client import MESSAGE_BYTES_MAX, NAME_BYTES_MAX, open_producer
from kqmsgq.wire import RECORDED_MESSAGES, take_messages
from shared.recording.blocks import Block
from shared.replaying import Batch, PastMessage, Replays, Target, TargetAddress

_ANY = (1 << 32) - 1  # the limits at the time of recording are not known


@asynccontextmanager
async def target(address: TargetAddress) -> AsyncIterator[Target]:
    """Connect. When the block ends the server has read everything. Raises ConnectionRefusedError."""
    async with open_producer(address.host, address.port, **address.how) as producer:

        async def send(batch: Batch, writer: str, seq: int) -> None:
            await producer.send_many((queue, message.payload) for queue, message in batch)

        yield Target(_refuses, send)


def _refuses(queue: bytes, message: PastMessage) -> str | None:
    if not 1 <= len(queue) <= NAME_BYTES_MAX:
        return f"the name is not 1 to {NAME_BYTES_MAX} bytes"
    if len(message.payload) > MESSAGE_BYTES_MAX:
        return f"it is above {MESSAGE_BYTES_MAX} bytes"
    return None


def recorded(block: Block, frames: bytes) -> Iterator[PastMessage]:
    """Raises ValueError."""
    if block.codec != RECORDED_MESSAGES:
        raise ValueError(f"codec {block.codec}")
    found, end = take_messages(frames, _ANY, _ANY)
    for message in found:
        yield PastMessage(message.queue, message.body, sender=block.source)
    if end < len(frames):
        raise ValueError("a message reaches past its end")


REPLAYS = Replays(target, recorded)
