"""DMS's counters and their names: plain ints, no call per message."""

from collections import Counter
from functools import partial

import attrs

from dms.wire import Status
from shared.metrics import Gauge, counter, counter_by, summed


@attrs.define(eq=False)
class Counts:
    """Counters, updated in place and read when metrics are scraped."""

    produced: int = counter("messages_produced_total", "Messages taken in, dead letters too.")
    delivered: int = counter("messages_delivered_total", "Deliveries.")
    redelivered: Counter[str] = counter_by(
        "delivery", "messages_redelivered_total", "Deliveries of what had come back, by which one it was."
    )
    acked: int = counter("messages_acked_total", "Messages acknowledged.")
    returned: int = counter("messages_returned_total", "Deliveries that came back: NACK, connection lost.")
    overdue: int = counter("messages_overdue_total", "Deliveries that came back because `ack_ms` had passed.")
    dead_lettered: int = counter("messages_dead_lettered_total", "Dead messages moved to their queue.")
    dropped: int = counter("messages_dropped_total", "Dead messages without a queue to go to.")
    held_back: int = counter("messages_held_back_total", "Times that a dead message's queue had no place.")
    """Counted for the first dead letter of a queue whose dead-letter queue is missing, full, or without disk.
    """
    purged: int = counter("messages_purged_total", "Messages taken out by an administrator.")
    imported: int = counter("messages_imported_total", "Messages that came from .dmsq files.")
    repeated: int = counter("messages_repeated_total", "PRODUCE_WITHs whose dedup key was known.")
    cancelled: int = counter("messages_cancelled_total", "Jobs cancelled before they were delivered.")
    scheduled: int = counter("messages_scheduled_total", "Messages that came because a schedule said so.")
    scheduled_late: int = counter("messages_scheduled_late_total", "Times that a scheduled one had no place.")
    timeouts: int = counter("consumes_timed_out_total", "CONSUMEs that have waited in vain.")
    clients_refused: int = counter("clients_refused_total", "Connections above clients_max.")
    too_late: int = counter("frames_too_late_total", "Frames that did not come to their end in time.")
    unkept: int = counter("changes_unkept_total", "Changes answered though the disk has failed.")
    """With durability `best-effort` only."""
    damaged_ranges: int = counter("damaged_ranges_total", "Places of queues' logs whose messages are lost.")
    failed_reads: int = counter("failed_reads_total", "Reads of a queue's log that failed and come again.")
    snapshots: int = counter("snapshots_total", "Snapshots of queues.")
    fetches: int = counter("cold_reads_total", "Reads of messages that were not in memory.")
    refusals: Counter[int] = counter_by(
        "status",
        "requests_refused_total",
        "Requests answered with ERROR.",
        lambda status: Status(status).name,
    )


_all_of = partial(summed, of="queues")

GAUGES = (
    Gauge("queues", "Queues.", lambda engine: len(engine.queues)),
    Gauge("queues_paused", "Queues that deliver nothing until they are resumed.", _all_of("paused")),
    Gauge("clients", "Connections that have made their handshake.", lambda engine: len(engine.consumers)),
    Gauge("messages", "Messages in all queues, held ones included.", _all_of("depth")),
    Gauge(
        "messages_ready",
        "Messages that nobody holds, delayed ones too.",
        lambda engine: sum(queue.depth - queue.held for queue in engine.queues.values()),
    ),
    Gauge(
        "messages_waiting",
        "Jobs that wait for their time.",
        lambda engine: sum(
            len(queue.jobs.waiting) for queue in engine.queues.values() if queue.jobs is not None
        ),
    ),
    Gauge(
        "keys_ready",
        "Keys of jobs that may be delivered.",
        lambda engine: sum(
            queue.jobs.ready.ready_keys for queue in engine.queues.values() if queue.jobs is not None
        ),
    ),
    Gauge("messages_held", "Messages delivered and not acknowledged.", _all_of("held")),
    Gauge(
        "messages_dead",
        "Dead messages whose dead-letter queue is missing or full.",
        lambda engine: sum(queue.expiry.dead for queue in engine.parked if queue.expiry is not None),
    ),
    Gauge(
        "consumers",
        "Connections and bridges that consume a queue.",
        lambda engine: sum(consumer.queue is not None for consumer in engine.consumers.values()),
    ),
    Gauge("consumes_waiting", "CONSUMEs that wait.", summed("waiting", of="consumers")),
    Gauge("hot_bytes", "Memory for messages that nobody holds.", lambda engine: engine.memory.loaded_bytes),
)
"""Read from the engine."""
