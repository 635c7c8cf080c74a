"""What a peer has begun to send and not finished: by when it must have.

For a session whose connection has no other deadline: it calls `is_late` from its `on_deadline`.
"""

import math

from shared.net.connection import Connection


class Begun:
    """Nothing has begun until `begin` is called. `seconds`: from there to its end.

    One wake-up is set at a time: a peer that sends well pays for none of what it sends.
    """

    __slots__ = ("_connection", "_seconds", "_since", "_waking")

    def __init__(self, connection: Connection, seconds: float) -> None:
        self._connection = connection
        self._seconds = seconds
        self._since = math.inf
        self._waking = False

    def __bool__(self) -> bool:
        return self._since < math.inf

    def begin(self) -> None:
        """Its first byte has come now."""
        self._since = self._connection.now
        self._wake()

    def end(self) -> None:
        """It is all there, or nobody waits for it any more."""
        self._since = math.inf

    def is_late(self, now: float) -> bool:
        """Whether it had its time, asked when the connection's deadline has come."""
        self._waking = False
        if self._since == math.inf:
            return False
        if now >= self._since + self._seconds:
            return True
        self._wake()
        return False

    def _wake(self) -> None:
        if not self._waking:
            self._waking = True
            self._connection.wake_at(self._since + self._seconds)
