"""Tails: the newest records of logs, which are durable in the journal and not yet in the logs' own files.

A commit writes the journal alone, however many logs it touches. Each log's new records stay in memory, as its
*tail*, and the `LogWriter` writes them later, many together. Readers of a log read its tail from memory.
"""

from collections.abc import Callable

import attrs

from shared.budget import Account, unbounded
from shared.storage.log import Log, LogAppend, opaque

LATE_SECONDS = 1.0
"""A tail is written once its oldest record is so old."""


@attrs.define(eq=False, slots=False, repr=False, field_transformer=opaque)
class Tails:
    """The tails of all logs. `log_bytes`: one is written once it is so long. `bytes_max`: of all together.

    `failing`: logs whose files did not take their tails. Those stay here, and no checkpoint is made, so that
    they stay in the journal too.
    """

    log_bytes: int
    bytes_max: int
    wake: Callable[[], None] = lambda: None
    """Something is due before its time."""
    account: Account = attrs.Factory(unbounded)
    bytes: int = 0
    failing: dict[Log, None] = attrs.Factory(dict)
    writing: set[Log] = attrs.Factory(set)
    """The `LogWriter` is just writing them."""
    crowded: bool = False
    """There are too many, as of the last `charge`: commits wait until some are written."""
    _since: dict[Log, float] = attrs.Factory(dict)  # monotonic; the oldest first
    _long: dict[Log, None] = attrs.Factory(dict)
    _charged: int = 0

    def takes(self, log: Log, size: int) -> bool:
        """Whether so many new bytes wait here. Many together go to the log's file with their commit, behind
        what waits already: that is one large write anyway, and saves two copies."""
        if log.tail:
            return size < self.log_bytes // 16 or log in self.writing or log in self.failing
        return not log.direct and size < self.log_bytes // 16

    def add(self, log: Log, data: memoryview, now: float) -> None:
        """These are visible, behind all that the log had. Call `charge` when all logs have theirs."""
        if not log.tail:
            self._since[log] = now
        log.tail += data
        self.bytes += len(data)
        if len(log.tail) >= self.log_bytes and log not in self.failing:
            self._long[log] = None

    def add_light(self, part: LogAppend, now_ms: int, now: float) -> None:
        """The same for a light append, which is durable now."""
        log = part.log
        if not log.tail:
            self._since[log] = now
        log.took_light(part, now_ms, now)
        self.bytes += part.end - part.offset
        if len(log.tail) >= self.log_bytes and log not in self.failing:
            self._long[log] = None

    def charge(self) -> None:
        """Bring the account up to date, and wake the writer if something is due."""
        over = self.account.charge(self.bytes - self._charged)
        self._charged = self.bytes
        self.crowded = self.bytes > self.bytes_max or (over and self.bytes > 0)
        if self._long or self.crowded:
            self.wake()

    @property
    def failing_bytes(self) -> int:
        return sum(len(log.tail) for log in self.failing)

    def due(self, now: float) -> list[Log]:
        """Those to be written now: failing ones, long ones, old ones, and while there are too many the
        oldest."""
        due = self.failing | self._long
        left = self.bytes - sum(len(log.tail) for log in due)
        wanted = 0 if self.account.over else self.bytes_max // 2 if self.crowded else self.bytes
        for log, since in self._since.items():
            if now - since < LATE_SECONDS and left <= wanted:
                break
            if log not in due:
                due[log] = None
                left -= len(log.tail)
        return list(due)

    def all_logs(self) -> list[Log]:
        return list(self._since)

    def written(self, log: Log, size: int, now: float) -> None:
        """The log's file has so many bytes of its tail, from the front."""
        if log not in self._since:
            return  # it was deleted meanwhile
        del log.tail[:size]
        self.bytes -= size
        del self._since[log]
        self.failing.pop(log, None)
        if log.tail:
            self._since[log] = now  # what is left came while the rest was written
        if len(log.tail) < self.log_bytes:
            self._long.pop(log, None)
        self.charge()

    def failed(self, log: Log) -> None:
        """The log's file did not take it."""
        if log in self._since:
            self.failing[log] = None
            self._long.pop(log, None)

    def drop(self, log: Log) -> None:
        """The log is deleted."""
        if log in self._since:
            self.bytes -= len(log.tail)
            log.drop_tail()
            del self._since[log]
            self._long.pop(log, None)
            self.failing.pop(log, None)
            self.charge()
