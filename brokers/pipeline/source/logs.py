"""What the source asks of wherever logs are: a data folder, or servers. Planner and readers know no more.

`Place` is what travels to the executors: small, picklable, says where logs are and opens them. `Logs` is one
opened place, used by one thread; it may keep files or connections, and is closed by who opened it.

A log has one name everywhere in the pipeline: what stands in the column `topic` and in offsets. In a folder
it is the log's own name; over several servers see `servers.py`.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Protocol

import attrs

from shared.errors import BrokerError


class LogMissing(BrokerError):
    """There is no log of that name (any more)."""


@attrs.define(eq=False)
class DataLost(BrokerError):
    """What was to be read is gone: retention overtook the reader, the log was deleted, or made again.

    `resume`: the first offset at or behind the loss that is still there, where retention took the rest.
    """

    text: str
    resume: int | None = None

    def __str__(self) -> str:
        return self.text


class Damaged(BrokerError):
    """Bytes are there, and are not those that were written."""


@attrs.frozen
class Extent:
    """What can be read of a log: from `first`, the oldest record kept, up to `end`, where the next will be.

    `seen`: opaque; a later `made_again` tells by it whether a log of this name is still this one.
    """

    first: int
    end: int
    seen: str = ""


@attrs.frozen
class Stretch:
    """Records of one time: those from `offset` (of the log) on, until the next stretch of the chunk."""

    offset: int
    unix_ms: int


@attrs.frozen
class Chunk:
    """Whole records as they stand in the log, the first at `offset`. Stretches begin at `offset` or above."""

    offset: int
    data: bytes | bytearray | memoryview = attrs.field(repr=lambda data: f"<{len(data)} bytes>")
    stretches: Sequence[Stretch]


class Logs(Protocol):
    """An opened place. Every method raises OSError where the place cannot be reached."""

    def names(self) -> Sequence[str]:
        """Every log that is there, sorted."""

    def extents(self, names: Iterable[str]) -> Mapping[str, Extent]:
        """What can be read of each, durable bytes alone; those that do not exist are left out."""

    def made_again(self, name: str, offset: int, seen: str) -> bool:
        """Whether the log is another one than that which had `seen` and was read up to `offset`."""

    def seek(self, name: str, unix_ms: int) -> int:
        """The first record at or after that time, at the index's grain; the end where there is none."""

    def cuts(self, name: str, start: int, stop: int, bytes_each: int) -> Sequence[int]:
        """Records' offsets, rising, above `start` and below `stop`, that cut it into pieces of that size,
        about."""

    def chunks(self, name: str, start: int, stop: int, bytes_max: int, verify: bool) -> Iterator[Chunk]:
        """The records of [start, stop), in order, in chunks of whole ones.

        `bytes_max`: of a chunk, unless what one mark covers is more. `verify`: hold every byte against its
        CRC. Raises DataLost where some are gone, and Damaged.
        """

    def close(self) -> None: ...


class Place(Protocol):
    """Where logs are."""

    def open(self) -> AbstractContextManager[Logs]: ...
