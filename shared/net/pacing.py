"""Holding a connection's input back for several reasons, and its one deadline made of several.

For sessions that wait for more than that others have had their turn: for that alone there is `turns`.
"""

import math

from shared.net.connection import Connection


class Pacing:
    """What a session's pace hangs on; the session itself says in `_continue` how it goes on.

    A reason is a bit, the protocol's own. Input is held back for as long as one of them holds; when the last
    goes, what was read but not applied is taken up again.
    """

    __slots__ = ("_stops", "_wake", "connection", "lost")

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.lost = False
        self._stops = 0
        self._wake = math.inf
        """When `on_deadline` is called at the latest; the session sets it to inf when it was."""

    def stop(self, reason: int) -> None:
        """Hold input back until `go` is called with the same reason."""
        self._stops |= reason

    def go(self, reason: int) -> None:
        """The reason to hold input back has gone."""
        if self._stops & reason:
            self._stops &= ~reason
            if not self._stops and not self.lost:
                self._continue()

    def wake_by(self, deadline: float) -> None:
        """Have `on_deadline` called then, if it would not be before."""
        if deadline < self._wake:
            self._wake = deadline
            self.connection.wake_at(deadline)

    def _continue(self) -> None:
        raise NotImplementedError
