"""Free disk space: publishing stops while there is still room for acknowledgements and administration. If the
file system turns read-only, the store does too.
"""

import attrs
import structlog
import trio

from shared.storage.committer import Committer
from shared.storage.disk import Disk
from shared.storage.files import describe
from shared.storage.journal import PoisonError
from shared.storage.log import opaque
from shared.storage.settings import StorageSettings

logger = structlog.stdlib.get_logger("brokers.storage")

LOOK_SECONDS = 1.0
LOOK_BYTES = 8 << 20


@attrs.define(eq=False, slots=False, repr=False, field_transformer=opaque)
class SpaceWatch:
    """Looks once a second, and whenever `LOOK_BYTES` were written."""

    _committer: Committer
    _disk: Disk
    _settings: StorageSettings
    free_bytes: int = 0
    scarce: bool = False
    """Less than twice the reserve is free: optional data should not be written."""
    _total_bytes: int = 0
    _failing: bool = False

    def __attrs_post_init__(self) -> None:
        self._committer.look_at_space = self.look

    def look(self) -> None:
        """Ask the file system. If it does not answer, the last value counts, and writes show what is wrong.
        What waits to be written counts as written.
        """
        committer, settings = self._committer, self._settings
        committer.unlooked_bytes = committer.counts.bytes + LOOK_BYTES
        try:
            self.free_bytes, self._total_bytes = self._disk.free_bytes()
            self._failing = False
        except OSError as error:
            if not self._failing:
                self._failing = True
                logger.error(
                    "the free space cannot be read: the last value counts, and writes are still tried",
                    reason=describe(error),
                )
        free = self.free_bytes
        reserve = max(
            settings.reserve_bytes_min,
            min(int(self._total_bytes * settings.reserve_fraction), settings.reserve_bytes_max),
        )
        left = free - committer.tails.bytes - committer.pending_bytes
        self.scarce = left < 2 * reserve
        full = left < reserve
        # Log files that refuse writes leave their records in memory: stop publishing before that is full.
        full |= committer.tails.failing_bytes > settings.pending_bytes_max
        if full != committer.full:
            if full:
                logger.error(
                    "short of disk space: publishing is refused, consuming goes on; free some space "
                    "or shorten retention",
                    free_bytes=free,
                    reserve_bytes=reserve,
                )
            else:
                logger.info("enough disk space again: publishing goes on", free_bytes=free)
            committer.set_full(full)

    async def run(self) -> None:
        while True:
            await trio.sleep(LOOK_SECONDS)
            self.look()
            if self._disk.read_only:
                self._committer.poison(PoisonError("the file system is read-only"))
