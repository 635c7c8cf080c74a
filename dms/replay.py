"""Queues as the target of a replay: at least once, because a PRODUCE sent again is another message."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from dms import wire
from dms.client import PORT, Client, connect
from dms.feeder import Feeder
from dms.wire import PAYLOAD_BYTES_MAX
from shared.client.dial import How
from shared.replaying import Batch, PastMessage, Replays, by_place


class QueueReplay:
    """A DMS server."""

    once_each = False

    def __init__(self, client: Client) -> None:
        self._client = client

    def refuses(self, queue: bytes, message: PastMessage) -> str | None:
        try:
            wire.name_untrusted(queue)
        except wire.Refusal:
            return "the name is no queue's"
        if 2 + len(queue) + len(message.payload) > PAYLOAD_BYTES_MAX:
            return f"it is larger than a payload of {PAYLOAD_BYTES_MAX} bytes, name and all"
        return None

    async def send(self, batch: Batch, writer: str, seq: int) -> None:
        """Waits while a queue is full, until its consumers make room."""
        for queue, messages in by_place(batch).items():
            await Feeder(self._client, queue.decode(), wait=True, again=True).put(messages)


@asynccontextmanager
async def target(host: str, port: int | None, how: How) -> AsyncIterator[QueueReplay]:
    """Raises ConnectionRefusedError where nobody answers."""
    async with connect(host, PORT if port is None else port, **how) as client:
        yield QueueReplay(client)


REPLAYS = Replays(target)
