"""KqueueMsgQ as the target of a replay, and the messages of its recordings. No message is acknowledged."""

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager

from kqmsgq.client import MESSAGE_BYTES_MAX, NAME_BYTES_MAX, PORT, Producer, open_producer
from kqmsgq.wire import ALL, ALL_IS_NO_TARGET, RECORDED_MESSAGES, take_messages
from shared.addresses import MessageOrigin
from shared.client.dial import How
from shared.recording.blocks import Block
from shared.replaying import Batch, PastMessage, Place, Replays, one_name

_ANY = (1 << 32) - 1  # the limits at the time of recording are not known


class FanoutReplay:
    """A KqueueMsgQ server."""

    once_each = False

    def __init__(self, producer: Producer) -> None:
        self._producer = producer

    def refuses(self, queue: bytes, message: PastMessage) -> str | None:
        if not 1 <= len(queue) <= NAME_BYTES_MAX:
            return f"the name is not 1 to {NAME_BYTES_MAX} bytes"
        if len(message.payload) > MESSAGE_BYTES_MAX:
            return f"it is above {MESSAGE_BYTES_MAX} bytes"
        return None

    async def send(self, batch: Batch, writer: str, seq: int) -> None:
        await self._producer.send_many((queue, message.payload) for queue, message in batch)


@asynccontextmanager
async def target(host: str, port: int | None, how: How) -> AsyncIterator[FanoutReplay]:
    """Connect. When the block ends the server has read everything. Raises ConnectionRefusedError."""
    async with open_producer(host, PORT if port is None else port, **how) as producer:
        yield FanoutReplay(producer)


def recorded(block: Block, frames: bytes) -> Iterator[PastMessage]:
    """Raises ValueError."""
    if block.codec != RECORDED_MESSAGES:
        raise ValueError(f"codec {block.codec}")
    found, end = take_messages(frames, _ANY, _ANY)
    for message in found:
        yield PastMessage(message.queue, message.body, sender=block.source)
    if end < len(frames):
        raise ValueError("a message reaches past its end")


def place(address: str) -> Callable[[MessageOrigin], Place]:
    """One queue. Raises ValueError."""
    if address == ALL:
        raise ValueError(ALL_IS_NO_TARGET)
    return one_name(address)


REPLAYS = Replays(target, place, recorded=recorded)
