"""Archives that are tables: Iceberg and Delta keep the account, in the transaction that adds the files.

A batch's files are written first, under names that no other batch has. One commit then adds them to the table
and moves the end of each log, with a mark: the number of the batch. Killed before it, the files are in no
table, and the format's own cleaning (VACUUM, orphan files) removes them; killed behind it, all is done. The
commit fails where another archiver has made one since, and is tried again where only others have (a
compaction, say). What became of one whose answer is lost, the table says.
"""

import secrets
from abc import abstractmethod
from collections.abc import Iterable, Sequence
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING

import attrs

from brokers.errors import ExitCode, Failure
from brokers.pipeline.archive import committed
from brokers.pipeline.archiving.folder import ArchiveFolder, ArchiveInUse
from brokers.pipeline.archiving.manifest import Manifest, Part
from brokers.pipeline.archiving.places import ArchivePlace, BucketPlace, require
from shared.errors import UsageError

if TYPE_CHECKING:
    pass

COMMIT_TRIES = 10


class CommitConflict(Exception):
    """The table has had another commit since it was loaded."""


@attrs.define(eq=False)
class TableAccount:
    """A table that an archiver adds to. `place`: where its files are put.

    `by`: who commits, so that a commit whose answer is lost is told from another archiver's.
    """

    origin: str
    by_hour: bool
    place: ArchivePlace = attrs.field(init=False)
    manifest: Manifest = attrs.field(init=False)
    by: int = attrs.field(factory=lambda: secrets.randbits(62), init=False)

    def learn(self, found: Iterable[str]) -> None:
        """Look up the state of these logs, by name."""

    def commit(self, following: Manifest) -> None:
        """Add the files that `following` moves, and its account, in one transaction. Raises ArchiveInUse."""
        self.commit_files(following, self.place)

    def commit_files(self, following: Manifest, place: ArchivePlace, replaced: Sequence[str] = ()) -> None:
        """Commit files that lie at another place, or in place of others, whose paths `replaced` has."""
        for _ in range(COMMIT_TRIES):
            try:
                self.try_commit(following, place, replaced)
            except CommitConflict:
                version, by = self.load()
                if version == following.version and by == self.by:
                    break
                if version != self.manifest.version:
                    raise ArchiveInUse("another archiver has committed to this table") from None
                continue
            break
        else:
            raise OSError(f"the table has had other commits at each of {COMMIT_TRIES} tries")
        self.manifest = attrs.evolve(following, moves=())

    def replace(self, following: Manifest, paths: Sequence[str]) -> None:
        """Put the files that `following` moves in the place of these, in one transaction."""
        self.commit_files(following, self.place, paths)

    @abstractmethod
    def load(self) -> tuple[int, int]:
        """Load the table as it is now. Returns the last batch's number, and who committed it."""

    @abstractmethod
    def try_commit(self, following: Manifest, place: ArchivePlace, replaced: Sequence[str]) -> None:
        """Try one transaction. Raises CommitConflict, or OSError where it was not made or nobody can tell."""

    @abstractmethod
    def day_files(self, day: date) -> list[str]:
        """Return the paths of the files of a day, as `replaced` names them."""

    @abstractmethod
    def expire(self, before: date) -> None:
        """Delete the records of all days before this one."""

    def require_origin(self, found: str) -> None:
        if found != self.origin:
            text = f"this table has logs of {found}, not of {self.origin}; take another"
            raise Failure(text, ExitCode.CONFIGURATION)

    def require_partition(self, is_by_hour: bool) -> None:
        if is_by_hour != self.by_hour:
            text = f"this table has a partition for each {'hour' if is_by_hour else 'day'}"
            raise Failure(f"{text}, not as --partition says", ExitCode.CONFIGURATION)


def check_table(text: str) -> tuple[str, str]:
    """Return the format and the name of a table. Raises UsageError, and Failure if its package is missing."""
    kind, _, name = text.partition(":")
    if kind == "iceberg" and name.count(".") >= 2:
        require("pyiceberg", "lake")
    elif kind == "delta" and name:
        require("deltalake", "lake")
    else:
        raise UsageError("--table", "it is iceberg:CATALOG.NAMESPACE.TABLE or delta:URL")
    return kind, name


def open_table(text: str, origin: str, *, by_hour: bool) -> TableAccount:
    """Open or create `iceberg:CATALOG.NAMESPACE.TABLE`, or `delta:URL`. Raises UsageError and Failure."""
    kind, name = check_table(text)
    if kind == "iceberg":
        from brokers.pipeline.archiving.iceberg import IcebergAccount

        return IcebergAccount.open(name, origin, by_hour=by_hour)
    from brokers.pipeline.archiving.delta import DeltaAccount

    return DeltaAccount.open(name, origin, by_hour=by_hour)


def register(account: TableAccount, folder: ArchiveFolder, place: ArchivePlace) -> int:
    """Add the files of an archive that is there to a new table, as they are. Returns how many."""
    found = committed(folder.files)
    parts = []
    for name, path in found.named():
        date_of = "/".join(path.split("/")[1:-1]).removeprefix("date=")
        if ("/hour=" in date_of) != account.by_hour:
            account.require_partition(not account.by_hour)
        log = found.manifest.logs[name.key]
        size, records = measured(place, path)
        parts.append(Part(name.key, log.topic, date_of, name.start, name.end, records, size, ""))
    following = attrs.evolve(found.manifest, version=account.manifest.version + 1, moves=tuple(parts), hot=())
    account.commit_files(following, place)
    return len(parts)


def measured(place: ArchivePlace, path: str) -> tuple[int, int]:
    """Return the bytes and the records of a Parquet file."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    if isinstance(place, BucketPlace):
        store = place.store()
        size: int = store.head(path)["size"]
        footer = 8 + int.from_bytes(bytes(store.get_range(path, start=size - 8, length=4)), "little")
        data = bytes(store.get_range(path, start=size - footer, end=size))
        return size, pq.read_metadata(pa.BufferReader(data)).num_rows
    local = Path(place.url(path))
    return local.stat().st_size, pq.read_metadata(local).num_rows
