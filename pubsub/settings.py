"""Pub/sub's settings: section `[pubsub]`."""

from typing import Literal

import attrs
from attrs import validators

from shared.net.settings import ProtocolAccessSettings, TlsSettings, host_setting
from shared.storage.settings import Durability
from shared.units import MIB, RESTART, limit

NAMESPACE = "pubsub"
"""Of the store, where the logs stand."""
SESSION_SECONDS_MAX = 100 * 365 * 86_400
SESSIONS_LOG, KEPT_LOG, AWAY_LOG = "sessions", "kept", "away"


@attrs.frozen
class PubsubSettings:
    """Section `[pubsub]`. Subscriptions are on disk; messages pass through memory."""

    port: int = limit(7070, 0, 65535, restart=True)
    """Of both, TCP and UDP; 0 picks a free one."""
    host: str | None = host_setting()
    """The address to bind; else as `serve.host` has it."""
    allow: tuple[str, ...] = ()
    """Networks whose datagrams are taken. Empty: everybody's, which is allowed on loopback only. A sender's
    address can be forged."""
    durability: Durability = attrs.field(factory=lambda: Durability.parse("interval:50ms"), metadata=RESTART)
    """Of subscriptions. No command is answered, so nobody waits for the disk."""
    subscriber_bytes_max: int = limit(64 * MIB, 1, 1024 * MIB)
    """What waits for a subscriber that does not read."""
    slow_subscriber: Literal["drop", "disconnect"] = "drop"
    """Above that: `drop` its oldest messages, or `disconnect` it."""
    sessions_max: int = limit(100_000, 1, 10_000_000)
    """Clients that are connected or have subscriptions."""
    session_seconds: float = attrs.field(
        default=7 * 86_400.0, validator=[validators.ge(0), validators.le(SESSION_SECONDS_MAX)]
    )
    """A session whose client is away for so long ends, with its subscriptions and kept messages. What counts
    is time that the server runs, over restarts. 0: never."""
    subscriptions_max: int = limit(1_000, 1, 1_000_000)
    """Of one client."""
    subscriptions_total_max: int = limit(2_000_000, 1, 100_000_000)
    """Of all clients: each takes about a kilobyte of memory."""
    wild_subscriptions_max: int = limit(250, 0, 1_000_000)
    """Of one client, to patterns of more than three wildcards. Many of them can be made to be work for one
    topic, each for all of its wildcards."""
    wild_subscriptions_total_max: int = limit(10_000, 0, 100_000_000)
    """The same of all clients."""
    kept_messages_max: int = limit(10_000, 0, 1_000_000)
    """For one client that is away."""
    kept_bytes_max: int = limit(16 * MIB, 0, 1024 * MIB)
    """The same in bytes, without the padding of frames."""
    kept_bytes_total_max: int = limit(256 * MIB, 0, 1024 * 1024 * MIB)
    """For all clients that are away."""
    command_seconds: float = attrs.field(default=30.0, validator=validators.gt(0))
    """For a command from its first byte to its last. The client id has `net.first_request_seconds`."""
    tls: TlsSettings = attrs.field(factory=TlsSettings)
    """Section `[pubsub.tls]`: instead of `[tls]`. Of subscribers; datagrams are never encrypted."""
    access: ProtocolAccessSettings = attrs.field(factory=ProtocolAccessSettings)
    """Section `[pubsub.access]`: who has to log in here."""
