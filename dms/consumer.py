"""A client's consumer: it asks ahead for messages of one queue, and acknowledges them."""

from collections import deque
from collections.abc import Awaitable, Mapping, Sequence
from typing import Any, Self

import attrs

from dms import wire
from dms.errors import DmsError, NotHeld, Timeout
from dms.link import Answer, Link, leave, reconnecting
from dms.wire import Type
from shared.client.dial import Address, Disconnected, Unreachable
from shared.client.loop import Loop, Wakeup

PREFETCH_MAX = 4096


@attrs.define(eq=False)
class Message:
    """A delivered message. The server keeps it for this client until it is acknowledged.

    `about`: where the consumer asked for it (`with_about`), what is known beside the body: `seq`,
    `deliveries` (1 at the first), `priority`; of jobs `produced_ms`, `key`, `headers`, `dedup`; of dead
    letters `dead`. Else it is empty.
    """

    body: bytes = attrs.field(repr=lambda body: f"<{len(body)} bytes>")
    id: int
    """The delivery's id: another one when the message is delivered again."""
    _consumer: "Consumer" = attrs.field(repr=False)
    _link: Link = attrs.field(repr=False)
    about: Mapping[str, Any] = attrs.field(factory=dict, repr=False)
    _answer: Answer | None = attrs.field(default=None, repr=False)
    """To the first ACK or NACK that was sent."""

    async def ack(self) -> bool:
        """Acknowledge: the message leaves the queue. Returns once the server has confirmed it.

        False: the connection that delivered the message is lost, or the time for it (`ack_ms`) is over.
        Unless this ACK had reached the server, the message is delivered again. Raises QueueNotFound where the
        queue was deleted meanwhile, and Unreachable where the client is closed.

        Where it was cancelled, call it again: an ACK that was sent is not sent twice, and its answer is
        waited for. The server refuses a NACK behind an ACK (ProtocolError), and an ACK behind a NACK.
        """
        return await self._consumer.ack(self)

    async def nack(self, *, delay_ms: int = 0, text: str = "") -> bool:
        """Give back: the message returns to its old place, and is delivered again. As `ack`.

        `delay_ms`: not before so long; 0: as the queue's options say. `text`: why, up to 500 bytes; a dead
        letter has the last one.
        """
        return await self._consumer.nack(self, delay_ms=delay_ms, text=text)

    async def touch(self) -> bool:
        """Begin the queue's time for a delivery (`ack_ms`) anew. As `ack`; it may be called again."""
        return await self._consumer.touch(self)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """The end of a block that handles the message: acknowledge, or give back where the block failed."""
        if kind is None:
            await self.ack()
        elif issubclass(kind, Exception):
            await self.nack()
        else:  # cancelled: what waits now is cancelled, too, or delays the end
            await self._consumer.give_back(self)


