"""Tails: the newest records of logs, durable in the journal and not yet in the logs' own files.

A commit writes only the journal, however many logs it touches. Each log's new records stay in memory as its
*tail*. The `LogWriter` writes tails to the files later, many together. Readers get a tail's records from
memory.
"""

import math
from collections.abc import Callable, Iterable, Iterator

import attrs

from shared.budget import Account, unbounded
from shared.storage.entries import ENTRY_COVERS_SECONDS
from shared.storage.log import LightAppend, Log, opaque

LATE_SECONDS = 1.0
"""A tail is written once its oldest record has this age."""
_STEP_BYTES = 64 << 10
"""Light appends are charged in steps of this size, or of a 16th of what all tails may take."""

_NOT_INDEXED_MAX = 256
"""Commits whose records are indexed together: a bound on their list, not on the work."""


@attrs.define(eq=False, slots=False, repr=False, field_transformer=opaque)
class Tails:
    """The tails of all logs. `log_bytes`: a tail of this length is written. `bytes_max`: bound on all
    together.

    `failing`: logs whose files refuse their tails. Those stay in memory, and no checkpoint is made, so that
    they stay in the journal too.
    """

    log_bytes: int
    bytes_max: int
    wake: Callable[[], None] = lambda: None
    """Called when something is due before its time."""
    account: Account = attrs.Factory(unbounded)
    bytes: int = 0
    failing: dict[Log, None] = attrs.Factory(dict)
    writing: set[Log] = attrs.Factory(set)
    """Logs whose tails the `LogWriter` is writing."""
    crowded: bool = False
    """There are too many bytes, as of the last `charge`: commits wait until some are written."""
    _since: dict[Log, float] = attrs.Factory(dict)  # monotonic; the oldest first
    _long: dict[Log, None] = attrs.Factory(dict)
    _charged: int = 0
    _step_bytes: int = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self._step_bytes = min(_STEP_BYTES, self.bytes_max // 16)

    def takes(self, log: Log, size: int) -> bool:
        """Whether so many new bytes go to the tail. Many go to the log's file with their commit, behind the
        tail: that is one large write anyway, and saves two copies.
        """
        if log.tail_bytes:
            return size < self.log_bytes // 16 or log in self.writing or log in self.failing
        return not log.direct and size < self.log_bytes // 16

    def add(self, log: Log, data: memoryview, now: float) -> None:
        """Add visible bytes to the end of a log's tail. Call `charge` when all logs have theirs."""
        if not log.tail_bytes:
            self._since[log] = now
        log.add_to_tail(bytes(data))
        self.bytes += len(data)
        if log.tail_bytes >= self.log_bytes and log not in self.failing:
            self._long[log] = None

    def add_light(self, appends: Iterable[LightAppend], now_ms: int, now: float) -> None:
        """Add light appends that are durable now, and make them visible. `now`: monotonic seconds.

        One loop, without a call for each of a thousand logs. Index entries are made later
        (`Log.make_entries`). Tails are charged in steps: each such commit has few bytes.
        """
        for log, offset, records, count in appends:
            size = len(records)
            if not log.tail_bytes:
                self._since[log] = now
            log.tail_new.append(records)
            log.tail_bytes += size
            log.visible = offset + size
            if now_ms > log.last_ms:
                log.last_ms = now_ms
            log.not_indexed.append((log.last_ms, size, count))
            if log.open_since == math.inf:
                log.open_since = now
            elif now - log.open_since >= ENTRY_COVERS_SECONDS:
                log.close_entry()
            elif len(log.not_indexed) >= _NOT_INDEXED_MAX:
                log.make_entries()
            self.bytes += size
            if log.tail_bytes >= self.log_bytes and log not in self.failing:
                self._long[log] = None
        if self.bytes - self._charged >= self._step_bytes or self._long or self.crowded:
            self.charge()

    def charge(self) -> None:
        """Update the account, and wake the writer if something is due."""
        over = self.account.charge(self.bytes - self._charged)
        self._charged = self.bytes
        self.crowded = self.bytes > self.bytes_max or (over and self.bytes > 0)
        if self._long or self.crowded or self._filling:
            self.wake()

    @property
    def _filling(self) -> bool:
        """The oldest are written before commits must wait. Not where files take nothing: each commit would
        try again."""
        return self.bytes > self.bytes_max * 3 // 4 and not self.failing

    @property
    def failing_bytes(self) -> int:
        return sum(log.tail_bytes for log in self.failing)

    def due(self, now: float) -> Iterator[Log]:
        """Logs to be written now: failing, long and old tails; of many bytes also the oldest others. Commits
        may go on between two of them.
        """
        first = self.failing | self._long
        left = self.bytes - sum(log.tail_bytes for log in first)
        many = self.crowded or self._filling
        wanted = 0 if self.account.over else self.bytes_max // 2 if many else self.bytes
        yield from first
        for log in list(self._since):
            since = self._since.get(log, math.inf)
            if since > now:
                continue  # it was written or deleted meanwhile
            if now - since < LATE_SECONDS and left <= wanted:
                break
            if log not in first:
                left -= log.tail_bytes
                yield log

    def written(self, log: Log, size: int, now: float) -> None:
        """The log's file has the first `size` bytes of its tail."""
        if log not in self._since:
            return  # it was deleted meanwhile
        log.cut_tail(size)
        self.bytes -= size
        del self._since[log]
        self.failing.pop(log, None)
        if log.tail_bytes:
            self._since[log] = now  # the rest came during the write
        if log.tail_bytes < self.log_bytes:
            self._long.pop(log, None)
        self.charge()

    def failed(self, log: Log) -> None:
        """The log's file refused its tail."""
        if log in self._since:
            self.failing[log] = None
            self._long.pop(log, None)

    def drop(self, log: Log) -> None:
        """The log is deleted."""
        if log in self._since:
            self.bytes -= log.tail_bytes
            log.drop_tail()
            del self._since[log]
            self._long.pop(log, None)
            self.failing.pop(log, None)
            self.charge()
