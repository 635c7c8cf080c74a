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
"""The namespace of the store with the topics' logs."""
TABLES_NAMESPACE = "logmq-tables"
"""The namespace of tables, apart from the topics, whose names users choose."""
GROUPS, WRITERS, RETENTIONS = "groups", "writers", "retentions"
"""The names of the tables."""


def _no_less(least: int) -> Any:
    return validators.optional(validators.ge(least))


@attrs.frozen
class TopicSettings:
    """Settings of topics whose names match a pattern. None: as `[logmq]`."""

    durability: Durability | None = None
    """As in `[logmq]`; fixed when a topic is created."""
    retention_bytes: int | None = attrs.field(default=None, validator=_no_less(0))
    """Bytes that a topic keeps at least; older records are dropped, 64 KiB at a time. 0: keep all."""
    retention_ms: int | None = attrs.field(default=None, validator=_no_less(0))
    """Age at which records are dropped; 0: keep all."""
    local_retention_bytes: int | None = attrs.field(default=None, validator=_no_less(0))
    """Bytes that stay on this disk of what the bucket has; older records are read there. 0: all."""
    local_retention_ms: int | None = attrs.field(default=None, validator=_no_less(0))
    """Age at which records are in the bucket only; 0: never."""


@attrs.frozen
class LogmqSettings:
    """Section `[logmq]`. A topic's durability is fixed when it is made; retention follows the settings."""

    port: int = limit(8080, 0, 65535, restart=True)
    """The TCP port; 0 picks a free one."""
    host: str | None = host_setting()
    """The address to bind; unset: that of `serve.host`."""
    durability: Durability = attrs.field(factory=lambda: Durability.parse("always"), metadata=RESTART)
    """When a write is answered: `always` (when it is on disk), `interval:50ms`, `none`."""
    message_bytes_max: int = limit(MIB, 1, 4 * MIB)
    """The largest message, and the largest BATCH as a whole. Kafka's default, too; larger bodies belong
    beside a broker, not in it. (4 MiB at most: one append must fit one batch of the journal.)"""
    topics_max: int = limit(100_000, 1, 10_000_000)
    """The most topics; a write to one more is refused."""
    commits_max: int = limit(100_000, 1, 10_000_000)
    """The most committed offsets, one for each group and topic."""
    group_seconds: float = attrs.field(default=0.0, validator=validators.ge(0))
    """Commits expire of a group that for so long has committed nothing in a topic, though there was something
    to read. 0: never."""
    writers_max: int = limit(1024, 1, 100_000)
    """BATCH writers of a user that are remembered; a new one replaces that user's longest silent one."""
    fetch_bytes_max: int = limit(64 * MIB, 1, 64 * MIB)
    """The most bytes of one FETCH's answer, also if it asks for more."""
    fetch_wait_ms_max: int = limit(60_000, 0, 3_600_000)
    """The longest wait of a FETCH."""
    line_seconds: float = attrs.field(default=300.0, validator=validators.gt(0))
    """The longest time from a line's first byte to its end. People type, so it is long."""
    body_seconds: float = attrs.field(default=30.0, validator=validators.gt(0))
    """The longest time for the bytes after an APPEND or BATCH line, which programs send."""
    retention_bytes: int = limit(0, 0, 1 << 62)
    """Bytes that each topic keeps at least; older records are dropped, 64 KiB at a time. 0: keep all."""
    retention_ms: int = limit(0, 0, 1 << 62)
    """Age at which records are dropped. 0: keep all."""
    local_retention_bytes: int = limit(0, 0, 1 << 62)
    """Bytes of each topic that stay on this disk, at least, once `[ship]` has them in the bucket; older ones
    are read there. 0: all."""
    local_retention_ms: int = limit(0, 0, 1 << 62)
    """Age at which records are in the bucket only, and are read there. 0: never."""
    tls: TlsSettings = attrs.field(factory=TlsSettings)
    """Section `[logmq.tls]`, in place of `[tls]`."""
    access: ProtocolAccessSettings = attrs.field(factory=ProtocolAccessSettings)
    """Section `[logmq.access]`: which clients must log in."""
    topics: Mapping[str, TopicSettings] = attrs.field(factory=dict)
    """Settings by a pattern of names (`*`, `?`, `[a-z]`); the first match in written order counts."""

    @property
    def retention_usual(self) -> Retention:
        """The retention of topics that match no pattern."""
        return Retention(self.retention_bytes or None, self.retention_ms or None)

    def retention(self, name: str) -> Retention | None:
        """The retention of one topic; None: the usual one."""
        if not self.topics:
            return None
        own = self.for_topic(name)
        return Retention(own.retention_bytes or None, own.retention_ms or None)

    def local_retention(self, name: str) -> Retention:
        """What stays on this disk of one topic."""
        own = self.for_topic(name)
        return Retention(own.local_retention_bytes or None, own.local_retention_ms or None)

    @property
    def needs_bucket(self) -> str | None:
        """The name of a setting that is set and means something only where a bucket is shipped to."""
        patterns = {f'topics."{pattern}".': own for pattern, own in self.topics.items()}
        for where, own in {"": self, **patterns}.items():
            for name in ("local_retention_bytes", "local_retention_ms"):
                if getattr(own, name):
                    return f"{where}{name}"
        return None

    def for_topic(self, name: str) -> TopicSettings:
        """The settings of one topic, with all fields set."""
        matching = (own for pattern, own in self.topics.items() if fnmatchcase(name, pattern))
        own = next(matching, TopicSettings())
        return TopicSettings(
            self.durability if own.durability is None else own.durability,
            self.retention_bytes if own.retention_bytes is None else own.retention_bytes,
            self.retention_ms if own.retention_ms is None else own.retention_ms,
            self.local_retention_bytes if own.local_retention_bytes is None else own.local_retention_bytes,
            self.local_retention_ms if own.local_retention_ms is None else own.local_retention_ms,
        )
