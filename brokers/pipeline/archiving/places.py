"""Where an archive lies: a folder of this machine, or a prefix in an object store's bucket.

The driver has its `Files`; tests cut between any two of their operations, on the storage tests' fake disk. An
`ArchivePlace` travels to executors, too, which put finished Parquet files there. A file is seen under its
name whole or not at all: a folder renames it, and an object store makes an object of it with its last byte.

Unlike a data folder, an archive is for others to read, so its files get the rights that the umask leaves. It
has a folder for each topic and day, too many for handles that stay open, as `OsDisk` keeps them. A bucket has
no folders, no rename, and no lock. What must be written once is created if absent there. A rename is a copy
within the store, and then a delete: a crash between them leaves both, and the rename is done again. Names are
durable when their object is.
"""

import importlib.util
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import attrs

from brokers.errors import ExitCode, Failure
from brokers.pipeline.archiving import names
from brokers.pipeline.archiving.manifest import Part
from brokers.pipeline.source.options import BUCKET_URL
from shared.local_path import local_path, sync_folder

if TYPE_CHECKING:
    from obstore.store import ObjectStore


class Files(Protocol):
    """Files below one folder; paths are relative to it. Raises OSError."""

    def read_whole(self, path: str) -> bytes: ...

    def write_new(self, path: str, data: bytes) -> None:
        """Create a file, synced; its name is durable once the folder is synced. Raises FileExistsError."""

    def sync_folder(self, path: str) -> None: ...
    def rename(self, old: str, new: str) -> None: ...
    def unlink(self, path: str) -> None: ...
    def make_folder(self, path: str) -> None: ...
    def remove_folder(self, path: str) -> None: ...
    def names(self, path: str) -> Sequence[str]: ...


class ArchivePlace(Files, Protocol):
    """Where executors put files. `below`: the folder above the topics' own."""

    @property
    def below(self) -> str: ...

    def draft(self, folder: str, name: str) -> Path:
        """Return the path of a file to write, of this machine."""

    def keep(self, draft: Path, path: str) -> None:
        """Give a finished draft its path, durably. It is gone then."""

    def drop(self, path: str) -> None:
        """Remove a file that is named nowhere."""

    def url(self, path: str) -> str:
        """Return a path as readers name it."""


