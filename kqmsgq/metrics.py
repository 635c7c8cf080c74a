"""KqueueMsgQ's counters and the names of its metrics. Counters are plain ints: no call per message."""

from collections import Counter

import attrs

from shared.metrics import Gauge, counter, counter_by


@attrs.define(eq=False)
class Counts:
    """Counters, raised where events happen and read when metrics are scraped."""

    messages_in: int = counter("messages_produced_total", "Messages received from producers.")
    bytes_in: int = counter("produced_bytes_total", "Their bytes, headers included.")
    messages_delivered: int = counter(
        "messages_delivered_total", "Messages handed to consumers, each to each."
    )
    messages_unrouted: int = counter("messages_unrouted_total", "Messages that nobody was subscribed to.")
    messages_dropped: int = counter(
        "messages_dropped_total", "Messages dropped because their consumer did not read."
    )
    bytes_dropped: int = counter("dropped_bytes_total", "Their bytes.")
    consumers_dropped_from: int = counter("consumers_dropped_from_total", "Consumers that lost messages so.")
    faults: Counter[str] = counter_by(
        "fault", "faults_total", "Connections closed for breaking the protocol."
    )
    producers: int = 0
    consumers: int = 0


GAUGES = (
    Gauge("producers", "Producers connected.", lambda queues: queues.counts.producers),
    Gauge("consumers", "Consumers connected.", lambda queues: queues.counts.consumers),
    Gauge("consumers_subscribed", "Consumers with a subscription.", lambda queues: queues.statistics()[1]),
    Gauge("subscriptions", "Subscriptions.", lambda queues: queues.statistics()[0]),
    Gauge("subscriptions_bytes", "The memory charged for them.", lambda queues: queues.subscriptions_bytes),
)
"""Gauges that are read from `Queues`."""
