"""The archive's folder. Only this module commits, publishes, recovers and cleans.

    1  executors write fresh files and sync them                     (parquet.py)
    2  their folders are synced
    3  the manifest of the next version is created, exclusively, and synced: this is the commit
    4  the files that it moves are renamed to their final places, and their folders synced

A crash before 3 leaves fresh files that no manifest names. Recovery removes them, and the same records are
read again. A crash after 3 leaves renames undone, and recovery does them. So every file at a final place is
committed, whole and synced, and no commit is taken back.

If the newest manifest is damaged, recovery goes on from the one before, and the same records are read again.
The damaged manifest, and the fresh files that it may have named, are set aside. Nothing is removed.

One process commits: it holds a lock on the folder. On file systems whose locks do not reach other machines,
the exclusive creation of each version stops the slower of two archivers.

A bucket has no lock. So a start takes the next version for itself, by creating it if absent, before it
removes anything: whoever began earlier cannot commit any more, and a commit's files are never swept.
"""

import secrets
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import date
from pathlib import Path
from typing import Any

import attrs

from brokers.errors import ExitCode, Failure
from brokers.pipeline.archiving import manifest as manifests
from brokers.pipeline.archiving import names
from brokers.pipeline.archiving.manifest import Manifest, Part
from brokers.pipeline.archiving.places import ArchivePlace, BucketPlace, Files
from shared.errors import StoreInUse
from shared.storage import format
from shared.storage.lock import FolderLock

_KEPT_MANIFESTS = 2


@attrs.define(eq=False)
class ArchiveDamaged(Failure):
    """The folder does not hold what its manifest says. Nothing was changed."""

    code: ExitCode = ExitCode.DATA_FOLDER


@attrs.define(eq=False)
class ArchiveInUse(Failure):
    """Another archiver writes this folder."""

    code: ExitCode = ExitCode.DATA_FOLDER


@contextmanager
def opened(place: ArchivePlace, origin: str) -> Iterator["ArchiveFolder"]:
    """Lock, recover and open the archive in a folder, which is made if missing, or in a bucket.

    `origin`: the kind of source that logs are taken from. Raises ArchiveInUse, ArchiveDamaged, and Failure
    for an archive of another kind.
    """
    if isinstance(place, BucketPlace):
        folder = ArchiveFolder(place, origin, is_locked=False)
        folder.recover()
        yield folder
        return
    path = Path(place.url(""))
    hidden = path / names.HIDDEN
    hidden.mkdir(parents=True, exist_ok=True)
    try:
        lock = FolderLock.take(hidden, mode=0o666)
    except StoreInUse as error:
        holder = str(error).removeprefix(f"{hidden} is in use by ")
        raise ArchiveInUse(f"{path} is being written by another archiver ({holder})") from None
    with lock:
        folder = ArchiveFolder(place, origin)
        folder.recover()
        yield folder


def newest(files: Files) -> Manifest | None:
    """Return the newest whole manifest; None if nothing was committed. Raises ArchiveDamaged."""
    while True:
        try:
            return _newest(files)
        except FileNotFoundError:  # commits came meanwhile, and removed old versions
            continue


def _newest(files: Files) -> Manifest | None:
    for version in sorted(_versions(files), reverse=True):
        data = files.read_whole(names.manifest(version))
        found = manifests.unpack(data)
        if found is not None:
            return found
        _check_format(data)
    return None


