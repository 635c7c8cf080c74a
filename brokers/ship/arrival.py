"""What a data folder is to its bucket, before a store opens it: the one that ships, or one that follows.

The folder decides, and not the settings: a follower that was promoted ships, however its process is started.
"""

from pathlib import Path

import structlog

from brokers.errors import ExitCode, Failure
from brokers.ship.assembling import is_empty
from brokers.ship.bucket import Bucket
from brokers.ship.epochs import read_manifest
from brokers.ship.follow import read_follow
from brokers.ship.formats import SHIP_PATH, unpack_mark
from brokers.ship.names import UNFINISHED
from brokers.ship.restore import Restore
from brokers.ship.settings import ShipSettings
from brokers.ship.stores import open_bucket
from shared.storage.following import Position
from shared.storage.threads import Threads


async def arrive(settings: ShipSettings, folder: Path, log: structlog.stdlib.BoundLogger) -> Position | None:
    """Make an empty folder from the bucket where the settings ask for it. Returns from where on the folder
    follows the bucket; None: it does not.

    Raises Failure, ConfigError, StoreFormat, BucketErrors and OSError.
    """
    in_thread = Threads()
    found, empty = await in_thread(read_follow, folder), await in_thread(is_empty, folder)
    if not settings.url and (settings.follow or settings.restore_if_empty):
        name = "follow" if settings.follow else "restore_if_empty"
        raise Failure(f"ship.{name} needs ship.url, which names the bucket", ExitCode.CONFIGURATION)
    if settings.follow:
        if found is None and empty:
            await _restored(open_bucket(settings), folder, log, follows=True)
            found = await in_thread(read_follow, folder)
        elif found is None and not await in_thread(_has_shipped, folder):
            raise Failure(
                f"{folder} has data of its own, and follows nothing: a follower begins with an empty folder",
                ExitCode.DATA_FOLDER,
            )
    elif found is not None:
        raise Failure(
            f"{folder} follows {found[0]}: start it with brokers follow, or promote it with brokers promote",
            ExitCode.DATA_FOLDER,
        )
    elif settings.restore_if_empty and empty:
        bucket = open_bucket(settings)
        if await bucket.retried(lambda: read_manifest(bucket)) is not None:
            await _restored(bucket, folder, log, follows=False)
    elif await in_thread((folder / UNFINISHED).exists):
        raise Failure(f"a restore of {folder} was cut short: run it again", ExitCode.DATA_FOLDER)
    return None if found is None else found[1]


def _has_shipped(folder: Path) -> bool:
    """Whether it took its bucket at some time, as by a promotion: a folder that was restored did not."""
    try:
        mark = unpack_mark((folder / SHIP_PATH).read_bytes())
    except FileNotFoundError:
        return False
    return mark is not None and bool(mark.writers)


async def _restored(
    bucket: Bucket, folder: Path, log: structlog.stdlib.BoundLogger, *, follows: bool
) -> None:
    log.info("the data folder is empty: it is restored from the bucket")
    report = await Restore(bucket, folder, follows=follows).run()
    for line in report.missing:
        log.error("the bucket lacks something: all else is restored", missing=line)
    log.info(
        "restored",
        lsn=report.lsn,
        newest_ms=report.time_ms,
        bytes=report.fetched_bytes,
        seconds=round(report.seconds, 3),
    )
