"""Each message's lifecycle, from the events in the log, grouped by queue and sequence: by Spark or here.

    produced -> delivered -> acknowledged
                   |   ^
                   v   |
                 returned -> dead-lettered, expired, ...

A lifecycle ends once, and each of its events is in the log once. So minima, maxima and counts are enough, in
one pass and in any order. Offsets tell which came first, because clocks may be set back. What no record says
is inferred as the broker does when it opens the queue (STORAGE.md). So a message before the row's head that
has not left was delivered, even if a crash lost the note. Where a record has its number of deliveries, that
counts.

Spark uses minima and maxima by offset; one process uses the first and the last in the order of the log. There
a message is an index into arrays, and each batch is added as a whole.
"""

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dms.events import ACKNOWLEDGED, DELIVERED, GONE, KEPT, MOVED, PRODUCED, RETURNED, SNAPSHOT
from shared.tables.table import TooMany, time_type
from shared.tables.vectors import counted

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from shared.tables.vectors import Numbers

OUTCOMES = {
    (ACKNOWLEDGED, None): "acknowledged",
    (MOVED, "ttl"): "dead-lettered",
    (MOVED, "max_deliveries"): "dead-lettered",
    (MOVED, "redriven"): "redriven",
    (GONE, "ttl"): "expired",
    (GONE, "max_deliveries"): "exhausted",
    (GONE, "purged"): "purged",
}
"""How a lifecycle ended, by event and reason."""
WAITING, HELD, BACK = "waiting", "held", "returned"
"""The state of one that has not ended: never delivered; unacknowledged; returned, to be delivered again."""


MESSAGES_MAX = 1 << 24
"""The most messages for one process: each takes about 100 bytes."""


def lifecycles(events: "DataFrame") -> "DataFrame":
    """A row for each message that the events tell of, with Spark.

    `log`, `protocol`, `name`, `seq`: which message. `bytes`: of its body. `origin`: of a dead letter, where
    it died. `produced`: when it came. `delivered`, `redelivered`: the first time and the last.
    `returned`: the last time. `ended`: when it left the queue. `deliveries`, `returns`: how often. `outcome`,
    and for one that ended otherwise than by an acknowledgement `reason` and `target`. `until_delivered_ms`,
    `in_queue_ms`: from when it came to the first delivery, and to its end.
    """
    from pyspark.sql import functions as fn

    sound = events.where(fn.col("fault").isNull())
    each = (
        sound.where(fn.col("messages") > 0)
        .join(fn.broadcast(_queues(sound)), "log")
        .withColumn("seq", fn.explode(fn.sequence("seq", fn.col("seq") + fn.col("messages") - 1)))
    )
    is_, place = fn.col("event"), fn.col("offset")

    def when(aggregate: "Callable[[Column, Column], Column]", *events: str) -> "Column":
        return aggregate(fn.col("time"), fn.when(is_.isin(*events), place))

    gathered = each.groupBy("log", "protocol", "name", "seq").agg(
        fn.max("bytes").alias("bytes"),
        fn.max("origin").alias("origin"),
        when(fn.min_by, PRODUCED).alias("produced"),
        when(fn.min_by, DELIVERED).alias("delivered"),
        when(fn.max_by, DELIVERED).alias("redelivered"),
        when(fn.max_by, RETURNED).alias("returned"),
        when(fn.max_by, ACKNOWLEDGED, GONE, MOVED).alias("ended"),
        fn.count(fn.when(is_ == DELIVERED, 1)).alias("noted"),
        fn.count(fn.when((is_ == DELIVERED) & (place > fn.col("snapshot_at")), 1)).alias("noted_since"),
        fn.min_by("deliveries", fn.when(is_ == KEPT, place)).alias("kept"),
        fn.max("deliveries").alias("counted"),
        fn.count(fn.when(is_ == RETURNED, 1)).alias("returns"),
        fn.max(fn.when(is_.isin(ACKNOWLEDGED, GONE, MOVED), is_)).alias("end"),
        fn.max(fn.when(is_.isin(GONE, MOVED), fn.col("reason"))).alias("reason"),
        fn.max("target").alias("target"),
        fn.max(fn.when(is_ == DELIVERED, place)).alias("delivered_at"),
        fn.max(fn.when(is_.isin(RETURNED, KEPT), place)).alias("stood_at"),
        fn.first("head").alias("head"),
    )
    out = fn.col("end").isNull() & (fn.col("seq") < fn.col("head"))
    again = fn.coalesce(fn.col("delivered_at") > fn.coalesce("stood_at", fn.lit(-1)), fn.lit(False))
    # Each of these misses some: what a crash lost, or what came before the log begins. None is too large.
    deliveries = fn.greatest(
        "noted",
        fn.col("counted") + again.cast("int"),
        fn.when(fn.col("produced").isNull(), fn.coalesce("kept", fn.lit(0)) + fn.col("noted_since")),
        fn.when((out & fn.col("counted").isNull()) | (fn.col("end") == ACKNOWLEDGED), 1).otherwise(0),
    )
    return gathered.select(
        "log",
        "protocol",
        "name",
        "seq",
        "bytes",
        "origin",
        "produced",
        "delivered",
        fn.when(fn.col("noted") > 1, fn.col("redelivered")).alias("redelivered"),
        "returned",
        "ended",
        deliveries.alias("deliveries"),
        "returns",
        _outcome(out, again).alias("outcome"),
        "reason",
        "target",
        _between("produced", "delivered").alias("until_delivered_ms"),
        _between("produced", "ended").alias("in_queue_ms"),
    )


