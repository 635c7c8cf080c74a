"""When a client connects again, and when it gives up. No I/O and no clock: the caller has both.

Blocking and trio clients alike ask a `Retry` after each failure how long to pause before the next attempt.
"""

import math
import secrets

RETRY_SECONDS = 30.0
"""How long a client that asks and is answered tries again, unless its user says otherwise."""
PAUSE_SECONDS = (0.05, 2.0)
"""The first pause before connecting again, doubled each time, and the longest."""
STOOD_SECONDS = 5.0
"""A silent connection that lasted so long was not turned away: the server had nothing to send."""


def pause_before(attempts: int) -> float:
    """Seconds to wait before the next attempt, after so many failed ones.

    Half of each pause is random, so that a thousand clients do not return to one server at once.
    """
    first, longest = PAUSE_SECONDS
    pause = min(first * (1 << min(attempts, 20)), longest)
    return pause / 2 + pause / 2 * secrets.randbelow(1000) / 1000


class Retry:
    """A row of failures: attempts that reach no server, and connections that end at once without an answer.

    Each failure is followed by a longer pause. The last attempt is `seconds` after the row began. If it
    fails the row is given up, and the next failure begins a new one. Times are monotonic seconds.
    """

    __slots__ = ("_failures", "_made", "_seconds", "_until")

    def __init__(self, seconds: float, made: float = -math.inf) -> None:
        """`made`: when the first connection was made, if there is one."""
        self._seconds = seconds
        self._made = made
        self._failures = 0
        self._until = math.inf

    def begin(self, now: float) -> None:
        """A connection is wanted: the row's time begins, unless it runs already."""
        self._until = min(self._until, now + self._seconds)

    def made(self, now: float) -> None:
        """A connection was made; the server has not answered on it yet."""
        self._made = now

    def heard(self) -> None:
        """The server has answered: earlier failures no longer count, nor does an early end of this
        connection."""
        self._made = -math.inf
        self._failures = 0
        self._until = math.inf

    def unanswered(self) -> None:
        """The connection ends with a question that the server has not answered: it has failed, however long
        it stood. Another protocol's server waits for more, and closes at last."""
        self._made = math.inf

    def lost(self, now: float) -> float | None:
        """The connection ended. Returns the seconds to pause before the next attempt; None: give up."""
        if now > self._made + STOOD_SECONDS:
            self.heard()
            return 0.0
        return self.failed(now)

    def failed(self, now: float) -> float | None:
        """An attempt reached no server. Returns the seconds to pause before the next one; None: give up."""
        self.begin(now)
        left = self._until - now
        if left <= 0:
            self.heard()
            return None
        self._failures += 1
        return min(pause_before(self._failures - 1), left)
