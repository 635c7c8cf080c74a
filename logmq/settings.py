"""LogMQ's settings: section `[logmq]`, and `[logmq.topics."pattern"]` for topics that differ."""

from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Any

import attrs
from attrs import validators

from shared.net.settings import ProtocolAccessSettings, TlsSettings, host_setting
from shared.storage.settings import Durability, Retention
from shared.units import MIB, RESTART, limit

NAMESPACE = "logmq"
"""Of the store, where the topics' logs stand."""
TABLES_NAMESPACE = "logmq-tables"
"""Apart from the topics, whose names are the users'."""
GROUPS, WRITERS = "groups", "writers"
"""The tables' names."""


def _no_less(least: int) -> Any:
    return validators.optional(validators.ge(least))


@attrs.frozen
class TopicSettings:
    """What topics whose names match a pattern do differently; None: as `[logmq]` says."""

    durability: Durability | None = None
    """As `[logmq]` has it; fixed when a topic is made."""
    retention_bytes: int | None = attrs.field(default=None, validator=_no_less(0))
    """Older records go; 0: keep all."""
    retention_ms: int | None = attrs.field(default=None, validator=_no_less(0))
    """Age at which records go; 0: keep all."""


@attrs.frozen
class LogmqSettings:
    """Section `[logmq]`. A topic's durability is fixed when it is made; retention follows the settings."""

    port: int = limit(8080, 0, 65535, restart=True)
    """0 picks a free one."""
    host: str | None = host_setting()
    """The address to bind; else as `serve.host` has it."""
    durability: Durability = attrs.field(factory=lambda: Durability.parse("always"), metadata=RESTART)
    """When a write is answered: `always` (it is on disk), `interval:50ms`, `none`."""
    message_bytes_max: int = limit(MIB, 1, 4 * MIB)
    """One message, and the whole of a BATCH. Kafka's default too; larger bodies belong beside a
    broker, not in it. (4 MiB at most: what is appended at once must fit one batch of the journal.)"""
    topics_max: int = limit(100_000, 1, 10_000_000)
    """A write to one more is refused."""
    commits_max: int = limit(100_000, 1, 10_000_000)
    """Committed offsets that are kept, one for each group and topic."""
    writers_max: int = limit(1024, 1, 100_000)
    """BATCH writers that are remembered; the one that has been silent longest is forgotten for a new one."""
    fetch_bytes_max: int = limit(64 * MIB, 1, 64 * MIB)
    """Most bytes of one FETCH; more is asked for, less is given."""
    fetch_wait_ms_max: int = limit(60_000, 0, 3_600_000)
    """Longest wait of a FETCH."""
    line_seconds: float = attrs.field(default=300.0, validator=validators.gt(0))
    """For a line from its first byte to its end: people type."""
    body_seconds: float = attrs.field(default=30.0, validator=validators.gt(0))
    """For the bytes that follow an APPEND or BATCH line: programs do not."""
    retention_bytes: int = limit(0, 0, 1 << 62)
    """Of each topic; older records go. 0: keep all."""
    retention_ms: int = limit(0, 0, 1 << 62)
    """Age at which records go. 0: keep all."""
    tls: TlsSettings = attrs.field(factory=TlsSettings)
    """Section `[logmq.tls]`: instead of `[tls]`."""
    access: ProtocolAccessSettings = attrs.field(factory=ProtocolAccessSettings)
    """Section `[logmq.access]`: who has to log in here."""
    topics: Mapping[str, TopicSettings] = attrs.field(factory=dict)
    """By a pattern of names (`*`, `?`, `[a-z]`); the first that matches, in the order written, counts."""

    @property
    def retention_usual(self) -> Retention:
        """What topics keep that no pattern speaks of."""
        return Retention(self.retention_bytes or None, self.retention_ms or None)

    def retention(self, name: str) -> Retention | None:
        """What a topic keeps; None: what all others do."""
        if not self.topics:
            return None
        own = self.for_topic(name)
        return Retention(own.retention_bytes or None, own.retention_ms or None)

    def for_topic(self, name: str) -> TopicSettings:
        """The settings of one topic, all filled in."""
        matching = (own for pattern, own in self.topics.items() if fnmatchcase(name, pattern))
        own = next(matching, TopicSettings())
        return TopicSettings(
            self.durability if own.durability is None else own.durability,
            self.retention_bytes if own.retention_bytes is None else own.retention_bytes,
            self.retention_ms if own.retention_ms is None else own.retention_ms,
        )
