"""The file BACKUP of a backup: what it consists of, and a CRC for each file.

Lines as in CATALOG: a head, one line for each file, a CRC over them.
"""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import attrs

from shared.errors import StoreFormat
from shared.storage import format

PATH = "BACKUP"
_NUMBER = 1


class FileLine(NamedTuple):
    """A file. `crc32c`: of its bytes from `start` to `end`, its length; below `start` it is a hole."""

    path: str
    start: int
    end: int
    crc32c: int


@attrs.frozen
class Manifest:
    """`live`: taken from a running broker."""

    made_ms: int
    live: bool
    files: Sequence[FileLine]

    def pack(self) -> bytes:
        head = {"backup": _NUMBER, "made_ms": self.made_ms, "live": self.live}
        return format.pack_lines([head, *(line._asdict() for line in self.files)])


def read(backup: Path) -> Manifest:
    """Raises StoreFormat where the folder is not a backup, a newer one, or damaged."""
    try:
        data = (backup / PATH).read_bytes()
    except FileNotFoundError:
        raise StoreFormat(
            f"{backup} is not a backup, or one that was not finished: it has no file {PATH}"
        ) from None
    lines = format.unpack_lines(data)
    if not lines:
        raise StoreFormat(f"{backup / PATH} is damaged")
    try:
        head = lines[0]
        if head["backup"] > _NUMBER:
            raise StoreFormat(f"{backup} was made by a newer version")
        files = [FileLine(**line) for line in lines[1:]]
        if any(not _plain(line.path) for line in files):
            raise StoreFormat(f"{backup / PATH} names a file outside of the backup")
        return Manifest(head["made_ms"], head["live"], files)
    except (KeyError, TypeError, ValueError):
        raise StoreFormat(f"{backup / PATH} is damaged") from None


def _plain(path: str) -> bool:
    return not os.path.isabs(path) and all(part not in ("", ".", "..") for part in path.split("/"))
