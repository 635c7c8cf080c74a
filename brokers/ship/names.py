"""Files of a data folder that say, before a store opens it, what a bucket has to do with it."""

from collections.abc import Iterator
from pathlib import Path

FOLLOW_PATH = "FOLLOW"
"""The folder follows a bucket."""
PROMOTE_PATH = "PROMOTE"
"""It is to ship from now on."""
UNFINISHED = "RESTORING"
"""It is being put together: as long as this is there no server takes the folder, and all that is in it may
go."""


def found_in(folder: Path) -> Iterator[str]:
    """Those that are there, but for PROMOTE, which means nothing by itself."""
    return (name for name in (FOLLOW_PATH, UNFINISHED) if (folder / name).exists())
