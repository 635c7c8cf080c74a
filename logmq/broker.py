"""What all connections share: topics, groups, writers, counters."""

from typing import TYPE_CHECKING

import attrs

from logmq.groups import Groups
from logmq.metrics import Counts
from logmq.settings import LogmqSettings
from logmq.topics import Topics
from logmq.windows import Windows
from logmq.writers import Writers
from shared.storage.store import Log, Store, Ticket

if TYPE_CHECKING:
    import structlog

    from shared.access import Guard


@attrs.define(eq=False)
class Broker:
    """One LogMQ broker, without its sockets."""

    store: Store
    log: "structlog.stdlib.BoundLogger"
    settings: LogmqSettings
    topics: Topics
    groups: Groups
    writers: Writers
    windows: Windows
    counts: Counts = attrs.field(factory=Counts)
    access: "Guard | None" = None
    draining: bool = False
    """The server stops: nothing waits any more."""

    async def take_settings(self, settings: LogmqSettings) -> None:
        """Use other settings from now on; connections keep their sizes."""
        self.settings = settings
        self.groups.commits_max, self.writers.writers_max = settings.commits_max, settings.writers_max
        await self.topics.take_settings(settings)

    def delete(self, log: Log) -> Ticket:
        """Delete a topic, with everything that groups and writers have of it. Raises StoreError."""
        ticket = self.topics.delete(log, self.groups.tombstone(log.id))
        self.topics.retentions.forget(log.id)
        self.clear_tombstone(log.id)
        return ticket

    def clear_tombstone(self, log_id: int) -> None:
        """Remove what is left of a deleted log, then its tombstone. Raises StoreError."""
        self.groups.forget(
            log_id, lambda: self.writers.forget(log_id, lambda: self.groups.remove_tombstone(log_id))
        )
