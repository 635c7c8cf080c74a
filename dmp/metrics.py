"""What DMP and AMQP count, and what each figure is called: plain ints, no call per message."""

from collections import Counter
from functools import partial

import attrs

from shared.metrics import Gauge, counter, counter_by, summed


@attrs.define(eq=False)
class Counts:
    """Added to where it happens, all connections together; read when metrics are scraped."""

    published: int = counter("messages_published_total", "Messages published to an exchange that is there.")
    published_bytes: int = counter("published_bytes_total", "Their bodies' bytes.")
    delivered: int = counter("messages_delivered_total", "Messages given to consumers and feeds.")
    got: int = counter("messages_got_total", "Messages given to basic.get.")
    redelivered: Counter[str] = counter_by(
        "delivery",
        "messages_redelivered_total",
        "Of all those, the ones that had been given before, by which time it was.",
    )
    acknowledged: int = counter("messages_acknowledged_total", "Messages acknowledged.")
    rejected: int = counter("messages_rejected_total", "Messages rejected and not wanted back.")
    requeued: int = counter("messages_requeued_total", "Messages that came back to their queue.")
    confirmed: int = counter("publishes_confirmed_total", "Publishes confirmed.")
    refused_publishes: int = counter("publishes_refused_total", "Publishes not taken: disk or memory.")
    returned: int = counter("messages_returned_total", "Mandatory or immediate messages sent back.")
    unroutable: int = counter(
        "messages_unroutable_total", "Messages that no queue wanted: dropped, or sent back."
    )
    expired: int = counter("messages_expired_total", "Messages that grew too old in a queue.")
    overflowed: int = counter(
        "messages_overflowed_total", "Messages pushed out of a queue by its maximum length."
    )
    known: int = counter("messages_known_total", "Messages not taken, since their queue had them.")
    cancelled: int = counter("messages_cancelled_total", "Messages taken out by name, by an administrator.")
    gave_up: int = counter("messages_given_up_total", "Messages dead after more tries than x-delivery-limit.")
    too_late_acks: int = counter("acks_too_late_total", "Channels closed by an x-consumer-timeout.")
    dropped_full: int = counter("messages_dropped_total", "New messages dropped at queue_drop_messages.")
    too_large_for_feeds: int = counter(
        "messages_too_large_for_feeds_total", "Messages that no feed can carry."
    )
    dead_lettered: int = counter(
        "messages_dead_lettered_total", "Messages passed on to a dead-letter exchange."
    )
    dead_letters_lost: int = counter("dead_letters_lost_total", "Dead letters that no queue wanted.")
    failed_reads: int = counter("failed_reads_total", "Reads of a queue's log that failed and come again.")
    recovered: int = counter(
        "messages_recovered_total", "Messages that the start found in the logs of queues."
    )
    memory_waits: int = counter("memory_waits_total", "Times a publisher was held back for memory_bytes_max.")
    warned: int = counter("queue_warnings_total", "Times a queue grew beyond queue_warn_messages.")
    logins_refused: int = counter("logins_refused_total", "Wrong names, passwords or places.")
    heartbeats_missed: int = counter("heartbeats_missed_total", "Connections closed for silence.")
    returns_lost: int = counter(
        "returns_lost_total", "Messages of sinks whose principal was gone, or did not read."
    )
    leases_given: int = counter("leases_given_total", "Leases of sinks and feeds.")
    leases_refused: int = counter("leases_refused_total", "DMP connections without a good lease.")
    leases_lapsed: int = counter("leases_lapsed_total", "Leases that were not used in time.")
    sunk: int = counter("messages_sunk_total", "Of the messages published, those that came by sinks.")
    crashes: int = counter("queue_crashes_total", "Bugs in the code of queues; each was one queue's trouble.")
    too_late: int = counter("too_late_total", "Connections closed for a login or a frame that took too long.")
    refusals: Counter[str] = counter_by(
        "code", "refusals_total", "Channel and connection exceptions, and DMP's refusals."
    )
    sinks: int = 0
    feeds: int = 0
    connections: int = 0
    channels: int = 0
    consumers: int = 0


_all_of = partial(summed, of="queues")

GAUGES = (
    Gauge("connections", "AMQP connections past their login.", lambda b: b.counts.connections),
    Gauge("sinks", "DMP connections that write.", lambda b: b.counts.sinks),
    Gauge("feeds", "DMP connections that read.", lambda b: b.counts.feeds),
    Gauge("leases", "Leases that are not used yet.", lambda b: len(b.leases)),
    Gauge("channels", "Open channels.", lambda b: b.counts.channels),
    Gauge("consumers", "Consumers.", lambda b: b.counts.consumers),
    Gauge("exchanges", "Exchanges.", lambda b: len(b.exchanges)),
    Gauge("queues", "Queues.", lambda b: len(b.queues)),
    Gauge("queues_paused", "Queues that deliver nothing until they are resumed.", _all_of("paused")),
    Gauge("bindings", "Bindings.", lambda b: b.bindings),
    Gauge("wild_words", "Words of topic bindings with more than three wildcards.", lambda b: b.wild_words),
    Gauge(
        "queues_damaged",
        "Queues that lost messages and were not purged since, or their definition and were not declared.",
        lambda b: sum(queue.lost or queue.adopted for queue in b.queues.values()),
    ),
    Gauge("bodies", "Large bodies, each in a log of its own.", lambda b: len(b.bodies)),
    Gauge(
        "bodies_unclaimed", "Of those found at the start, what no queue has.", lambda b: b.bodies.unclaimed
    ),
    Gauge("begun_bytes", "Large bodies that have begun, as announced.", lambda b: b.bodies.begun_bytes),
    Gauge(
        "bindings_waiting",
        "Bindings whose exchange or queue is not there.",
        lambda b: len(b.topology.waiting),
    ),
    Gauge("messages_ready", "Messages that wait for a taker.", _all_of("depth")),
    Gauge(
        "messages_cold",
        "Of these, the ones that are in the logs of their queues alone.",
        lambda b: sum(queue.row.cold.count for queue in b.queues.values() if queue.row.cold is not None),
    ),
    Gauge("messages_unacked", "Messages delivered and not acknowledged.", _all_of("held")),
    Gauge("messages_delayed", "Messages that wait for their time.", _all_of("later.count")),
    Gauge(
        "memory_bytes",
        "What waiting messages take; above memory_bytes_max publishers are not read.",
        lambda b: b.memory.total_bytes,
    ),
)
"""Read from the broker."""
