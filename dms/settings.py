"""DMS's settings: section `[dms]`, and `[dms.queues."pattern"]` for queues that differ."""

from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Any, Literal, get_args

import attrs
from attrs import validators

from dms.wire import Refusal, name_untrusted
from shared.net.settings import ProtocolAccessSettings, TlsSettings, host_setting
from shared.rates import Rate
from shared.schedules import Schedules
from shared.storage.settings import Durability
from shared.units import MIB, RESTART, limit

NAMESPACE = "dms"
"""The namespace of the store with the queues' logs."""
TABLES_NAMESPACE = "dms-tables"
"""The namespace of tables, apart from the queues, whose names users choose."""
QUEUES = "queues"
"""The name of the table of queues."""
MS_MAX = 10 * 365 * 86_400_000
"""Ten years; a longer time must be a mistake."""
PRIORITY_MAX = 9
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


LossCounts = Literal["oldest", "all", "none"]
ACK_MS_MIN = 100
"""The least time for a delivery."""


def _ack_ms(_: object, attribute: "attrs.Attribute[int]", value: int) -> None:
    if value and not ACK_MS_MIN <= value <= MS_MAX:
        raise ValueError(f"{attribute.name} is 0, or {ACK_MS_MIN} to {MS_MAX}")


@attrs.frozen
class QueueSettings:
    """Settings of queues whose names match a pattern, for options that CREATE_QUEUE leaves out. None: as
    `[dms]`.

    All fields but `durability` are options of CREATE_QUEUE, in which 0 and "" mean the same as None here.
    """

    durability: Durability | None = None
    """As in `[dms]`; fixed when a queue is created."""
    depth: int | None = _optional(1, DEPTH_MAX)
    """The most messages in a queue, with unacknowledged deliveries."""
    ttl_ms: int | None = _optional(0, MS_MAX)
    """A message that is older and not delivered becomes a dead letter."""
    max_deliveries: int | None = _optional(0, 1_000_000)
    """A message that is returned after so many deliveries becomes a dead letter."""
    dead_letter: str | None = attrs.field(default=None, validator=validators.optional(_queue_name))
    """The queue that dead letters move to; without one they are dropped and counted. A queue that would be
    its own dead-letter queue, because the pattern matches both, has no dead letters."""
    delay_ms: int | None = _optional(0, MS_MAX)
    """The time from PRODUCE until the first delivery."""
    retry_ms: int | None = _optional(0, MS_MAX)
    """The time from a NACK until the next delivery. It doubles with each NACK up to `retry_max_ms`, if
    set."""
    retry_max_ms: int | None = _optional(0, MS_MAX)
    """The longest delay after a NACK; unset: the delay does not grow."""
    ack_ms: int | None = attrs.field(default=None, validator=validators.optional(_ack_ms))
    """The time that a consumer has for a delivery, from 100 ms on; TOUCH begins it anew. What is not
    acknowledged by then returns, and counts as delivered. Unset: it has any time."""
    dedup_ms: int | None = _optional(0, MS_MAX)
    """The time from PRODUCE_WITH for which a `dedup` key is known, though its message has left. Unset: it is
    known while its message is in the queue."""
    loss_counts: LossCounts | None = attrs.field(
        default=None, validator=validators.optional(validators.in_(get_args(LossCounts)))
    )
    """Which deliveries count that a lost connection held: the `oldest` alone, as where this is unset; `all`;
    or `none`. What could not be sent to it never counts."""
    priorities: int | None = _optional(0, PRIORITY_MAX + 1)
    """How many priorities its jobs have, from 0 on. The highest goes first, and what asks for more counts as
    that. Unset: they have none."""
    per_key: int | None = _optional(0, 1_000_000)
    """The most messages of a key that are unacknowledged at a time. With 1, those of a key are in order,
    however many consumers there are. Unset: any number."""
    fair: bool | None = None
    """Keys take turns, a message each."""
    rate: Rate | None = None
    """Deliveries a second at most, as `100/s`; a second of it at once."""
    schedule: Schedules | None = None
    """Messages at times, in each of the queues: tables with `body` and `every` (`10m`), or `cron` and
    `zone`."""


