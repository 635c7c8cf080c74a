"""Each message's lifecycle, from the events in the log, by queue and sequence: a query of Spark's SQL.

    produced -> delivered -> acknowledged
                   |   ^
                   v   |
                 returned -> dead-lettered, expired, ...

A lifecycle ends once, and each of its events is in the log once. So minima, maxima and counts are enough, in
one pass and in any order. Offsets tell which came first, because clocks may be set back. What no record says
is inferred as the broker does when it opens the queue (STORAGE.md). So a message before the row's head that
has not left was delivered, even if a crash lost the note. Where a record has its number of deliveries, that
counts.
"""

from collections.abc import Iterable

from dms.job_head import JOB_FIRST
from dms.tables.events import ACKNOWLEDGED, DELIVERED, GONE, KEPT, MOVED, PRODUCED, RETURNED, SNAPSHOT

OUTCOMES = {
    (ACKNOWLEDGED, None): "acknowledged",
    (MOVED, "ttl"): "dead-lettered",
    (MOVED, "max_deliveries"): "dead-lettered",
    (MOVED, "redriven"): "redriven",
    (GONE, "ttl"): "expired",
    (GONE, "max_deliveries"): "exhausted",
    (GONE, "purged"): "purged",
    (GONE, "cancelled"): "cancelled",
}
"""How a lifecycle ended, by event and reason."""
WAITING, HELD, BACK = "waiting", "held", "returned"
"""The state of one that has not ended: never delivered; unacknowledged; returned, to be delivered again."""


def _among(events: Iterable[str]) -> str:
    return f"event IN ({', '.join(map(repr, events))})"


def _when(aggregate: str, *events: str) -> str:
    """The time of the first or the last of these events."""
    return f"{aggregate}(time, IF({_among(events)}, `offset`, NULL))"


def _between(start: str, end: str) -> str:
    """Milliseconds; 0 if the wall clock was set back in between."""
    return (
        f"IF({start} IS NULL OR {end} IS NULL, NULL, greatest(unix_millis({end}) - unix_millis({start}), 0))"
    )


_PASSED = _among((DELIVERED, ACKNOWLEDGED, RETURNED, GONE, MOVED, SNAPSHOT))
_ENDED = _among((ACKNOWLEDGED, GONE, MOVED))
_OUTCOME = "\n".join(
    f"    WHEN ending = '{event}' AND {'true' if reason is None else f'reason = {reason!r}'} THEN '{outcome}'"
    for (event, reason), outcome in OUTCOMES.items()
)

LIFECYCLES = f"""
WITH sound AS (SELECT * FROM {{decoded}} WHERE fault IS NULL),
-- Where each queue's row begins (behind all that was delivered or has left), and its first snapshot. Jobs are
-- in no row.
queues AS (
  SELECT log AS queue,
    coalesce(max(IF({_PASSED} AND seq < {JOB_FIRST}, seq + messages, NULL)), 0) AS head,
    min(IF({_among((SNAPSHOT,))}, `offset`, NULL)) AS snapshot_at
  FROM sound GROUP BY log
),
each AS (
  SELECT /*+ BROADCAST(queues) */ log, protocol, name, event, `offset`, time, bytes, origin, deliveries,
    reason, target, head, snapshot_at, explode(sequence(seq, seq + messages - 1)) AS seq
  FROM sound JOIN queues ON log = queue WHERE messages > 0
),
gathered AS (
  SELECT log, protocol, name, seq,
    max(bytes) AS bytes,
    max(origin) AS origin,
    {_when("min_by", PRODUCED)} AS produced,
    {_when("min_by", DELIVERED)} AS delivered,
    {_when("max_by", DELIVERED)} AS redelivered,
    {_when("max_by", RETURNED)} AS returned,
    {_when("max_by", ACKNOWLEDGED, GONE, MOVED)} AS ended,
    count_if({_among((DELIVERED,))}) AS noted,
    count_if({_among((DELIVERED,))} AND `offset` > snapshot_at) AS noted_since,
    min_by(deliveries, IF({_among((KEPT,))}, `offset`, NULL)) AS kept,
    max(deliveries) AS counted,
    count_if({_among((RETURNED,))}) AS returns,
    max(IF({_ENDED}, event, NULL)) AS ending,
    max(IF({_among((GONE, MOVED))}, reason, NULL)) AS reason,
    max(target) AS target,
    max(IF({_among((DELIVERED,))}, `offset`, NULL)) AS delivered_at,
    max(IF({_among((RETURNED, KEPT))}, `offset`, NULL)) AS stood_at,
    first(head) AS head
  FROM each GROUP BY log, protocol, name, seq
),
known AS (
  SELECT *, ending IS NULL AND
    IF(seq < {JOB_FIRST}, seq < head, delivered_at IS NOT NULL OR coalesce(counted, 0) > 0) AS out,
    coalesce(delivered_at > coalesce(stood_at, -1), false) AS again
  FROM gathered
)
SELECT log, protocol, name, seq, bytes, origin, produced, delivered,
  IF(noted > 1, redelivered, NULL) AS redelivered,
  returned, ended,
  -- Each of these misses some: what a crash lost, or what came before the log begins. None is too large.
  greatest(
    noted,
    counted + CAST(again AS INT),
    IF(produced IS NULL, coalesce(kept, 0) + noted_since, NULL),
    IF((out AND counted IS NULL) OR coalesce(ending = '{ACKNOWLEDGED}', false), 1, 0)
  ) AS deliveries,
  returns,
  CASE
    WHEN out AND again THEN '{HELD}'
    WHEN out THEN '{BACK}'
{_OUTCOME}
    WHEN ending IS NOT NULL THEN ending
    ELSE '{WAITING}'
  END AS outcome,
  reason, target,
  {_between("produced", "delivered")} AS until_delivered_ms,
  {_between("produced", "ended")} AS in_queue_ms
FROM known
"""
"""A row for each message that the events tell of.

`log`, `protocol`, `name`, `seq`: which message. `bytes`: of its body. `origin`: of a dead letter, where it
died. `produced`: when it came. `delivered`, `redelivered`: the first time and the last. `returned`: the last
time. `ended`: when it left the queue. `deliveries`, `returns`: how often. `outcome`, and for one that ended
otherwise than by an acknowledgement `reason` and `target`. `until_delivered_ms`, `in_queue_ms`: from when it
came to the first delivery, and to its end.
"""
