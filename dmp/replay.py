"""Exchanges as the target of a replay, by `basic.publish` with confirms, and what a recording holds."""

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import NamedTuple

from dmp.amqp_client import Unroutable, open_amqp
from dmp.data_types import SHORT_BYTES_MAX
from dmp.properties import PERSISTENT
from dmp.wire import RECORDED_MESSAGES, RECORDED_PUBLISHES, Message, take_messages
from shared.addresses import exchange_and_key
from shared.errors import NotThere, RemoteProtocolError
from shared.recording.blocks import Block
from shared.replaying import Batch, PastMessage, Replays, Target, TargetAddress


class Published(NamedTuple):
    """What only AMQP knows of a message: its exchange, and its properties as on the wire."""

    exchange: bytes
    properties: bytes


_OTHERS = Published(b"", PERSISTENT)
"""A message of another protocol is persistent, and so is a recorded one that had no properties."""


@asynccontextmanager
async def target(address: TargetAddress) -> AsyncIterator[Target]:
    """An AMQP server; names are routing keys. Raises ConnectionRefusedError where nobody answers.

    A queue that the user has named must be there: `send` raises NotThere, because its messages would be lost.
    """
    exchange: bytes | None = None
    named = False
    if address.place is not None:
        parts = exchange_and_key(address.place)
        named = parts is None
        exchange = b"" if parts is None else parts[0]

    def published(key: bytes, message: PastMessage) -> Message:
        own = message.own if isinstance(message.own, Published) else _OTHERS
        there = own.exchange if exchange is None else exchange
        return Message(there, key, message.payload, own.properties)

    def refuses(key: bytes, message: PastMessage) -> str | None:
        long = max(len(key), len(published(key, message).exchange)) > SHORT_BYTES_MAX
        return f"a name or key is above {SHORT_BYTES_MAX} bytes" if long else None

    async with open_amqp(address.host, address.port, **address.how) as client:

        async def send(batch: Batch, writer: str, seq: int) -> None:
            messages = (published(key, message) for key, message in batch)
            try:
                await client.publish_many(messages, mandatory=named)
            except Unroutable as error:
                raise NotThere(f"{error}: make the queue first") from None

        yield Target(refuses, send)


def recorded(block: Block, frames: bytes) -> Iterator[PastMessage]:
    """Raises ValueError. A message's name is its routing key."""
    if block.codec not in (RECORDED_MESSAGES, RECORDED_PUBLISHES):
        raise ValueError(f"codec {block.codec}")
    try:
        found, end = take_messages(frames, 1 << 32)
    except RemoteProtocolError as error:
        raise ValueError(error.text) from None
    for message in found:
        own = Published(block.name, message.properties)
        yield PastMessage(message.key, message.body, message.key, block.source, own)
    if end < len(frames):
        raise ValueError("a message reaches past its end")


REPLAYS = Replays(target, recorded)
