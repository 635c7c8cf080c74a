"""KqueueMsgQ's settings: section `[kqmsgq]`."""

from typing import Literal

import attrs
from attrs import validators

from shared.net.settings import ProtocolAccessSettings, TlsSettings, host_setting
from shared.units import MIB, limit


@attrs.frozen
class KqmsgqSettings:
    """Section `[kqmsgq]`. The protocol stores nothing on disk: queues are names, messages stay in memory."""

    port: int = limit(8000, 0, 65535, restart=True)
    """The TCP port; 0 picks a free one."""
    host: str | None = host_setting()
    """The address to bind; unset: that of `serve.host`."""
    name_bytes_max: int = limit(4096, 0, 65535)
    """The longest name of a queue."""
    message_bytes_max: int = limit(16 * MIB, 0, 1024 * MIB)
    """The largest message."""
    consumer_bytes_max: int = limit(8 * MIB, 1, 1024 * MIB)
    """Bytes that may wait for a consumer that does not read, beside one message of any size."""
    slow_consumer: Literal["drop", "disconnect"] = "drop"
    """Above `consumer_bytes_max`: `drop` the consumer's oldest whole messages, or `disconnect` it."""
    subscriptions_max: int = limit(10_000, 1, 10_000_000)
    """Subscriptions of one consumer."""
    subscriptions_bytes_max: int = limit(4 * MIB, 1, 1024 * MIB)
    """Memory of one consumer's subscriptions: each name plus 128 bytes."""
    subscriptions_total_max: int = limit(1_000_000, 1, 100_000_000)
    """Subscriptions of all consumers. A consumer that asks for one above any of these limits is closed."""
    subscriptions_bytes_total_max: int = limit(256 * MIB, 1, 1024 * 1024 * MIB)
    """Memory of all consumers' subscriptions."""
    event_seconds: float = attrs.field(default=30.0, validator=validators.gt(0))
    """The longest time from an event's first byte to its last. Silence between events has no limit."""
    tls: TlsSettings = attrs.field(factory=TlsSettings)
    """Section `[kqmsgq.tls]`, in place of `[tls]`."""
    access: ProtocolAccessSettings = attrs.field(factory=ProtocolAccessSettings)
    """Section `[kqmsgq.access]`: which clients must log in."""
