"""How long clients are away, over restarts. Only time that the server runs counts.

The table has a row for each client that was away at the last `note`: its id, and the server's age when the
client left. Under `AGE` it has the server's age. Both are milliseconds, 8 bytes. A crash loses the time since
the last `note`; clients that left after it count as having left at the start.
"""

from collections import OrderedDict
from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from shared.storage.table import Table

AGE = b"\0"
"""The row of the server's age; no client's id holds this byte."""
_NUMBER_BYTES = 8


class Absences:
    """Since when each client is away, those that left first in front. `now`: monotonic seconds."""

    def __init__(self, table: "Table | None" = None) -> None:
        self._table = table
        self._since: OrderedDict[bytes, float] = OrderedDict()  # the server's age in seconds
        self._before = 0.0  # the server's age minus `now`
        self._unnoted: dict[bytes, None] = {}

    def load(self, client_ids: Collection[bytes], now: float) -> None:
        """Count these clients as away: since the table's time, else from now on."""
        saved = self._table.items() if self._table is not None else ()
        rows = {key: int.from_bytes(value, "big") / 1000 for key, value in saved}
        age = max(rows.values(), default=0.0)
        self._before = age - now
        since = sorted((rows.get(client_id, age), client_id) for client_id in client_ids)
        self._since = OrderedDict((client_id, left) for left, client_id in since)
        self._unnoted = dict.fromkeys(rows.keys() ^ self._since.keys() ^ {AGE})

    def left(self, client_id: bytes, now: float) -> None:
        self._since[client_id] = self._before + now
        self._unnoted[client_id] = None

    def over(self, client_id: bytes) -> None:
        """End the absence of a client that returned, or whose session ended."""
        if self._since.pop(client_id, None) is not None:
            self._unnoted[client_id] = None

    def longest(self, now: float) -> tuple[bytes, float] | None:
        """The client that is away longest, and for how many seconds."""
        for client_id, since in self._since.items():
            return client_id, self._before + now - since
        return None

    def note(self, now: float) -> Iterator[None]:
        """Write the changes, one client's with each step. Raises StoreError."""
        table = self._table
        if table is None:
            return
        while self._unnoted:
            client_id = next(iter(self._unnoted))
            since = self._since.get(client_id)
            if since is not None:
                table.put(client_id, _packed(since))
            elif client_id in table:
                table.delete(client_id)
            del self._unnoted[client_id]
            yield
        if self._since:
            table.put(AGE, _packed(self._before + now))


def _packed(seconds: float) -> bytes:
    return max(int(seconds * 1000), 0).to_bytes(_NUMBER_BYTES, "big")