class Consumer:
    """An async iterator over a queue's messages (`Client.consume`). Several tasks may share one."""

    def __init__(
        self,
        loop: Loop,
        address: Address,
        retry_seconds: float,
        queue: str,
        prefetch: int,
        at_most: int | None,
        *,
        with_about: bool = False,
    ) -> None:
        if not 1 <= prefetch <= PREFETCH_MAX:
            raise ValueError(f"a prefetch is 1 to {PREFETCH_MAX}, not {prefetch}")
        self._loop = loop
        self._name = wire.pack_name(queue)
        self._prefetch = prefetch
        self._at_most = at_most
        self._request = Type.CONSUME_WITH if with_about else Type.CONSUME
        self._taken = 0
        self._reconnecting = reconnecting(loop, address, retry_seconds, self)
        self._ready: deque[Message] = deque()
        self._failed: DmsError | None = None
        self._timeouts = 0
        self._news = Wakeup(loop)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Message:
        """The next message, however long it takes."""
        while True:
            try:
                message = await self.receive()
            except Timeout:
                continue
            if message is None:
                raise StopAsyncIteration
            return message

    async def receive(self) -> Message | None:
        """The next message; None once `at_most` messages have been taken, by whichever task.

        Raises Timeout where none came within the server's time for a CONSUME. That time runs from the
        CONSUME, which a prefetch may have sent earlier.
        """
        timeouts = self._timeouts
        while True:
            if self._all_taken:
                return None
            if not self._ready:
                self._raise_failure()
            link = await self._reconnecting.connected()
            here = link.consuming + len(self._ready)
            if here <= self._prefetch // 2 and (count := self._more_than(here)) > 0:
                link.consume(self._name, count, self._request)
            if self._ready:
                return self._take(1)[0]
            await self._news.wait()
            if self._timeouts > timeouts and not self._ready:
                raise Timeout("no message came in time")

    async def several(self) -> list[Message]:
        """The next message, however long it takes, and all that have arrived; none at the end."""
        first = await anext(self, None)
        return [] if first is None else [first, *self._take(len(self._ready))]

    def _take(self, count: int) -> list[Message]:
        """Take messages that have arrived. Where they are the last, other waiting tasks are woken."""
        self._taken += count
        if self._all_taken:
            self._news.wake()
        return [self._ready.popleft() for _ in range(count)]

    async def ack(self, *messages: Message) -> bool:
        """Acknowledge several at once. As `Message.ack`, once all are answered; False where one was not."""
        return await self._settle(Type.ACK, messages)

    async def nack(self, *messages: Message, delay_ms: int = 0, text: str = "") -> bool:
        """Give several back at once. As `Message.nack`."""
        return await self._settle(Type.NACK, messages, wire.pack_nack(delay_ms, text))

    async def touch(self, *messages: Message) -> bool:
        """Begin the time of several anew. As `Message.touch`."""
        touched = True
        for message in messages:
            answer = Answer(Type.TOUCH, [message.id])
            answer.again = message._answer is not None
            touched &= await _reaches(message._link.ask(wire.pack(Type.TOUCH, message.id), answer))
            touched = touched and await self._was_held(answer)
        return touched

    async def give_back(self, message: Message) -> None:
        """Give one back, unless it is settled, without waiting for the server's answer."""
        if message._answer is None:
            request = wire.pack(Type.NACK, message.id)
            await _reaches(message._link.ask(request, Answer(Type.NACK, [message.id])))

    async def _settle(self, type_: Type, messages: Sequence[Message], payload: bytes = b"") -> bool:
        by_link: dict[Link, list[Message]] = {}
        for message in messages:
            if message._answer is None or message._answer.type is not type_:
                by_link.setdefault(message._link, []).append(message)
        settled = True
        for link, unsettled in by_link.items():
            answer = Answer(type_, [message.id for message in unsettled])
            answer.again = any(message._answer is not None for message in unsettled)
            requests = b"".join(wire.pack(type_, each, payload) for each in answer.ids)
            if await _reaches(link.ask(requests, answer)):
                for message in unsettled:
                    message._answer = answer
            else:
                settled = False
        for each in dict.fromkeys(message._answer for message in messages):
            if each is not None:
                settled &= await self._was_held(each)
        return settled

    async def _was_held(self, answer: Answer) -> bool:
        """Whether the server still had the deliveries as this connection's."""
        try:
            return await _reaches(answer.wait(self._loop))
        except NotHeld:
            if answer.again:
                raise
            return False

    # What the link calls (`link.DeliveryTaker`).

    def delivered(self, link: Link, delivery_id: int, body: bytes, about: Mapping[str, Any]) -> None:
        self._ready.append(Message(body, delivery_id, self, link, about))
        self._news.wake()

    def not_delivered(self, link: Link, error: DmsError) -> None:
        if isinstance(error, Timeout):
            self._timeouts += 1
        else:
            self._failed = error
        self._news.wake()

    def link_lost(self, link: Link) -> None:
        # The server has them back, and delivers them again, perhaps to another consumer.
        self._ready = deque(message for message in self._ready if message._link is not link)
        self._news.wake()

    @property
    def _all_taken(self) -> bool:
        return self._at_most is not None and self._taken >= self._at_most

    def _more_than(self, here: int) -> int:
        """How many more to ask for, where so many have arrived or are asked for."""
        if self._at_most is None:
            return self._prefetch - here
        return min(self._prefetch, self._at_most - self._taken) - here

    def _raise_failure(self) -> None:
        """Only once: a deleted queue may have been made again."""
        error, self._failed = self._failed, None
        if error is not None:
            raise error

    async def leave(self) -> None:
        """Say DISCONNECT and close. Messages that are not acknowledged go back to the queue."""
        await leave(self._reconnecting)


async def _reaches(work: Awaitable[None]) -> bool:
    """Whether the link holds until this is done. Raises Unreachable where the client is closed."""
    try:
        await work
    except Unreachable:
        raise
    except Disconnected:
        return False
    return True
