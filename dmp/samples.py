"""The metrics, read from plain ints when somebody scrapes."""

from collections.abc import Iterable

from dmp.broker import Broker
from shared.metrics import Sample

_COUNTERS = (
    ("published", "messages_published_total", "Messages published to an exchange that is there."),
    ("published_bytes", "published_bytes_total", "Their bodies' bytes."),
    ("delivered", "messages_delivered_total", "Messages given to consumers and feeds."),
    ("got", "messages_got_total", "Messages given to basic.get."),
    ("redelivered", "messages_redelivered_total", "Of all those, the ones that had been given before."),
    ("acknowledged", "messages_acknowledged_total", "Messages acknowledged."),
    ("rejected", "messages_rejected_total", "Messages rejected and not wanted back."),
    ("requeued", "messages_requeued_total", "Messages that came back to their queue."),
    ("confirmed", "publishes_confirmed_total", "Publishes confirmed."),
    ("refused_publishes", "publishes_refused_total", "Publishes not taken: disk or memory."),
    ("returned", "messages_returned_total", "Mandatory or immediate messages sent back."),
    ("unroutable", "messages_unroutable_total", "Messages that no queue wanted: dropped, or sent back."),
    ("expired", "messages_expired_total", "Messages that grew too old in a queue."),
    ("overflowed", "messages_overflowed_total", "Messages pushed out of a queue by its maximum length."),
    ("dropped_full", "messages_dropped_total", "New messages dropped at queue_drop_messages."),
    ("too_large_for_feeds", "messages_too_large_for_feeds_total", "Messages that no feed can carry."),
    ("dead_lettered", "messages_dead_lettered_total", "Messages passed on to a dead-letter exchange."),
    ("dead_letters_lost", "dead_letters_lost_total", "Dead letters that no queue wanted."),
    ("recovered", "messages_recovered_total", "Messages that the start found in the logs of queues."),
    ("memory_waits", "memory_waits_total", "Times a publisher was held back for memory_bytes_max."),
    ("warned", "queue_warnings_total", "Times a queue grew beyond queue_warn_messages."),
    ("logins_refused", "logins_refused_total", "Wrong names, passwords or places."),
    ("heartbeats_missed", "heartbeats_missed_total", "Connections closed for silence."),
    ("returns_lost", "returns_lost_total", "Messages of sinks whose principal was gone, or did not read."),
    ("leases_given", "leases_given_total", "Leases of sinks and feeds."),
    ("leases_refused", "leases_refused_total", "DMP connections without a good lease."),
    ("leases_lapsed", "leases_lapsed_total", "Leases that were not used in time."),
    ("sunk", "messages_sunk_total", "Of the messages published, those that came by sinks."),
    ("crashes", "queue_crashes_total", "Bugs in the code of queues; each was one queue's trouble."),
    ("too_late", "too_late_total", "Connections closed for a login or a frame that took too long."),
)


def samples(broker: Broker) -> Iterable[Sample]:
    counts = broker.counts
    for field, name, help_ in _COUNTERS:
        yield Sample(f"dmp_{name}", getattr(counts, field), help_)
    for code, refused in sorted(counts.refusals.items()):
        yield Sample(
            "dmp_refusals_total",
            refused,
            "Channel and connection exceptions, and DMP's refusals.",
            labels=(("code", code),),
        )
    queues = broker.queues.values()
    for name, value, help_ in (
        ("connections", counts.connections, "AMQP connections past their login."),
        ("sinks", counts.sinks, "DMP connections that write."),
        ("feeds", counts.feeds, "DMP connections that read."),
        ("leases", len(broker.leases), "Leases that are not used yet."),
        ("channels", counts.channels, "Open channels."),
        ("consumers", counts.consumers, "Consumers."),
        ("exchanges", len(broker.exchanges), "Exchanges."),
        ("queues", len(broker.queues), "Queues."),
        ("bindings", broker.bindings, "Bindings."),
        ("wild_words", broker.wild_words, "Words of topic bindings with more than three wildcards."),
        (
            "queues_damaged",
            sum(queue.lost or queue.adopted for queue in queues),
            "Queues that lost messages and were not purged since, or their definition and were not declared.",
        ),
        ("bodies", len(broker.bodies), "Large bodies, each in a log of its own."),
        ("bodies_unclaimed", broker.bodies.unclaimed, "Of those found at the start, what no queue has."),
        ("begun_bytes", broker.bodies.begun_bytes, "Large bodies that have begun, as announced."),
        ("bindings_waiting", len(broker.wiring.waiting), "Bindings whose exchange or queue is not there."),
        ("messages_ready", sum(queue.depth for queue in queues), "Messages that wait for a taker."),
        (
            "messages_cold",
            sum(queue.cold.count for queue in queues if queue.cold is not None),
            "Of these, the ones that are in the logs of their queues alone.",
        ),
        ("messages_unacked", sum(queue.unacked for queue in queues), "Messages given and not acknowledged."),
        (
            "memory_bytes",
            broker.memory.held_bytes,
            "What waiting messages take; above memory_bytes_max publishers are not read.",
        ),
    ):
        yield Sample(f"dmp_{name}", value, help_, kind="gauge")
