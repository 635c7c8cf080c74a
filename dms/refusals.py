"""Refused requests, counted and logged such that they cannot flood the log."""

import structlog

from dms.metrics import Counts
from dms.wire import Refusal, Status
from shared.net.connection import Connection

LOG_SECONDS = 1.0
"""At least, between two log lines about refusals of one kind. A line has the number that it stands for."""

_ORDINARY = frozenset({Status.QUEUE_NOT_FOUND, Status.QUEUE_EXISTS, Status.TIMEOUT})
"""Ordinary answers: logged at level debug alone."""
_LIMITS = frozenset({Status.QUEUE_FULL, Status.INTERNAL})
"""For the operator to raise or mend: logged as warnings."""


class Refusals:
    """Counts and logs them: each at level debug, and one a second of each kind above that."""

    def __init__(self, counts: Counts, log: structlog.stdlib.BoundLogger) -> None:
        self._counts = counts
        self._log = log
        self._untold: dict[str, int] = {}  # by limit or status: few kinds, whatever clients do
        self._told_at: dict[str, float] = {}

    def note(self, connection: Connection, refusal: Refusal, count: int = 1) -> None:
        """`count` requests of one connection are answered with this."""
        status = refusal.status
        self._counts.refusals[status] += count
        peer, error = connection.peer, refusal.text
        self._log.debug("request refused", peer=peer, status=status.name, error=error, count=count)
        if status in _ORDINARY:
            return
        kind = refusal.limit or status.name
        self._untold[kind] = count = self._untold.get(kind, 0) + count
        now = connection.now
        if now >= self._told_at.get(kind, -LOG_SECONDS) + LOG_SECONDS:
            self._told_at[kind], self._untold[kind] = now, 0
            say = self._log.warning if status in _LIMITS else self._log.info
            say(
                "requests refused: the clients were told why",
                status=status.name,
                error=error,
                peer=peer,
                count=count,
            )

    def note_last(self, connection: Connection, refusal: Refusal) -> None:
        """The connection ends with this answer."""
        self._counts.refusals[refusal.status] += 1
        self._log.info(
            "protocol error: the connection is closed; fix the client",
            peer=connection.peer,
            status=refusal.status.name,
            error=refusal.text,
        )
