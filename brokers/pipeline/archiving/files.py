"""The few file operations of the driver. Tests cut between any two of them, on the storage tests' fake disk.

Unlike a data folder, an archive is for others to read, so its files get the rights that the umask leaves. It
has a folder for each topic and day, too many for handles that stay open, as `OsDisk` keeps them.
"""

import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from shared.local_path import sync_folder


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


class LocalFiles:
    """A folder of this machine, or one that several share."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def read_whole(self, path: str) -> bytes:
        return (self._folder / path).read_bytes()

    def write_new(self, path: str, data: bytes) -> None:
        with (self._folder / path).open("xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())

    def sync_folder(self, path: str) -> None:
        sync_folder(self._folder / path)

    def rename(self, old: str, new: str) -> None:
        os.rename(self._folder / old, self._folder / new)

    def unlink(self, path: str) -> None:
        os.unlink(self._folder / path)

    def make_folder(self, path: str) -> None:
        (self._folder / path).mkdir(exist_ok=True)

    def remove_folder(self, path: str) -> None:
        """Remove a folder of files: at once for whoever looks, since it gets another name first."""
        gone = (self._folder / path).parent / ".removed"
        shutil.rmtree(gone, ignore_errors=True)
        (self._folder / path).rename(gone)
        shutil.rmtree(gone)

    def names(self, path: str) -> Sequence[str]:
        try:
            return sorted(os.listdir(self._folder / path))
        except (FileNotFoundError, NotADirectoryError):
            return []