def _queues(events: "DataFrame") -> "DataFrame":
    """For each queue, where its row begins (behind all that was delivered or has left), and its first
    snapshot.
    """
    from pyspark.sql import functions as fn

    passed = fn.col("event").isin(DELIVERED, ACKNOWLEDGED, RETURNED, GONE, MOVED, SNAPSHOT)
    return events.groupBy("log").agg(
        fn.coalesce(fn.max(fn.when(passed, fn.col("seq") + fn.col("messages"))), fn.lit(0)).alias("head"),
        fn.min(fn.when(fn.col("event") == SNAPSHOT, fn.col("offset"))).alias("snapshot_at"),
    )


def _outcome(out: "Column", again: "Column") -> "Column":
    from pyspark.sql import functions as fn

    found = fn.when(out & again, HELD).when(out, BACK)
    for (event, reason), outcome in OUTCOMES.items():
        same = fn.col("end") == event
        found = found.when(same if reason is None else same & (fn.col("reason") == reason), outcome)
    return found.when(fn.col("end").isNotNull(), fn.col("end")).otherwise(WAITING)


def _between(start: str, end: str) -> "Column":
    """Milliseconds; 0 if the wall clock was set back in between."""
    from pyspark.sql import functions as fn

    passed = fn.unix_millis(end) - fn.unix_millis(start)
    return fn.when(passed < 0, 0).otherwise(passed)


# -- without Spark


def lifecycles_of(batches: Iterable[pa.RecordBatch]) -> pa.Table:
    """The rows of lifecycles in order, from events in each log's order. Raises TooMany."""
    found = _Lifecycles()
    for batch in batches:
        found.add(batch)
    return found.table()


_EVENTS = (PRODUCED, DELIVERED, RETURNED, KEPT, SNAPSHOT, ACKNOWLEDGED, GONE, MOVED)
"""Event numbers; those that end a lifecycle come last, as in Spark's maximum."""
_PRODUCED, _DELIVERED, _RETURNED, _KEPT, _SNAPSHOT, _ACKNOWLEDGED, _GONE, _MOVED = range(len(_EVENTS))
_PAGE = 256
"""Messages of a queue with adjacent indexes."""
_NONE = -1
_FIRST = ("produced", "delivered", "kept")
_LAST = ("redelivered", "returned", "ended", "delivered_at", "stood_at")
_MOST = ("bytes", "counted", "end", "reason", "origin", "target")
_COUNTS = ("noted", "noted_since", "returns")