@attrs.frozen
class FolderPlace:
    """A folder of this machine, or one that every executor has at the same path."""

    root: Path
    below: str = names.FRESH

    def draft(self, folder: str, name: str) -> Path:
        (self.root / folder).mkdir(parents=True, exist_ok=True)
        return self.root / folder / f"{name}.part"

    def keep(self, draft: Path, path: str) -> None:
        fd = os.open(draft, os.O_RDONLY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)
        draft.rename(self.root / path)

    def drop(self, path: str) -> None:
        (self.root / path).unlink(missing_ok=True)

    def url(self, path: str) -> str:
        return str(self.root / path)

    def read_whole(self, path: str) -> bytes:
        return (self.root / path).read_bytes()

    def write_new(self, path: str, data: bytes) -> None:
        with (self.root / path).open("xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())

    def sync_folder(self, path: str) -> None:
        sync_folder(self.root / path)

    def rename(self, old: str, new: str) -> None:
        os.rename(self.root / old, self.root / new)

    def unlink(self, path: str) -> None:
        os.unlink(self.root / path)

    def make_folder(self, path: str) -> None:
        (self.root / path).mkdir(exist_ok=True)

    def remove_folder(self, path: str) -> None:
        """Remove a folder of files: at once for whoever looks, since it gets another name first."""
        gone = (self.root / path).parent / ".removed"
        shutil.rmtree(gone, ignore_errors=True)
        (self.root / path).rename(gone)
        shutil.rmtree(gone)

    def names(self, path: str) -> Sequence[str]:
        try:
            return sorted(os.listdir(self.root / path))
        except (FileNotFoundError, NotADirectoryError):
            return []


@contextmanager
def _as_os_errors() -> Iterator[None]:
    """Turn the store's errors into OSError. That nothing is there is FileNotFoundError already."""
    from obstore.exceptions import BaseError

    try:
        yield
    except BaseError as error:
        raise OSError(str(error).partition("\n")[0]) from error


@attrs.frozen
class BucketPlace:
    """A prefix in a bucket. `config`: the store's own settings, over those of the environment."""

    prefix: str
    below: str = names.FRESH
    config: Mapping[str, str] = attrs.field(factory=dict, repr=False)

    def draft(self, folder: str, name: str) -> Path:
        return Path(tempfile.mkdtemp(prefix="brokers-archive-")) / name

    def keep(self, draft: Path, path: str) -> None:
        self.store().put(path, draft)
        shutil.rmtree(draft.parent)

    def drop(self, path: str) -> None:
        try:
            self.store().delete(path)
        except FileNotFoundError:
            pass

    def url(self, path: str) -> str:
        return f"{self.prefix}/{path}"

    def store(self) -> "ObjectStore":
        """The store, opened once in a process. Raises Failure for an address or settings that it refuses."""
        return _store(self.prefix, tuple(sorted(self.config.items())))

    def read_whole(self, path: str) -> bytes:
        with _as_os_errors():
            return bytes(self.store().get(path).bytes())

    def write_new(self, path: str, data: bytes) -> None:
        """Create the object. Raises FileExistsError if there is one with other bytes.

        A PUT whose answer was lost may have been done, and a second try of it is refused then. What is read
        back tells.
        """
        from obstore.exceptions import BaseError

        try:
            self.store().put(path, data, mode="create")
        except BaseError as error:
            try:
                there = self.read_whole(path)
            except FileNotFoundError:
                raise OSError(str(error).partition("\n")[0]) from error
            if there != data:
                raise FileExistsError(path) from None

    def sync_folder(self, path: str) -> None:
        pass

    def make_folder(self, path: str) -> None:
        pass

    def remove_folder(self, path: str) -> None:
        with _as_os_errors():
            self.store().delete(list(self.walk(path)))

    def rename(self, old: str, new: str) -> None:
        with _as_os_errors():
            self.store().copy(old, new)
            self.store().delete(old)

    def unlink(self, path: str) -> None:
        with _as_os_errors():
            self.store().delete(path)

    def names(self, path: str) -> Sequence[str]:
        with _as_os_errors():
            found = self.store().list_with_delimiter(f"{path}/" if path else None)
        paths = [*found["common_prefixes"], *(each["path"] for each in found["objects"])]
        return sorted(each.rpartition("/")[2] for each in paths)

    def walk(self, path: str) -> Iterator[str]:
        """Yield every path below a folder: a request for a thousand, where folders would be one each."""
        with _as_os_errors():
            for some in self.store().list(f"{path}/"):
                for each in some:
                    yield each["path"]


@cache
def _store(prefix: str, config: tuple[tuple[str, str], ...]) -> "ObjectStore":
    require_obstore()
    from obstore.exceptions import BaseError
    from obstore.store import from_url

    said = dict(config)
    plain = any(at.startswith("http://") for at in (said.get("endpoint", ""), _endpoint()))
    try:
        return from_url(prefix, **said, client_options={"allow_http": plain})  # type: ignore[call-overload, no-any-return]
    except (BaseError, ValueError) as error:
        raise Failure(f"{prefix}: {error}", ExitCode.CONFIGURATION) from None


def _endpoint() -> str:
    return os.environ.get("AWS_ENDPOINT_URL") or os.environ.get("AWS_ENDPOINT", "")


def require_obstore() -> None:
    """Raise Failure if the extra that reaches object stores is missing."""
    require("obstore", "ship")


def require(module: str, extra: str) -> None:
    """Raise Failure if a package is missing that one of our extras brings."""
    if importlib.util.find_spec(module) is None:
        text = f"{module} is not installed: pip install 'brokers[{extra}]' brings it"
        raise Failure(text, ExitCode.CONFIGURATION)


def place_of(text: str | Path, below: str = names.FRESH, config: Mapping[str, str] = {}) -> ArchivePlace:
    """Parse `/srv/archive`, `file:///srv/archive` or `s3://bucket/prefix`. Raises ValueError."""
    text = str(text)
    if BUCKET_URL.match(text) is not None:
        return BucketPlace(text.rstrip("/"), below, config)
    return FolderPlace(local_path(text).absolute(), below)


def written_path(place: ArchivePlace, part: Part) -> str:
    """Return where a part lies before a commit names it."""
    return "/".join(filter(None, (place.below, part.written_name)))
