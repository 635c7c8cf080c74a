"""The settings of recording, each with its default and its reason; section `[record]`."""

import attrs

from shared.storage.settings import Durability, Retention
from shared.units import GIB, MIB, RESTART, limit


@attrs.frozen
class RecordSettings:
    """Section `[record]`: whose messages are written down as they pass through, and for how long."""

    protocols: tuple[str, ...] = attrs.field(default=(), metadata=RESTART)
    """By name; none unless said."""
    durability: Durability = attrs.field(factory=lambda: Durability.parse("interval"), metadata=RESTART)
    """Nobody waits for what is recorded, so this is `interval:50ms` whatever `[serve]` says; its bytes
    are written once, around the journal. `always` goes through the journal and syncs with every batch; `none`
    is not synced, and a power cut may cost more."""
    retention_bytes: int = limit(GIB, MIB, 1 << 62)
    """Of each protocol; older blocks go. Never 0: what is recorded unasked-for must not fill a disk."""
    retention_ms: int = limit(7 * 24 * 3600 * 1000, 1, 1 << 62)
    """Age at which blocks go."""
    pending_bytes_max: int = limit(64 * MIB, 1, GIB)
    """Of each protocol, waiting for the disk; beside them one block, however large. What comes then is not
    recorded: the protocol never waits. 64 MiB: what a fast protocol brings while a disk stalls for a fifth
    of a second; it is used only then."""

    @property
    def retention(self) -> Retention:
        return Retention(self.retention_bytes, self.retention_ms)
