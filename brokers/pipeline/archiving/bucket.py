"""The archive's files in an object store, which has no folders, no rename, and no lock.

What must be written once is created if absent. A rename is a copy within the store, and then a delete: a
crash between them leaves both, and the rename is done again. Names are durable when their object is.
"""

import io
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import attrs

if TYPE_CHECKING:
    from obstore.store import ObjectStore


@contextmanager
def _as_os_errors() -> Iterator[None]:
    """Turn the store's errors into OSError. That nothing is there is FileNotFoundError already."""
    from obstore.exceptions import BaseError

    try:
        yield
    except BaseError as error:
        raise OSError(str(error).partition("\n")[0]) from error


class BucketReader(io.RawIOBase):
    """An object as a file to read, by ranges. pyarrow takes obstore's own reader for a closed one."""

    def __init__(self, store: "ObjectStore", path: str) -> None:
        self.length: int = store.head(path)["size"]
        self._store, self._path, self._at = store, path, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._at = offset + (0, self._at, self.length)[whence]
        return self._at

    def read(self, size: int = -1) -> bytes:
        end = self.length if size < 0 else min(self._at + size, self.length)
        data = bytes(self._store.get_range(self._path, start=self._at, end=end)) if end > self._at else b""
        self._at += len(data)
        return data


@attrs.define(eq=False)
class BucketFiles:
    """See `Files`."""

    store: "ObjectStore"

    def read_whole(self, path: str) -> bytes:
        with _as_os_errors():
            return bytes(self.store.get(path).bytes())

    def write_new(self, path: str, data: bytes) -> None:
        """Create the object. Raises FileExistsError if there is one with other bytes.

        A PUT whose answer was lost may have been done, and a second try of it is refused then. What is read
        back tells.
        """
        from obstore.exceptions import BaseError

        try:
            self.store.put(path, data, mode="create")
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
            self.store.delete(list(self.walk(path)))

    def rename(self, old: str, new: str) -> None:
        with _as_os_errors():
            self.store.copy(old, new)
            self.store.delete(old)

    def unlink(self, path: str) -> None:
        with _as_os_errors():
            self.store.delete(path)

    def names(self, path: str) -> Sequence[str]:
        with _as_os_errors():
            found = self.store.list_with_delimiter(f"{path}/" if path else None)
        paths = [*found["common_prefixes"], *(each["path"] for each in found["objects"])]
        return sorted(each.rpartition("/")[2] for each in paths)

    def walk(self, path: str) -> Iterator[str]:
        """Yield every path below a folder: a request for a thousand, where folders would be one each."""
        with _as_os_errors():
            for some in self.store.list(f"{path}/"):
                for each in some:
                    yield each["path"]
