"""Exchanges as the target of a replay, by `basic.publish` with confirms, and what a recording holds."""

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from typing import NamedTuple

from pamqp import commands

from dmp.amqp_client import Client, Unroutable, open_amqp
from dmp.data_types import SHORT_BYTES_MAX
from dmp.principal import PORT
from dmp.wire import RECORDED_MESSAGES, RECORDED_PUBLISHES, Message, take_messages
from shared.addresses import MessageOrigin, NameTemplate, exchange_and_key
from shared.client.dial import How
from shared.errors import NotThere, RemoteProtocolError
from shared.recording.blocks import Block
from shared.replaying import Batch, PastMessage, Place, Replays

_PERSISTENT = commands.Basic.Properties(delivery_mode=2).marshal()


class Published(NamedTuple):
    """What only AMQP knows of a message: its exchange, and its properties as on the wire."""

    exchange: bytes
    properties: bytes


class QueuePlace(NamedTuple):
    """A queue that the user has named. It must be there: what goes to a missing one is lost."""

    exchange: bytes
    key: bytes


class ExchangeReplay:
    """An AMQP server. A place is an exchange and a routing key."""

    once_each = False

    def __init__(self, client: Client) -> None:
        self._client = client

    def refuses(self, place: tuple[bytes, bytes], message: PastMessage) -> str | None:
        long = max(map(len, place)) > SHORT_BYTES_MAX
        return f"a name or key is above {SHORT_BYTES_MAX} bytes" if long else None

    async def send(self, batch: Batch, writer: str, seq: int) -> None:
        """Raises NotThere for a queue that the user has named, and as `Client.publish_many` does."""
        messages = (
            Message(exchange, key, message.payload, getattr(message.own, "properties", _PERSISTENT))
            for (exchange, key), message in batch
        )
        named = isinstance(batch[0][0], QueuePlace)  # all places of a replay are of one kind
        try:
            await self._client.publish_many(messages, mandatory=named)
        except Unroutable as error:
            raise NotThere(f"{error}: make the queue first") from None


@asynccontextmanager
async def target(host: str, port: int | None, how: How) -> AsyncIterator[ExchangeReplay]:
    """Raises ConnectionRefusedError where nobody answers."""
    async with open_amqp(host, PORT if port is None else port, **how) as client:
        yield ExchangeReplay(client)


def place(address: str) -> Callable[[MessageOrigin], Place]:
    """`<exchange>/<routing key>`, or a queue's name, to which the default exchange brings it."""
    parts = exchange_and_key(address)
    if parts is None:
        queue = NameTemplate.parse(address)
        return lambda origin: QueuePlace(b"", queue.name_for(origin))
    exchange, rest = parts
    if not rest:
        return lambda origin: (exchange, b"")
    key = NameTemplate.parse(rest)
    return lambda origin: (exchange, key.name_for(origin))


def same(message: PastMessage, name: bytes) -> Place:
    return (message.own.exchange if isinstance(message.own, Published) else b""), name


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


REPLAYS = Replays(target, place, same, recorded)
