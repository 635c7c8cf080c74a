"""Refused requests: counted, and logged at a bounded rate."""

import structlog

from dms.metrics import Counts
from dms.wire import Refusal, Status
from shared.errors import RemoteProtocolError
from shared.net.connection import Connection

LOG_SECONDS = 1.0
"""The least time between two log lines about refusals of a kind. A line has the number that it stands for."""

_ORDINARY = frozenset({Status.QUEUE_NOT_FOUND, Status.QUEUE_EXISTS, Status.TIMEOUT})
"""Ordinary answers: logged only at level debug."""
_LIMITS = frozenset({Status.QUEUE_FULL, Status.INTERNAL})
"""Limits that the operator may raise, or faults to fix: logged as warnings."""


class Refusals:
    """Counts and logs refusals: each at level debug, and one per second and kind above that."""

    def __init__(self, counts: Counts, log: structlog.stdlib.BoundLogger) -> None:
        self._counts = counts
        self._log = log
        self._untold: dict[str, int] = {}  # by limit or status: few, whatever clients do
        self._told_at: dict[str, float] = {}

    def note(self, connection: Connection, refusal: Refusal, count: int = 1) -> None:
        """`count` requests of one connection are refused with this."""
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

    def note_last(self, connection: Connection, error: RemoteProtocolError) -> None:
        """The connection ends with this answer."""
        self._counts.refusals[Status[error.fault]] += 1
        self._log.info(
            "protocol error: the connection is closed; fix the client",
            peer=connection.peer,
            status=error.fault,
            error=error.text,
        )
