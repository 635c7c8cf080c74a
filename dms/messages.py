"""What messages are while they live in memory: bytes, and little more."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dms.queue import Queue

Out = tuple["Queue", int, bytes, int]
"""A message that a connection holds: its queue, its sequence, its body, how often it was delivered.

A tuple, and no object: a run of deliveries is made of them by `zip`.
"""


class Letter(bytes):
    """A body that is dead mail: it knows where it came from, and is a plain body to everybody else.

    `origin`: the queue; `reason`: why it died there; `deliveries`: how many it had seen.
    """

    origin: str
    reason: str
    deliveries: int

    @classmethod
    def of(cls, body: bytes, origin: str, reason: str, deliveries: int) -> "Letter":
        letter = cls(body)
        letter.origin, letter.reason, letter.deliveries = origin, reason, deliveries
        return letter

    @property
    def about(self) -> dict[str, Any]:
        return {"origin": self.origin, "reason": self.reason, "deliveries": self.deliveries}
