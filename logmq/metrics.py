"""LogMQ's counters and their names: plain ints, no call per message."""

import attrs

from logmq.wire import Refusal
from shared.metrics import Gauge, Sample, counter, counter_by


@attrs.define(eq=False)
class Counts:
    """Counters, updated in place and read when metrics are scraped."""

    messages_in: int = counter("messages_produced_total", "Messages written by PRODUCE, APPEND and BATCH.")
    bytes_in: int = counter("produced_bytes_total", "Bytes written, record headers included.")
    messages_consumed: int = counter("messages_consumed_total", "Messages read by CONSUME.")
    bytes_fetched: int = counter("fetched_bytes_total", "Log bytes read by FETCH.")
    bytes_tailed: int = counter("tailed_bytes_total", "Bytes sent by TAIL, all readers together.")
    batches_repeated: int = counter(
        "batches_repeated_total", "BATCH requests answered, but not written again."
    )
    commits_expired: int = counter("commits_expired_total", "Commits of groups idle for group_seconds.")
    tails_fallen_behind: int = counter("tails_fallen_behind_total", "TAIL readers that left the shared feed.")
    too_late: int = counter("requests_too_late_total", "Lines and bodies that did not come in time.")
    http: int = counter("http_closed_total", "Connections closed because they brought HTTP.")
    tls: int = counter("tls_closed_total", "Connections closed because they brought TLS to a plain port.")
    refusals: dict[str, int] = counter_by("code", "requests_refused_total", "Requests answered with ERR.")
    tails: int = 0
    fetches_waiting: int = 0

    def count_refused(self, refusal: Refusal, count: int = 1) -> None:
        self.refusals[refusal.code] = self.refusals.get(refusal.code, 0) + count


GAUGES = (
    Gauge("topics", "Topics.", lambda broker: len(broker.topics)),
    Gauge("commits", "Committed offsets of groups.", lambda broker: len(broker.groups)),
    Gauge("writers", "BATCH writers remembered.", lambda broker: len(broker.writers)),
    Gauge("tails", "TAIL readers.", lambda broker: broker.counts.tails),
    Gauge("fetches_waiting", "FETCH requests that wait.", lambda broker: broker.counts.fetches_waiting),
)
"""Read from the broker."""

LAGS_SHOWN = 10


def lag_sample(group: str, topic: str, behind_bytes: int) -> Sample:
    """How far one of the farthest groups is behind."""
    text = f"What groups have to read yet: the {LAGS_SHOWN} that are farthest behind."
    return Sample("logmq_group_lag_bytes", behind_bytes, text, "gauge", (("group", group), ("topic", topic)))
