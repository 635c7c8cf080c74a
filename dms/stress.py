"""`brokers dms stress`: messages through a queue and back, each accounted for."""

from collections.abc import Callable, Mapping
from secrets import token_bytes
from typing import Any

import trio

from dms.client import Client, Disconnected, ProtocolError, QueueExists, QueueOptions
from shared.errors import BrokerError

UNDER_WAY = 4000
"""The most messages in the queue."""
PIECE = 200
PREFETCH = 256
RUN_BYTES = 8


class StressFailed(BrokerError):
    """Messages were lost, doubled or overtaken."""


async def stress(
    client: Client, queue: str, number: int, size: int, update: Callable[[int, int], None]
) -> Mapping[str, Any]:
    """Send `number` messages of `size` bytes through a queue. Returns the row that is shown.

    Raises StressFailed where the queue holds messages already, or one was lost, doubled or overtaken.
    """
    made = await _make(client, queue)
    try:
        run = _StressRun(client, queue, number, size, update)
        begun = trio.current_time()
        with trio.CancelScope() as scope:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(run.produce)
                await run.consume()
            scope.cancel()
        seconds = trio.current_time() - begun
    finally:
        if made:
            with trio.move_on_after(5, shield=True):
                await client.delete(queue)
    run.check()
    return {
        "queue": queue,
        "messages": number,
        "size": size,
        "seconds": round(seconds, 3),
        "messages_per_second": round(number / seconds),
    }


async def _make(client: Client, queue: str) -> bool:
    try:
        try:
            await client.create(queue, QueueOptions(depth=UNDER_WAY))  # whatever the server's settings say
        except ProtocolError:
            await client.create(queue)  # a server that knows only the specification
        return True
    except QueueExists:
        depths = {each.name: each.depth for each in await client.queues()}
        if depths.get(queue):
            text = f"{queue} holds {depths[queue]} messages, which are not this command's to take"
            raise StressFailed(text) from None
        return False


class _StressRun:
    def __init__(
        self, client: Client, queue: str, number: int, size: int, update: Callable[[int, int], None]
    ) -> None:
        self._client = client
        self._queue = queue
        self._number = number
        self._size = size
        self._update = update
        self._name = token_bytes(RUN_BYTES)
        self._room = trio.Semaphore(UNDER_WAY // PIECE)
        self._came = bytearray(number)
        self._next = 0
        self.foreign = self.doubled = self.overtaken = 0

    async def produce(self) -> None:
        filler = b"x" * (self._size - RUN_BYTES - 8)
        for start in range(0, self._number, PIECE):
            await self._room.acquire()
            stop = min(start + PIECE, self._number)
            bodies = [self._name + number.to_bytes(8, "big") + filler for number in range(start, stop)]
            await self._client.produce_many(self._queue, bodies)

    async def consume(self) -> None:
        done = 0
        async with self._client.consume(self._queue, prefetch=PREFETCH) as consumer:
            while done < self._number:
                some = await consumer.several()
                for message in some:
                    self._account(message.body)
                if not await consumer.ack(*some):
                    raise Disconnected("the connection was lost: what it held is delivered again")
                for _ in range(done // PIECE, (done + len(some)) // PIECE):
                    self._room.release()
                done += len(some)
                self._update(done, done * self._size)

    def _account(self, body: bytes) -> None:
        number = int.from_bytes(body[RUN_BYTES : RUN_BYTES + 8], "big")
        if not body.startswith(self._name) or len(body) != self._size or number >= self._number:
            self.foreign += 1
        elif self._came[number]:
            self.doubled += 1
        else:
            self._came[number] = 1
            self.overtaken += number != self._next
            self._next = number + 1

    def check(self) -> None:
        lost = self._came.count(0)
        wrong = {
            "lost": lost,
            "came twice": self.doubled,
            "came out of order": self.overtaken,
            "were not this run's": self.foreign,
        }
        if any(wrong.values()):
            told = ", ".join(f"{count} {what}" for what, count in wrong.items() if count)
            raise StressFailed(f"of {self._number} messages: {told}")
