"""What is stored about a bridge: where it is in its source, and whether it is paused."""

import json
from collections.abc import Callable
from functools import partial

import attrs

from shared.errors import StoreError
from shared.storage.store import Ticket
from shared.storage.table import Table


@attrs.define(eq=False)
class KeptPositions:
    """What is stored about one bridge (`shared.bridging.Positions`).

    `source`: the address that the positions belong to; None: not stored yet. `start`: where a reset lets it
    begin; None: where the settings say. `removed_ms`: when it left the settings.

    A position that an entry confirms is taken back with its entry. All else is made again by `store_again`.
    `on_refused` is called where the disk refuses it.
    """

    _table: Table
    _bridge: str
    source: str | None = None
    first_run: bool = True
    paused: bool = False
    start: str | None = None
    removed_ms: float | None = None
    on_refused: Callable[[StoreError], None] = lambda _: None
    _begun: dict[bytes, bytes] = attrs.field(factory=dict, init=False)
    """Where the source begins, by name, until the disk has that: another `end` would leave messages out."""
    _refused: dict[bytes | None, Callable[[], Ticket]] = attrs.field(factory=dict, init=False)
    """Changes that the disk has refused, by name; None: all rows were deleted."""

    @classmethod
    def read(cls, table: Table, bridge: str) -> "KeptPositions":
        positions = cls(table, bridge)
        try:
            kept = json.loads(table.get(positions._key()) or b"{}")
        except ValueError:
            kept = {}
        positions.source = kept.get("source")
        positions.first_run = not kept.get("started", False)
        positions.paused = bool(kept.get("paused", False))
        positions.start = kept.get("start")
        positions.removed_ms = kept.get("removed_ms")
        return positions

    def get(self, name: bytes) -> bytes | None:
        stored = self._table.get(self._key(name))
        return self._begun.get(name) if stored is None else stored

    def begin(self, name: bytes, value: bytes) -> None:
        self._begun[name] = value
        self._make(name, partial(self._table.put, self._key(name), value))

    def put(self, name: bytes, value: bytes) -> None:
        self._table.put(self._key(name), value)

    def delete(self, name: bytes) -> None:
        self._begun.pop(name, None)
        self._refused.pop(name, None)
        self._table.delete(self._key(name))

    def take_from(self, source: str) -> None:
        """Change to another source. It begins like a new one, except at positions that are stored for it."""
        if self.source == source:
            return
        if self.source is not None:
            self.first_run, self.start = True, None
        known, self.source = self.source or not self.first_run, source
        if known:
            self.keep()

    def started(self) -> None:
        self.first_run, self.start = False, None
        self.keep()

    def reset(self, start: str) -> None:
        """Forget all positions, and begin at `start`."""
        self.forget()
        self.first_run, self.start = True, start
        self.keep()

    def forget(self) -> None:
        """Delete everything stored about the bridge. Raises StoreError."""
        self._begun.clear()
        self._refused.clear()
        self._make(None, self._delete_rows)

    def keep(self) -> None:
        """Write down all but the positions."""
        self._make(b"", self._put_row)

    @property
    def is_refused(self) -> bool:
        """Whether the disk has refused something that `store_again` makes again."""
        return bool(self._refused)

    def store_again(self) -> None:
        """Raises StoreError."""
        for name, change in tuple(self._refused.items()):
            self._make(name, change)
            del self._refused[name]

    def _make(self, name: bytes | None, change: Callable[[], Ticket]) -> None:
        change().when_done(lambda ticket: self._made(name, change, ticket))

    def _made(self, name: bytes | None, change: Callable[[], Ticket], ticket: Ticket) -> None:
        if ticket.error is not None:
            self._refused[name] = change
            self.on_refused(ticket.error)
        elif name is not None:
            self._begun.pop(name, None)

    def _delete_rows(self) -> Ticket:
        prefix = self._key()
        return self._table.delete_all([key for key, _ in self._table.items() if key.startswith(prefix)])

    def _put_row(self) -> Ticket:
        row = {"started": not self.first_run, "paused": self.paused}
        more = {"source": self.source, "start": self.start, "removed_ms": self.removed_ms}
        row |= {name: value for name, value in more.items() if value is not None}  # type: ignore[misc]
        return self._table.put(self._key(), json.dumps(row).encode())

    def _key(self, name: bytes = b"") -> bytes:
        return self._bridge.encode() + b"\0" + name
