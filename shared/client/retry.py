"""When a client connects again, and when it gives up. No I/O: whoever asks has the clock, and pauses.

Blocking and trio clients alike ask a `Retry` after each failure how long to pause before the next attempt.
"""

import math
import secrets

PAUSE_SECONDS = (0.05, 2.0)
"""Before connecting again: the first pause, doubled each time, and the longest."""
STOOD_SECONDS = 5.0
"""A connection that lasted so long was not turned away: nothing came because there was nothing to say."""


def pause_before(attempts: int) -> float:
    """Seconds to wait before trying again, after so many attempts.

    Half of each pause is chance: a thousand clients of one server must not come back at once.
    """
    first, longest = PAUSE_SECONDS
    pause = min(first * (1 << min(attempts, 20)), longest)
    return pause / 2 + pause / 2 * secrets.randbelow(1000) / 1000


class Retry:
    """Failures in a row: attempts that reach nobody, and connections that end at once without a word.

    Each is followed by a longer pause. `seconds` after the row has begun there is one last attempt; if that
    fails, too, the row is given up, and the next failure begins a new one. Times are monotonic seconds.
    """

    __slots__ = ("_failures", "_made", "_seconds", "_until")

    def __init__(self, seconds: float, made: float = -math.inf) -> None:
        """`made`: when the first connection was, if there is one."""
        self._seconds = seconds
        self._made = made
        self._failures = 0
        self._until = math.inf

    def begin(self, now: float) -> None:
        """A connection is wanted. The time for it runs from here, unless it runs already."""
        self._until = min(self._until, now + self._seconds)

    def made(self, now: float) -> None:
        """There is a connection, of which nothing has been heard yet."""
        self._made = now

    def heard(self) -> None:
        """The server answers: what failed before does not count, nor that this connection ends soon."""
        self._made = -math.inf
        self._failures = 0
        self._until = math.inf

    def lost(self, now: float) -> float | None:
        """The connection ended. Seconds to pause before the next attempt; None: give up."""
        if now > self._made + STOOD_SECONDS:
            self.heard()
            return 0.0
        return self.failed(now)

    def failed(self, now: float) -> float | None:
        """The same after an attempt that reached nobody."""
        self.begin(now)
        left = self._until - now
        if left <= 0:
            self.heard()
            return None
        self._failures += 1
        return min(pause_before(self._failures - 1), left)
