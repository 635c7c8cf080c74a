"""Where an archive lies: a folder of this machine, or a prefix in an object store's bucket.

An `ArchivePlace` travels to executors, which put finished Parquet files there. A file is seen under its name
whole or not at all: a folder renames it, and an object store makes an object of it with its last byte.
"""

import importlib.util
import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import attrs

from brokers.errors import ExitCode, Failure
from brokers.pipeline.archiving import names
from brokers.pipeline.archiving.manifest import Part
from brokers.pipeline.source.options import BUCKET_URL
from shared.local_path import local_path

if TYPE_CHECKING:
    from obstore.store import ObjectStore


class ArchivePlace(Protocol):
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
        """Open the store. Raises Failure for an address or settings that it does not take."""
        require_obstore()
        from obstore.exceptions import BaseError
        from obstore.store import from_url

        plain = any(at.startswith("http://") for at in (self.config.get("endpoint", ""), _endpoint()))
        try:
            return from_url(self.prefix, **self.config, client_options={"allow_http": plain})  # type: ignore[call-overload, no-any-return]
        except (BaseError, ValueError) as error:
            raise Failure(f"{self.prefix}: {error}", ExitCode.CONFIGURATION) from None


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
