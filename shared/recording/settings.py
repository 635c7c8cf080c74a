"""The settings of recording, each with its default and its reason; section `[record]`."""

import attrs

from shared.storage.settings import Durability, Retention
from shared.units import GIB, MIB, RESTART, limit


@attrs.frozen
class RecordSettings:
    """Section `[record]`: which protocols' messages are recorded, and for how long they are kept."""

    protocols: tuple[str, ...] = attrs.field(default=(), metadata=RESTART)
    """Names of the protocols to record; none by default."""
    durability: Durability = attrs.field(factory=lambda: Durability.parse("interval"), metadata=RESTART)
    """The durability of recordings. Nobody waits for them, so `[serve]` does not change it. `always` syncs
    with every batch. `none` is not synced, and a power cut may lose more."""
    retention_bytes: int = limit(GIB, MIB, 1 << 62)
    """Bytes that each protocol's recording keeps at least; older blocks are dropped. Never 0, or it would
    fill the disk."""
    retention_ms: int = limit(7 * 24 * 3600 * 1000, 1, 1 << 62)
    """Age at which blocks are dropped."""
    pending_bytes_max: int = limit(64 * MIB, 1, GIB)
    """Bytes of each protocol that may wait for the disk, beside one block of any size. Above it messages pass
    unrecorded, because the protocol never waits. 64 MiB is what a fast protocol brings while a disk stalls
    for a fifth of a second."""

    @property
    def retention(self) -> Retention:
        return Retention(self.retention_bytes, self.retention_ms)
