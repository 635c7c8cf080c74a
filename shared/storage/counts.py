"""What the committer counts, as plain ints, and how long a sync takes these days."""

import math

import attrs


@attrs.define(eq=False)
class CommitCounts:
    """All since the store was opened. `sync_seconds`: smoothed; inf until a sync was seen."""

    commits: int = 0
    inline_commits: int = 0
    records: int = 0
    bytes: int = 0
    batch_bytes_max: int = 0
    syncs: int = 0
    sync_seconds_last: float = 0.0
    sync_seconds_total: float = 0.0
    sync_seconds: float = math.inf

    @property
    def sync_seconds_mean(self) -> float:
        return self.sync_seconds_total / max(self.syncs, 1)

    def batch(self, size: int) -> None:
        self.bytes += size
        self.batch_bytes_max = max(self.batch_bytes_max, size)

    def synced(self, seconds: float) -> None:
        self.syncs += 1
        self.sync_seconds_last = seconds
        self.sync_seconds_total += seconds
        before = self.sync_seconds
        self.sync_seconds = seconds if before == math.inf else before + (seconds - before) / 4
