"""Input that is put off: one read may ask for much, and others are to have their turn in between.

For a session whose connection has no other deadline than that of what has begun (`begun`).
"""

from collections.abc import Callable

from shared.net.begun import Begun
from shared.net.connection import Connection


class Turns:
    """`put_off` keeps what is left of a read; `receive` gets it back in the next round.

    The session asks `keeps` first whenever something comes, and calls `on_deadline` from its own.
    """

    __slots__ = ("_begun", "_connection", "_left", "_receive")

    def __init__(self, connection: Connection, begun: Begun, receive: Callable[[bytes], None]) -> None:
        self._connection = connection
        self._begun = begun
        self._receive = receive
        self._left = b""

    def put_off(self, left: bytes) -> None:
        """`left`, not empty, is for the next turn. It is not the peer that is late."""
        self._left = left
        self._begun.end()
        self._connection.pause_reading()
        self._connection.wake_at(self._connection.now)

    def keeps(self, data: bytes) -> bool:
        """Whether `data` was put behind what is left: it was on its way when reading was paused."""
        if not self._left:
            return False
        self._left += data
        return True

    def forget(self) -> None:
        """The session has ended."""
        self._left = b""

    def on_deadline(self) -> None:
        """Go on with what is left."""
        left, self._left = self._left, b""
        if left:
            self._receive(left)
            if not self._left:
                self._connection.resume_reading()
