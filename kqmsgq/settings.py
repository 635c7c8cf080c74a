"""KqueueMsgQ's settings: section `[kqmsgq]`."""

from typing import Literal

import attrs
from attrs import validators

from shared.net.settings import ProtocolAccessSettings, TlsSettings, host_setting
from shared.units import MIB, limit


@attrs.frozen
class KqmsgqSettings:
    """Section `[kqmsgq]`. Nothing of it is on disk: queues are names, and messages pass through memory."""

    port: int = limit(8000, 0, 65535, restart=True)
    """0 picks a free one."""
    host: str | None = host_setting()
    """The address to bind; else as `serve.host` has it."""
    name_bytes_max: int = limit(4096, 0, 65535)
    """A queue's name."""
    message_bytes_max: int = limit(16 * MIB, 0, 1024 * MIB)
    """One message."""
    consumer_bytes_max: int = limit(8 * MIB, 1, 1024 * MIB)
    """What waits for a consumer that does not read, beside one message, however large."""
    slow_consumer: Literal["drop", "disconnect"] = "drop"
    """Above that: `drop` its oldest whole messages, or `disconnect` it."""
    subscriptions_max: int = limit(10_000, 1, 10_000_000)
    """Of one consumer."""
    subscriptions_bytes_max: int = limit(4 * MIB, 1, 1024 * MIB)
    """The memory of them: their names, with 128 bytes for each."""
    subscriptions_total_max: int = limit(1_000_000, 1, 100_000_000)
    """Of all consumers. One more, of either kind, closes the consumer that asks for it."""
    subscriptions_bytes_total_max: int = limit(256 * MIB, 1, 1024 * 1024 * MIB)
    """The memory of those."""
    event_seconds: float = attrs.field(default=30.0, validator=validators.gt(0))
    """For an event from its first byte to its last; between events a connection may be silent for ever."""
    tls: TlsSettings = attrs.field(factory=TlsSettings)
    """Section `[kqmsgq.tls]`: instead of `[tls]`."""
    access: ProtocolAccessSettings = attrs.field(factory=ProtocolAccessSettings)
    """Section `[kqmsgq.access]`: who has to log in here."""