class _Lifecycles:
    """An index into `columns` for each message; pages of indexes are given out as sequences appear."""

    def __init__(self) -> None:
        self.columns: dict[str, Any] = {
            **{name: np.empty(0, np.int64) for name in (*_FIRST, *_LAST, "bytes")},
            **{name: np.empty(0, np.int32) for name in (*_MOST[1:], *_COUNTS)},
        }
        self.seen = np.empty(0, np.bool_)
        self.pages: dict[tuple[str, int], int] = {}
        self.heads: dict[str, int] = {}
        self.snapshots: dict[str, int] = {}
        self.protocols: dict[str, str] = {}
        self.texts: dict[str, list[str]] = {"reason": [], "origin": [], "target": []}

    def add(self, batch: pa.RecordBatch) -> None:
        sound = batch.filter(batch.column("fault").is_null())
        logs = sound.column("log").unique().to_pylist()
        for log in logs:
            rows = sound if len(logs) == 1 else sound.filter(pc.equal(sound.column("log"), log))
            self.protocols[log] = rows.column("protocol")[0].as_py()
            self._add(log, rows)

    def _add(self, log: str, rows: pa.RecordBatch) -> None:
        event = _numbers(pc.index_in(rows.column("event"), pa.array(_EVENTS)))
        offset, seq, messages = (_numbers(rows.column(name)) for name in ("offset", "seq", "messages"))
        passed = (event != _NONE) & ~np.isin(event, (_PRODUCED, _KEPT))
        self.heads[log] = int(max((seq + messages)[passed].max(initial=0), self.heads.get(log, 0)))
        for place in offset[event == _SNAPSHOT][:1].tolist():
            self.snapshots.setdefault(log, place)
        counts = np.maximum(messages, 0)
        of = np.repeat(np.arange(len(counts)), counts)
        at = self._places(log, seq[of] + counted(counts))
        self.seen[at] = True
        time = _numbers(rows.column("time").cast(pa.int64()))
        deliveries = _numbers(rows.column("deliveries"))
        event, offset, time = event[of], offset[of], time[of]
        left = event >= _ACKNOWLEDGED
        delivered, returned = event == _DELIVERED, event == _RETURNED
        self._first("produced", at, event == _PRODUCED, time)
        self._first("delivered", at, delivered, time)
        self._first("kept", at, event == _KEPT, deliveries[of])
        self._last("redelivered", at, delivered, time)
        self._last("returned", at, returned, time)
        self._last("ended", at, left, time)
        self._last("delivered_at", at, delivered, offset)
        self._last("stood_at", at, returned | (event == _KEPT), offset)
        self._most("bytes", at, _numbers(rows.column("bytes"))[of])
        self._most("counted", at, deliveries[of])
        self._most("end", at, np.where(left, event, _NONE))
        self._most("reason", at, np.where(event >= _GONE, self._text(rows, "reason")[of], _NONE))
        self._most("origin", at, self._text(rows, "origin")[of])
        self._most("target", at, self._text(rows, "target")[of])
        self._count("noted", at, delivered)
        self._count("noted_since", at, delivered & (offset > self.snapshots.get(log, np.iinfo(np.int64).max)))
        self._count("returns", at, returned)

    def _places(self, log: str, seq: "Numbers") -> "Numbers":
        pages, which = np.unique(seq // _PAGE, return_inverse=True)
        for page in pages.tolist():
            self.pages.setdefault((log, page), len(self.pages))
        self._grow(len(self.pages) * _PAGE)
        places: Numbers = np.array([self.pages[log, page] for page in pages.tolist()], np.int64)
        return places[which] * _PAGE + seq % _PAGE

    def _grow(self, size: int) -> None:
        """Have at least `size` rows."""
        have = len(self.seen)
        if size <= have:
            return
        if size > MESSAGES_MAX + _PAGE * len(self.heads):
            raise TooMany(f"more than {MESSAGES_MAX:,} messages")
        # in place: the system remaps large arrays, and nothing is copied
        for name, column in [("seen", self.seen), *self.columns.items()]:
            column.resize(max(size, 2 * have), refcheck=False)
            column[have:] = 0 if name in ("seen", *_COUNTS) else _NONE

    def _first(self, name: str, at: "Numbers", mask: Any, values: "Numbers") -> None:
        column, at, values = self.columns[name], at[mask], values[mask]
        unset = column[at] == _NONE
        column[at[unset][::-1]] = values[unset][::-1]  # of duplicates the last assignment stays

    def _last(self, name: str, at: "Numbers", mask: Any, values: "Numbers") -> None:
        self.columns[name][at[mask]] = values[mask]

    def _most(self, name: str, at: "Numbers", values: "Numbers") -> None:
        there = values != _NONE
        if there.any():
            np.maximum.at(self.columns[name], at[there], values[there].astype(self.columns[name].dtype))

    def _count(self, name: str, at: "Numbers", mask: Any) -> None:
        np.add.at(self.columns[name], at[mask], 1)

    def _text(self, rows: pa.RecordBatch, name: str) -> "Numbers":
        """A column's texts as numbers that sort like the texts. A new text may change existing numbers."""
        column = rows.column(name)
        known = self.texts[name]
        if new := set(column.drop_null().unique().to_pylist()) - set(known):
            ordered = sorted([*known, *new])
            moved = np.array([*(ordered.index(each) for each in known), _NONE], np.int32)
            self.columns[name] = moved[self.columns[name]]
            self.texts[name] = ordered
        return _numbers(pc.index_in(column, pa.array(self.texts[name], pa.string())))

    def table(self) -> pa.Table:
        order = self._order()
        of = {name: column[order] for name, column in self.columns.items()}
        logs, pages = [log for log, _ in self.pages], [page for _, page in self.pages]
        seq = np.array(pages, np.int64)[order // _PAGE] * _PAGE + order % _PAGE
        head = np.array([self.heads[log] for log in logs], np.int64)[order // _PAGE]
        end, produced = of["end"], of["produced"]
        out = (end == _NONE) & (seq < head)
        again = (of["delivered_at"] != _NONE) & (of["delivered_at"] > of["stood_at"])
        inferred = np.maximum(of["kept"], 0) + of["noted_since"]
        deliveries = np.maximum.reduce(
            [
                of["noted"],
                np.where(of["counted"] == _NONE, 0, of["counted"] + again),
                np.where(produced == _NONE, inferred, 0),
                (out & (of["counted"] == _NONE)) | (end == _ACKNOWLEDGED),
            ]
        )
        log = pa.array(logs, pa.string()).take(pa.array(order // _PAGE))
        protocol = pa.array([self.protocols[each] for each in logs], pa.string())
        redelivered = np.where(of["noted"] > 1, of["redelivered"], _NONE)
        return pa.table(
            {
                "log": log,
                "protocol": protocol.take(pa.array(order // _PAGE)),
                "name": log,
                "seq": seq,
                "bytes": _nullable(of["bytes"]),
                "origin": self._texts("origin", of["origin"]),
                "produced": _times(produced),
                "delivered": _times(of["delivered"]),
                "redelivered": _times(redelivered),
                "returned": _times(of["returned"]),
                "ended": _times(of["ended"]),
                "deliveries": deliveries.astype(np.int64),
                "returns": of["returns"].astype(np.int64),
                "outcome": self._outcomes(end, of["reason"], out, again),
                "reason": self._texts("reason", of["reason"]),
                "target": self._texts("target", of["target"]),
                "until_delivered_ms": _passed(produced, of["delivered"]),
                "in_queue_ms": _passed(produced, of["ended"]),
            }
        )

    def _order(self) -> "Numbers":
        """The indexes of messages, by queue and sequence."""
        begins = np.array([number for _, number in sorted(self.pages.items())], np.int64) * _PAGE
        places = (begins[:, None] + np.arange(_PAGE)).ravel()
        found: Numbers = places[self.seen[places]]
        return found

    def _texts(self, name: str, column: "Numbers") -> pa.Array:
        return pa.array(self.texts[name], pa.string()).take(_nullable(column))

    def _outcomes(self, end: "Numbers", reason: "Numbers", out: Any, again: Any) -> pa.Array:
        """Spark's `_outcome`."""
        names = [WAITING, HELD, BACK, *sorted(set(OUTCOMES.values())), *_EVENTS]
        found = np.where(end == _NONE, np.where(out, np.where(again, 1, 2), 0), end + names.index(_EVENTS[0]))
        known = self.texts["reason"]
        for (event, why), outcome in OUTCOMES.items():
            same = end == _EVENTS.index(event)
            if why is not None:
                same &= reason == (known.index(why) if why in known else len(known))
            found[same] = names.index(outcome)
        return pa.array(names, pa.string()).take(pa.array(found))


def _numbers(column: pa.Array) -> "Numbers":
    found: Numbers = column.fill_null(_NONE).to_numpy(zero_copy_only=False).astype(np.int64)
    return found


def _nullable(column: "Numbers") -> pa.Array:
    return pa.array(column.astype(np.int64), mask=column == _NONE)


def _times(column: "Numbers") -> pa.Array:
    return _nullable(column).cast(time_type())


def _passed(start: "Numbers", end: "Numbers") -> pa.Array:
    """Spark's `_between`."""
    passed = np.maximum(end // 1000 - start // 1000, 0)
    return pa.array(passed, mask=(start == _NONE) | (end == _NONE))