@attrs.define(eq=False)
class ArchiveFolder:
    """An open archive. After an OSError of a method only a new object on the folder can go on."""

    files: Files
    origin: str
    manifest: Manifest = attrs.field(factory=Manifest)
    is_locked: bool = True
    """Whether a lock keeps other archivers away."""
    _by: str = attrs.field(factory=lambda: secrets.token_hex(8), init=False)
    _durable: set[str] = attrs.field(factory=set, init=False)
    """Folders whose own names are synced."""

    def recover(self) -> None:
        """Finish the last commit, and remove what was not committed. Raises ArchiveDamaged."""
        for path in (names.HIDDEN, names.FRESH, names.MANIFESTS):
            self._make(path)
        while (left := self._take_newest()) is None:
            pass
        self._move()
        self._prune()
        self._sweep(left)

    def _take_newest(self) -> list[str] | None:
        """Go on from the newest whole manifest. None where another archiver committed meanwhile.

        Where no lock keeps it away, it cannot commit any more behind this. Returns what it has left.
        """
        found = newest(self.files)
        self.manifest = found or Manifest(origin=self.origin)
        if self.manifest.origin != self.origin:
            raise Failure(
                f"this archive has logs of {self.manifest.origin}, not of {self.origin}; take another folder",
                ExitCode.CONFIGURATION,
            )
        try:
            self._refuse_unknown()
        except ArchiveDamaged:
            if newest(self.files) == found:
                raise
            return None
        for version in _versions(self.files):
            if version > self.manifest.version:
                data = self.files.read_whole(names.manifest(version))
                if manifests.unpack(data) is not None:
                    return None
                if manifests.was_whole(data):
                    self._set_aside(version)
                else:  # its writer died while it wrote it
                    self.files.unlink(names.manifest(version))
        left = self._unnamed(self.manifest)
        if self.is_locked:
            return left
        mine = attrs.evolve(self.manifest, version=self.manifest.version + 1)
        try:
            self._create(mine)
        except ArchiveInUse:
            return None
        self.manifest = mine
        return left

    def learn(self, found: Iterable[str]) -> None:
        """Look up the state of these logs by name. A manifest has that of all."""

    def commit(self, following: Manifest) -> None:
        """Commit `following`, and do its moves. Raises ArchiveInUse if another archiver committed."""
        if following.version != self.manifest.version + 1:
            raise ValueError(f"version {following.version} after {self.manifest.version}")
        self._sync_folders({_parent(part.fresh_path) for part in following.moves})
        left = self._unnamed(following)
        self._create(following)
        self.manifest = following
        self._move()
        self._prune()
        self._sweep(left)

    def day_files(self, day: date) -> list[str]:
        return [path for path, _ in final_files(self.files) if path.split("/")[1] == f"date={day}"]

    def replace(self, following: Manifest, paths: Sequence[str]) -> None:
        """Commit files that have the names of others, and take their places."""
        if {part.path for part in following.moves} != set(paths):
            raise Failure("other files than those that are there would be made")
        self.commit(following)

    def expire(self, before: date) -> None:
        """Remove the folders of all days before this one."""
        for topic in self.files.names(""):
            for day in self.files.names(topic) if topic.startswith("topic=") else ():
                if day.startswith("date=") and day < f"date={before}":
                    self.files.remove_folder(f"{topic}/{day}")
                    self._durable.difference_update([f"{topic}/{day}"])

    def _create(self, following: Manifest) -> None:
        try:
            self.files.write_new(names.manifest(following.version), following.pack(self._by))
        except FileExistsError:
            raise ArchiveInUse("another archiver has committed to this folder") from None
        self.files.sync_folder(names.MANIFESTS)
        if max(_versions(self.files)) != following.version:
            raise ArchiveInUse("another archiver has committed to this folder")

    def _sweep(self, left: Iterable[str]) -> None:
        """Remove fresh files that no manifest names.

        They were found before the version was created: those that came later may be another archiver's.
        """
        for path in left:
            self.files.unlink(path)

    def _unnamed(self, manifest: Manifest) -> list[str]:
        """Return the fresh files that a manifest does not name, left by dead tasks."""
        kept = {part.fresh_path for part in (*manifest.hot, *manifest.moves)}
        return [path for path in _below(self.files, names.FRESH) if path not in kept]

    def _set_aside(self, version: int) -> None:
        """Set aside a damaged manifest. Its files go first, or another recovery would sweep them."""
        folder = names.damaged(version)
        self._make(folder)
        for path in (*self._unnamed(self.manifest), names.manifest(version)):
            self.files.rename(path, f"{folder}/{path.rpartition('/')[2]}")
            self.files.sync_folder(folder)
        print(
            f"brokers: manifest {version} of the archive is damaged: it is set aside in {folder}, and its "
            "records are read again",
            file=sys.stderr,
        )

    def _refuse_unknown(self) -> None:
        """Raise ArchiveDamaged for a final file behind the manifest's end: then the manifest is old."""
        moved = {part.path for part in self.manifest.moves}
        for path, name in final_files(self.files):
            log = self.manifest.logs.get(name.key)
            if path not in moved and (log is None or name.end > log.end):
                raise ArchiveDamaged(
                    f"{path} is newer than the newest manifest that can be read"
                    f" (version {self.manifest.version}): the manifest is damaged or was replaced"
                )

    def _move(self) -> None:
        """Rename the files that the manifest moves to their final places, unless they are there already."""
        fresh = {
            path
            for folder in {_parent(part.fresh_path) for part in self.manifest.moves}
            for path in _below(self.files, folder)
        }
        for part in self.manifest.moves:
            if part.fresh_path in fresh:
                try:
                    self._publish(part)
                except FileNotFoundError:  # its day was removed since the folder was made
                    self._durable.difference_update(_folders(part.path))
                    self._publish(part)
            elif not exists(self.files, part.path) and exists(self.files, _parent(part.path)):
                # A day that is gone as a whole was removed: archives have an age.
                raise ArchiveDamaged(f"{part.path} was committed, and is not there")
        for folder in {_parent(part.path) for part in self.manifest.moves}:
            if exists(self.files, folder):
                self.files.sync_folder(folder)
        # Sync where they left, too: after a power cut they might be in both places.
        for folder in {_parent(part.fresh_path) for part in self.manifest.moves}:
            self.files.sync_folder(folder)

    def _publish(self, part: Part) -> None:
        for folder in _folders(part.path):
            self._make(folder)
        self.files.rename(part.fresh_path, part.path)

    def _prune(self) -> None:
        for version in _versions(self.files):
            if version <= self.manifest.version - _KEPT_MANIFESTS:
                self.files.unlink(names.manifest(version))

    def _make(self, folder: str) -> None:
        if folder not in self._durable:
            self.files.make_folder(folder)
            self.files.sync_folder(_parent(folder))
            self._durable.add(folder)

    def _sync_folders(self, folders: Iterable[str]) -> None:
        """Sync these folders, and the folders above them, which executors may have made."""
        for folder in sorted(folders):
            for above in _folders(folder + "/"):
                if above not in self._durable:
                    self.files.sync_folder(_parent(above))
                    self._durable.add(above)
            self.files.sync_folder(folder)


