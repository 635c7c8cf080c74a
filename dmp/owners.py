"""An application: a principal, and the DMP connections that it leased.

Queues that are exclusive to it live as long as any of these. The principal's session and every DMP connection
hold it; when the last lets go, `ended` is called, once.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dmp.queues import Queue


class Owner:
    """An application: its principal and its DMP connections. `queues`: exclusive to it."""

    __slots__ = ("_ended", "_holds", "queues", "user")

    def __init__(self, user: str, ended: "Callable[[Owner], None]") -> None:
        """Held once, by the principal."""
        self.user = user
        self.queues: dict[Queue, None] = {}
        self._holds = 1
        self._ended = ended

    @property
    def alive(self) -> bool:
        return self._holds > 0

    def hold(self) -> None:
        """One more connection is the application's. It must be alive."""
        assert self._holds, "an application was held after its end"
        self._holds += 1

    def release(self) -> None:
        assert self._holds, "an application was released too often"
        self._holds -= 1
        if not self._holds:
            self._ended(self)
