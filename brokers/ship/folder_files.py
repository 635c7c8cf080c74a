"""Files of a data folder that are no logs, and that a restore needs: bridges made at run time, and users.

They stand in a table of the store, too. So the bucket has them in the journal's order, as of the same instant
as all else. Users come without their passwords and certificates' keys: nobody logs in by a password before
it is set anew.
"""

import os
from pathlib import Path
from typing import Self

import structlog
import trio

from shared.errors import StoreError
from shared.local_path import read_file, replace_file, sync_folder
from shared.storage.settings import Durability
from shared.storage.store import Store
from shared.storage.table import Table
from shared.units import MIB

NAMESPACE, TABLE = "host", "files"
FILE_BYTES_MAX = 4 * MIB
"""A larger file is not kept: one record must fit a batch of the journal."""


class FolderFiles:
    """The table of one store, which is shipped."""

    def __init__(self, store: Store, table: Table, log: structlog.stdlib.BoundLogger) -> None:
        self._store = store
        self._table = table
        self._log = log
        self._copying = trio.Lock()

    @classmethod
    async def open(cls, store: Store, log: structlog.stdlib.BoundLogger) -> Self:
        """Raises StoreError."""
        return cls(store, await Table.open(store.namespace(NAMESPACE, Durability("always")), TABLE), log)

    async def keep_copy(self, path: Path) -> None:
        """Have the table say what is in a file by now. Returns and logs as `keep`."""
        async with self._copying:  # else what was read before could be put behind what was read later
            try:
                data = await self._store.in_thread(_content_of, path)
            except OSError as error:
                self._tell(path.name, error)
            else:
                await self.keep(path.name, data)

    async def keep(self, name: str, data: bytes | None) -> None:
        """Have the table say what is in a file; None: it is not there. Returns once that is durable. What
        cannot be kept is logged: the file itself counts."""
        key = name.encode()
        if self._table.get(key) == data:
            return
        try:
            if data is not None and len(data) > FILE_BYTES_MAX:
                raise StoreError(f"it has {len(data)} bytes, and {FILE_BYTES_MAX} fit")
            ticket = self._table.delete(key) if data is None else self._table.put(key, data)
            await self._store.wait(ticket)
        except StoreError as error:
            self._tell(name, error)

    def _tell(self, name: str, error: Exception) -> None:
        self._log.error(
            "a file of the data folder is not shipped: a restore brings what it was before; the next change "
            "or start tries again",
            file=name,
            reason=str(error),
        )


def _content_of(path: Path) -> bytes | None:
    """A file's bytes; None where it is not there. Raises OSError."""
    try:
        return read_file(path, FILE_BYTES_MAX)
    except FileNotFoundError:
        return None


async def put_back(store: Store, folder: Path) -> list[str]:
    """Write the files that a store has, where there is none, and return their names. Raises StoreError and
    OSError.
    """
    if not store.has_log(NAMESPACE, TABLE):
        return []
    table = await Table.open(store.namespace(NAMESPACE, Durability("always")), TABLE)
    files = [(key.decode(), data) for key, data in table.items()]
    return [name for name, data in files if await store.in_thread(_write, folder, name, data)]


def _write(folder: Path, name: str, data: bytes) -> bool:
    if os.path.basename(name) != name or (folder / name).exists():
        return False
    replace_file(folder / name, data, 0o600)
    sync_folder(folder)
    return True
