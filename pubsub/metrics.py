"""Pub/sub's counters and the names of its metrics. Counters are plain ints: no call per message."""

from collections import Counter

import attrs

from shared.metrics import Gauge, counter, counter_by


@attrs.define(eq=False)
class Counts:
    """Counters, raised where events happen and read when metrics are scraped."""

    messages_in: int = counter("messages_published_total", "Datagrams that were messages.")
    messages_delivered: int = counter("messages_delivered_total", "Messages handed to subscribers.")
    messages_unmatched: int = counter("messages_unmatched_total", "Messages that nobody wanted.")
    """Messages without a subscriber, connected or absent with a subscription that keeps."""
    messages_kept: int = counter("messages_kept_total", "Messages kept for clients that were away.")
    kept_dropped: int = counter("kept_dropped_total", "Of these, dropped: too many, or too large.")
    """Kept messages dropped for newer ones, or for lack of memory."""
    kept_unwritten: int = counter(
        "kept_unwritten_total", "Of these, in memory alone: the store took no more."
    )
    kept_lost: int = counter("kept_lost_total", "Of these, lost to damage of their log.")
    """The number is from the log's index, which damage may have shortened."""
    retained_refused: int = counter("retained_refused_total", "Messages not retained: no room, or no disk.")
    past_messages: int = counter("past_messages_total", "Messages of the past, sent to who asked for it.")
    frames_dropped: int = counter("frames_dropped_total", "Messages dropped: a subscriber did not read.")
    subscribers_dropped_from: int = counter("subscribers_dropped_from_total", "Connections they were on.")
    sessions_expired: int = counter("sessions_expired_total", "Sessions ended: away for session_seconds.")
    unpersisted: int = counter("unpersisted_total", "Subscriptions that the store did not take.")
    datagrams_bad: Counter[str] = counter_by(
        "reason", "datagrams_bad_total", "Datagrams that were no messages."
    )
    lines: Counter[str] = counter_by("kind", "lines_total", "Lines of other programs taken in.")
    lines_dropped: Counter[str] = counter_by("reason", "lines_dropped_total", "Lines that were no messages.")
    faults: Counter[str] = counter_by(
        "fault", "faults_total", "Connections closed for breaking the protocol."
    )
    connected: int = 0


GAUGES = (
    Gauge("connected", "Clients connected.", lambda sessions: sessions.counts.connected),
    Gauge("sessions", "Clients connected or with subscriptions.", lambda sessions: len(sessions.clients)),
    Gauge("subscriptions", "Subscriptions.", lambda sessions: sessions.subscriptions),
    Gauge(
        "subscriptions_wild",
        "Those to patterns of more than three wildcards.",
        lambda sessions: sessions.wild,
    ),
    Gauge(
        "retained",
        "Topics with a retained message.",
        lambda sessions: len(sessions.retained) if sessions.retained is not None else 0,
    ),
    Gauge("kept_bytes", "Kept for clients that are away.", lambda sessions: sessions.kept.total_bytes),
)
"""Gauges that are read from `Sessions`."""
