"""DMS's settings: section `[dms]`, and `[dms.queues."pattern"]` for queues that differ."""

from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Any, Literal

import attrs
from attrs import validators

from dms.wire import Refusal, name_untrusted
from shared.net.settings import ProtocolAccessSettings, TlsSettings, host_setting
from shared.storage.settings import Durability
from shared.units import MIB, RESTART, limit

NAMESPACE = "dms"
"""Of the store, where the queues' logs stand."""
TABLES_NAMESPACE = "dms-tables"
"""Apart from the queues, whose names are the users'."""
QUEUES = "queues"
"""The table's name."""
MS_MAX = 10 * 365 * 86_400_000
"""Ten years: a longer time is a mistake."""
DEPTH_MAX = 1_000_000_000


def _optional(least: int, most: int) -> Any:
    return attrs.field(
        default=None, validator=validators.optional([validators.ge(least), validators.le(most)])
    )


def _queue_name(_: object, attribute: "attrs.Attribute[str]", name: str) -> None:
    """A queue's name, or "". What is no text is refused elsewhere."""
    if isinstance(name, str) and name:
        try:
            name_untrusted(name.encode("utf-8", "surrogatepass"))
        except Refusal as refusal:
            raise ValueError(f"{attribute.name}: {refusal.text}") from None


@attrs.frozen
class QueueSettings:
    """What queues whose names match a pattern do, where CREATE_QUEUE does not say it; None: as `[dms]` says.

    The fields but `durability` are CREATE_QUEUE's options; 0 and "" there mean the same as None here.
    """

    durability: Durability | None = None
    """As `[dms]` has it; fixed when a queue is made."""
    depth: int | None = _optional(1, DEPTH_MAX)
    """Messages at most, held deliveries counted."""
    ttl_ms: int | None = _optional(0, MS_MAX)
    """A message older than this, and not held, is dead."""
    max_deliveries: int | None = _optional(0, 1_000_000)
    """A message that comes back after so many deliveries is dead."""
    dead_letter: str | None = attrs.field(default=None, validator=validators.optional(_queue_name))
    """The queue that dead messages move to; without one they are dropped, and counted. In a queue for which
    that is the queue itself, as of a pattern that matches both, nothing dies."""
    delay_ms: int | None = _optional(0, MS_MAX)
    """From PRODUCE until the first delivery."""
    retry_ms: int | None = _optional(0, MS_MAX)
    """From a NACK until the next delivery, doubling with each up to `retry_max_ms`, if that is set."""
    retry_max_ms: int | None = _optional(0, MS_MAX)
    """Without it the delay stays as it is."""


@attrs.frozen
class DmsSettings:
    """Section `[dms]`. A queue's durability is fixed when it is made."""

    port: int = limit(9090, 0, 65535, restart=True)
    """0 picks a free one."""
    host: str | None = host_setting()
    """The address to bind; else as `serve.host` has it."""
    persist: bool = attrs.field(default=True, metadata=RESTART)
    """Keep queues on disk. False: all in memory, nothing is written, all is gone at exit."""
    durability: Durability = attrs.field(factory=lambda: Durability.parse("always"), metadata=RESTART)
    """When a change is answered: `always` (it is on disk), `interval:50ms`, `none`."""
    disk_failed: Literal["strict", "best-effort"] = attrs.field(default="strict", metadata=RESTART)
    """Once nothing can be written any more. `strict`: a request that would write is answered with INTERNAL.
    `best-effort`: queues go on in memory, each such answer counted."""
    depth: int = limit(10_000, 1, DEPTH_MAX)
    """Messages in a queue, held deliveries counted."""
    depth_max: int = limit(10_000_000, 1, DEPTH_MAX)
    """The most that CREATE_QUEUE may ask for as `depth`. Queues that are there, and what the settings say
    themselves, stay as they are."""
    consume_seconds: float = attrs.field(default=30.0, validator=[validators.gt(0), validators.le(86_400)])
    """How long a CONSUME waits."""
    queues_max: int = limit(128, 1, 1_000_000)
    """The number of the specification; one more is refused with INTERNAL."""
    clients_max: int = limit(256, 1, 1_000_000)
    """Likewise, of those that have made their handshake; one more is told, and closed."""
    credits_max: int = limit(4096, 1, 65_536)
    """CONSUMEs that may wait on one connection: so much may be pushed to a peer that has stopped reading."""
    frame_seconds: float = attrs.field(default=30.0, validator=validators.gt(0))
    """From a frame's first byte to its last."""
    hot_bytes: int = limit(64 * MIB, 0, 1 << 40)
    """Bodies that all durable queues together keep in memory; the rest is read back when its turn comes."""
    tls: TlsSettings = attrs.field(factory=TlsSettings)
    """Section `[dms.tls]`: instead of `[tls]`."""
    access: ProtocolAccessSettings = attrs.field(factory=ProtocolAccessSettings)
    """Section `[dms.access]`: who has to log in here."""
    queues: Mapping[str, QueueSettings] = attrs.field(factory=dict)
    """By a pattern of names (`*`, `?`, `[a-z]`); the first that matches, in the order written, counts."""

    def for_queue(self, name: str) -> QueueSettings:
        """What the settings say of one queue."""
        matching = (own for pattern, own in self.queues.items() if fnmatchcase(name, pattern))
        own = next(matching, QueueSettings())
        return attrs.evolve(
            own,
            durability=self.durability if own.durability is None else own.durability,
            depth=self.depth if own.depth is None else own.depth,
        )
