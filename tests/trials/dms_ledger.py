"""What was asked of DMS and what it answered and delivered, kept in the trial's memory: no cut reaches it.

A message is known by its body, which is never the same twice. A queue either lives for good, with any number
of producers and consumers, or is one connection's own, who deletes it and makes it again.
"""

import attrs


@attrs.define(eq=False)
class Asked:
    """A request. `queued` is at or before its first byte was sent, `answered` when its answer was read."""

    queued: float
    answered: float | None = None
    refused: str = ""

    @property
    def acknowledged(self) -> bool:
        return self.answered is not None and not self.refused

    def promised(self, until: float) -> bool:
        """Was it acknowledged by then?"""
        return self.acknowledged and self.answered is not None and self.answered <= until


@attrs.define(eq=False)
class Message(Asked):
    """A PRODUCE."""

    body: bytes = b""
    writer: str = ""
    life: int = 0
    """Of its queue: how many DELETEs were asked for before it."""
    shown: float | None = None
    """When it was first delivered."""
    ack: Asked | None = None
    """The last ACK that was sent for it."""
    held: bool = False
    """Delivered, on a connection that lives, and neither ACK nor NACK sent."""
    place: int = 0
    """In the order in which messages of its queue were sent."""


@attrs.define(eq=False)
class Step(Asked):
    """A CREATE_QUEUE or DELETE_QUEUE: it leads to `position`: twice the life, odd if it is there."""

    position: int = 0


@attrs.define(eq=False)
class QueueBook:
    """One queue. `settled` is what the last verification found there, in order."""

    name: str
    mode: str
    """`always`, `interval` or `none`."""
    position: int = 0
    """Where the last verification found it, as in `Step`."""
    settled: list[Message] = attrs.field(factory=list)
    messages: dict[bytes, Message] = attrs.field(factory=dict)
    """All that may be there: those settled, and what was sent since."""
    gone: set[bytes] = attrs.field(factory=set)
    """Bodies that a verification has not found any more, or of lives that are over."""
    steps: list[Step] = attrs.field(factory=list)
    """Since the last verification."""

    @property
    def asked_position(self) -> int:
        """Where it will be once all that is queued is done."""
        return self.steps[-1].position if self.steps else self.position

    def send(self, body: bytes, writer: str, now: float) -> Message:
        message = Message(now, body=body, writer=writer, life=self.asked_position // 2)
        message.place = len(self.messages) + len(self.gone)
        self.messages[body] = message
        return message


@attrs.define(eq=False)
class DmsBook:
    """All queues of one data folder."""

    queues: dict[str, QueueBook] = attrs.field(factory=dict)

    def open(self, name: str, mode: str) -> QueueBook:
        queue = self.queues.get(name)
        if queue is None:
            queue = self.queues[name] = QueueBook(name, mode)
        return queue
