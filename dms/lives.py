"""Each message's life, from the events that the log tells: a Spark aggregation over queue and sequence.

    produced -> delivered -> acknowledged
                   |   ^
                   v   |
                 returned -> dead-lettered, expired, ...

A life ends once, and each of its events is in the log once, so plain minima, maxima and counts are enough, in
one pass and in any order; which came first their offsets say, since clocks may be set back. What no record
says outright is inferred as the broker does when it opens the queue (STORAGE.md): all before the row's head,
and not gone, was delivered, even if a crash lost the note.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

from dms.events import ACKNOWLEDGED, DELIVERED, GONE, KEPT, MOVED, PRODUCED, RETURNED, SNAPSHOT

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

OUTCOMES = {
    (ACKNOWLEDGED, None): "acknowledged",
    (MOVED, "ttl"): "dead-lettered",
    (MOVED, "max_deliveries"): "dead-lettered",
    (MOVED, "redriven"): "redriven",
    (GONE, "ttl"): "expired",
    (GONE, "max_deliveries"): "exhausted",
    (GONE, "purged"): "purged",
}
"""How a life ended, by event and reason."""
WAITING, HELD, BACK = "waiting", "held", "returned"
"""How it stands where it has not: never delivered; with a consumer; given back, and to be delivered again."""


def lives(events: "DataFrame") -> "DataFrame":
    """A row for each message that the events tell of.

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
    # Each of these misses some: what a crash has lost, what came before the log begins. None is too many.
    deliveries = fn.greatest(
        "noted",
        fn.col("counted") + again.cast("int"),
        fn.when(fn.col("produced").isNull(), fn.coalesce("kept", fn.lit(0)) + fn.col("noted_since")),
        fn.when(out | (fn.col("end") == ACKNOWLEDGED), 1).otherwise(0),
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
    """Of each queue where its row begins, behind all that was delivered or has gone; its first snapshot."""
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
    """Milliseconds; 0 where the wall clock was set back meanwhile."""
    from pyspark.sql import functions as fn

    passed = fn.unix_millis(end) - fn.unix_millis(start)
    return fn.when(passed < 0, 0).otherwise(passed)