def contradiction(ttl_ms: int, delay_ms: int, retry_ms: int, retry_max_ms: int) -> str:
    """Why these options cannot be those of one queue; "": they can. 0: the option is not set."""
    if 0 < ttl_ms < delay_ms:
        return f"ttl_ms ({ttl_ms}) is below delay_ms ({delay_ms}): each message would die undelivered"
    if retry_max_ms and not retry_ms:
        return f"retry_max_ms ({retry_max_ms}) needs retry_ms, the first delay after a NACK"
    if 0 < retry_max_ms < retry_ms:
        return f"retry_max_ms ({retry_max_ms}) is below retry_ms ({retry_ms}), the first delay after a NACK"
    return ""


def _without_contradictions(
    _: object, attribute: "attrs.Attribute[Any]", queues: Mapping[str, QueueSettings]
) -> None:
    for pattern, own in queues.items():
        times = (own.ttl_ms, own.delay_ms, own.retry_ms, own.retry_max_ms)
        if wrong := contradiction(*(each or 0 for each in times)):
            raise ValueError(f'{attribute.name}."{pattern}": {wrong}')


@attrs.frozen
class DmsSettings:
    """Section `[dms]`. A queue's durability is fixed when it is made."""

    port: int = limit(9090, 0, 65535, restart=True)
    """The TCP port; 0 picks a free one."""
    host: str | None = host_setting()
    """The address to bind; unset: that of `serve.host`."""
    persist: bool = attrs.field(default=True, metadata=RESTART)
    """Keep queues on disk. False: queues are in memory, and lost at exit."""
    durability: Durability = attrs.field(factory=lambda: Durability.parse("always"), metadata=RESTART)
    """When a change is answered: `always` (when it is on disk), `interval:50ms`, `none`."""
    disk_failed: Literal["strict", "best-effort"] = attrs.field(default="strict", metadata=RESTART)
    """What happens when the store cannot be written. `strict`: requests that would write are answered with
    INTERNAL. `best-effort`: queues go on in memory, and each such answer is counted."""
    depth: int = limit(10_000, 1, DEPTH_MAX)
    """The most messages in a queue, with unacknowledged deliveries."""
    depth_max: int = limit(10_000_000, 1, DEPTH_MAX)
    """The largest `depth` that CREATE_QUEUE may ask for. Existing queues, and depths in the settings, are not
    affected."""
    consume_seconds: float = attrs.field(default=30.0, validator=[validators.gt(0), validators.le(86_400)])
    """The longest wait of a CONSUME."""
    queues_max: int = limit(128, 1, 1_000_000)
    """Queues; the specification's number. One more is refused with INTERNAL."""
    clients_max: int = limit(256, 1, 1_000_000)
    """Connections after their handshake; the specification's number. One more gets an error and is closed."""
    credits_max: int = limit(4096, 1, 65_536)
    """CONSUMEs that may wait on one connection. So many messages may be pushed to a peer that stopped
    reading."""
    frame_seconds: float = attrs.field(default=30.0, validator=validators.gt(0))
    """The longest time from a frame's first byte to its last."""
    hot_bytes: int = limit(64 * MIB, 0, 1 << 40)
    """Bodies that all durable queues together keep in memory; others are read back when they are due."""
    tls: TlsSettings = attrs.field(factory=TlsSettings)
    """Section `[dms.tls]`, in place of `[tls]`."""
    access: ProtocolAccessSettings = attrs.field(factory=ProtocolAccessSettings)
    """Section `[dms.access]`: which clients must log in."""
    queues: Mapping[str, QueueSettings] = attrs.field(factory=dict, validator=_without_contradictions)
    """Settings by a pattern of names (`*`, `?`, `[a-z]`); the first match in written order counts."""

    def for_queue(self, name: str) -> QueueSettings:
        """The settings of one queue."""
        matching = (own for pattern, own in self.queues.items() if fnmatchcase(name, pattern))
        own = next(matching, QueueSettings())
        return attrs.evolve(
            own,
            durability=self.durability if own.durability is None else own.durability,
            depth=self.depth if own.depth is None else own.depth,
        )
