"""Pub/sub's settings: section `[pubsub]`."""

from typing import Any, Literal

import attrs
from attrs import validators

from pubsub.wire import TOPIC_BYTES_MAX
from shared.net.settings import ProtocolAccessSettings, TlsSettings, host_setting
from shared.storage.settings import Durability
from shared.units import MIB, RESTART, limit

NAMESPACE = "pubsub"
"""The namespace of the store with pub/sub's logs."""
SESSION_SECONDS_MAX = 100 * 365 * 86_400
SESSIONS_LOG, KEPT_LOG, AWAY_LOG, RETAINED_LOG = "sessions", "kept", "away", "retained"


def _port_setting() -> Any:
    """A port that is not served unless set; 0 picks a free one."""
    bounds = validators.optional([validators.ge(0), validators.le(65535)])
    return attrs.field(default=None, validator=bounds, metadata=RESTART)


def _is_pattern(_: Any, field: Any, pattern: str) -> None:
    if not 1 <= len(pattern.encode()) <= TOPIC_BYTES_MAX or "\0" in pattern:
        raise ValueError(f"a pattern of {field.name} has 1 to {TOPIC_BYTES_MAX} bytes, none of them NUL")


@attrs.frozen
class PubsubSettings:
    """Section `[pubsub]`. Subscriptions, kept and retained messages are on disk; all else is in memory."""

    port: int = limit(7070, 0, 65535, restart=True)
    """The port of both TCP and UDP; 0 picks a free one."""
    lines_port: int | None = _port_setting()
    """A UDP port for plain lines of text, several in a datagram; unset: none. Topics: PROTOCOL.md."""
    syslog_port: int | None = _port_setting()
    """A port for syslog (RFC 5424 and 3164), UDP and TCP; unset: none."""
    statsd_port: int | None = _port_setting()
    """A UDP port for StatsD's lines; unset: none."""
    host: str | None = host_setting()
    """The address to bind; unset: that of `serve.host`."""
    allow: tuple[str, ...] = ()
    """Networks whose datagrams are accepted. Empty: all, which is allowed on loopback only. A sender's
    address can be forged."""
    durability: Durability = attrs.field(factory=lambda: Durability.parse("interval:50ms"), metadata=RESTART)
    """The durability of subscriptions, and of kept and retained messages. No client waits for the disk."""
    subscriber_bytes_max: int = limit(64 * MIB, 1, 1024 * MIB)
    """Bytes that may wait for a subscriber that does not read."""
    slow_subscriber: Literal["drop", "disconnect"] = "drop"
    """Above `subscriber_bytes_max`: `drop` the subscriber's oldest messages, or `disconnect` it."""
    sessions_max: int = limit(100_000, 1, 10_000_000)
    """Sessions: clients that are connected or have subscriptions."""
    session_seconds: float = attrs.field(
        default=7 * 86_400.0, validator=[validators.ge(0), validators.le(SESSION_SECONDS_MAX)]
    )
    """A session ends when its client has been away for so long, with its subscriptions and kept messages.
    Only time that the server runs counts, over restarts. 0: never."""
    subscriptions_max: int = limit(1_000, 1, 1_000_000)
    """Subscriptions of one client."""
    subscriptions_total_max: int = limit(2_000_000, 1, 100_000_000)
    """Subscriptions of all clients; each takes about a kilobyte of memory."""
    wild_subscriptions_max: int = limit(250, 0, 1_000_000)
    """Subscriptions of one client to patterns with more than three wildcards. One topic can be made to match
    many of them, each at the cost of all its wildcards."""
    wild_subscriptions_total_max: int = limit(10_000, 0, 100_000_000)
    """Subscriptions of all clients to patterns with more than three wildcards."""
    kept_messages_max: int = limit(10_000, 0, 1_000_000)
    """Messages kept for one absent client."""
    kept_bytes_max: int = limit(16 * MIB, 0, 1024 * MIB)
    """Bytes kept for one absent client, without the padding of frames."""
    kept_bytes_total_max: int = limit(256 * MIB, 0, 1024 * 1024 * MIB)
    """Bytes kept for all absent clients. On disk they take up to about twice as much."""
    retain: tuple[str, ...] = attrs.field(default=(), validator=validators.deep_iterable(_is_pattern))
    """Patterns of topics whose last message is kept for whoever subscribes later: `["hall/*"]`. An empty
    STRING ends that of its topic. What no pattern matches any more ends, too."""
    retained_max: int = limit(10_000, 0, 1_000_000)
    """Topics with a retained message. Messages of further topics are not retained, and counted."""
    command_seconds: float = attrs.field(default=30.0, validator=validators.gt(0))
    """The longest time from a command's first byte to its last. For the id, `net.first_request_seconds`
    counts."""
    tls: TlsSettings = attrs.field(factory=TlsSettings)
    """Section `[pubsub.tls]`, in place of `[tls]`, for subscribers. Datagrams are never encrypted."""
    access: ProtocolAccessSettings = attrs.field(factory=ProtocolAccessSettings)
    """Section `[pubsub.access]`: which clients must log in."""
