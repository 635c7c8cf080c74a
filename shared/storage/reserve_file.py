"""RESERVE: space that a start takes on a volume that others have filled.

A running store stops publishing while there is room for acknowledgements (`FolderWatch`). Other programs may
fill the rest. A start replays the journal into log files, and makes a catalog and a segment; without room for
these nothing could be served at all. So the space is kept in a file, which a start on a full volume deletes.
The file is made again as soon as there is space for it beside what publishing needs.
"""

from collections.abc import Awaitable, Callable
from typing import Any

import attrs
import structlog

from shared.storage.disk import Disk, opened, size_of
from shared.storage.files import describe
from shared.storage.log import opaque

logger = structlog.stdlib.get_logger("brokers.storage")

PATH = "RESERVE"


@attrs.define(eq=False, repr=False, field_transformer=opaque)
class ReserveFile:
    """The file of one store. `size`: its bytes. `made`: it is there, as far as this process knows."""

    _disk: Disk
    size: int
    _in_thread: Callable[..., Awaitable[Any]]
    made: bool = False
    _failing: bool = False

    async def make(self) -> None:
        """Make the file, unless it is there. Where that fails it is said once, and may be tried again."""
        if self.made:
            return
        try:
            await self._in_thread(_make, self._disk, self.size)
            self.made, self._failing = True, False
        except (OSError, MemoryError) as error:
            if not self._failing:
                self._failing = True
                logger.warning(
                    "no space could be set aside for a start on a full volume: it is tried again",
                    path=PATH,
                    reason=describe(error),
                )


def _make(disk: Disk, size: int) -> None:
    if size_of(disk, PATH) >= size:
        return
    try:
        with opened(disk, PATH, create=True) as fd:
            disk.allocate(fd, size)
    except BaseException:
        give_up(disk)
        raise


def give_up(disk: Disk) -> bool:
    """Free the space; False if there is none set aside. Raises OSError."""
    try:
        disk.unlink(PATH)
    except FileNotFoundError:
        return False
    disk.sync_folder("")
    return True