def final_files(files: Files) -> Iterator[tuple[str, names.FileName]]:
    """Yield every file at a final place, with what its name says."""
    for topic in files.names(""):
        if not topic.startswith("topic="):
            continue
        for path in _below(files, topic):
            name = names.parse_file(path.rpartition("/")[2])
            if name is not None and not name.token:
                yield path, name


def _versions(files: Files) -> list[int]:
    found = map(names.parse_manifest, files.names(names.MANIFESTS))
    return [version for version in found if version is not None]


def _check_format(data: bytes) -> None:
    """Raise ArchiveDamaged for a whole manifest of a later format."""
    lines: list[dict[str, Any]] = format.unpack_lines(data) or [{}]
    number = lines[0].get("archive", manifests.FORMAT_NUMBER)
    if number != manifests.FORMAT_NUMBER:
        raise ArchiveDamaged(f"an archive of format {number}; this program knows {manifests.FORMAT_NUMBER}")


def _below(files: Files, folder: str) -> Iterator[str]:
    """Yield every file below a folder. Folders are partitions: `topic=`, `date=`, `hour=`."""
    if isinstance(files, BucketPlace):
        yield from files.walk(folder)
        return
    for name in files.names(folder):
        if "=" in name:
            yield from _below(files, f"{folder}/{name}")
        else:
            yield f"{folder}/{name}"


def exists(files: Files, path: str) -> bool:
    folder, _, name = path.rpartition("/")
    return name in files.names(folder)


def _parent(path: str) -> str:
    return path.rpartition("/")[0]


def _folders(path: str) -> list[str]:
    """Return every folder above a path, the highest first."""
    parts = path.split("/")[:-1]
    return ["/".join(parts[: number + 1]) for number in range(len(parts))]
