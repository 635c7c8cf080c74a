"""Retention of single topics, which wins over the settings: a table by the log's id.

An id is never used again, so a row that is left of a deleted topic counts for no other.
"""

import json
from collections.abc import Collection, Mapping
from typing import Any, Self

import attrs

from logmq.settings import RETENTIONS
from shared.objects import BadArgument, a_count
from shared.storage.inventory import Namespace
from shared.storage.log import Log, Ticket
from shared.storage.settings import Retention
from shared.storage.store import Store
from shared.storage.table import Table

_ID_BYTES = 8


@attrs.frozen
class OwnRetention:
    """What is set for one topic. None: as the settings say; 0: keep all."""

    bytes_kept: int | None = None
    ms_kept: int | None = None
    local_bytes: int | None = None
    local_ms: int | None = None

    @property
    def needs_bucket(self) -> bool:
        return bool(self.local_bytes or self.local_ms)

    def over(self, usual: Retention) -> Retention:
        bytes_kept = usual.bytes_kept if self.bytes_kept is None else self.bytes_kept
        ms_kept = usual.ms_kept if self.ms_kept is None else self.ms_kept
        return Retention(bytes_kept or None, ms_kept or None)

    def over_local(self, usual: Retention) -> Retention:
        """What stays on this disk."""
        return OwnRetention(self.local_bytes, self.local_ms).over(usual)


NOTHING_SET = OwnRetention()
SECONDS_MAX = 100 * 366 * 24 * 3600
"""The longest retention that can be set for one topic."""


class Retentions:
    """The topics that have a retention of their own."""

    def __init__(self, namespace: Namespace) -> None:
        self._namespace = namespace
        self._table: Table | None = None
        self._own: dict[int, OwnRetention] = {}

    @classmethod
    async def open(cls, namespace: Namespace) -> Self:
        """Read the table, if there is one. Raises StoreError."""
        retentions = cls(namespace)
        await retentions.look_anew()
        return retentions

    async def look_anew(self) -> Collection[int]:
        """Take what the table has by now; returns the logs' ids for which it changed. Raises StoreError."""
        if self._table is None and RETENTIONS in self._namespace.logs:
            self._table = await Table.open(self._namespace, RETENTIONS)
        rows = () if self._table is None else self._table.items()
        before, self._own = (
            self._own,
            {int.from_bytes(key, "big"): OwnRetention(*json.loads(value)) for key, value in rows},
        )
        return {key for key, _ in before.items() ^ self._own.items()}

    def of(self, log: Log) -> OwnRetention:
        return self._own.get(log.id, NOTHING_SET)

    async def set(self, log: Log, own: OwnRetention) -> Ticket:
        """Keep this for a topic. Raises StoreError."""
        if self._table is None:
            self._table = await Table.open(self._namespace, RETENTIONS)
        key = log.id.to_bytes(_ID_BYTES, "big")
        if own == NOTHING_SET:
            self._own.pop(log.id, None)
            return self._table.delete(key)
        ticket = self._table.put(key, json.dumps(attrs.astuple(own)).encode())
        self._own[log.id] = own
        return ticket

    def forget(self, log_id: int) -> None:
        """Drop a deleted topic's row. Raises StoreError."""
        if self._own.pop(log_id, None) is not None and self._table is not None:
            self._table.delete(log_id.to_bytes(_ID_BYTES, "big"))


_FIELDS = {
    "retention_bytes": "bytes_kept",
    "retention_seconds": "ms_kept",
    "local_retention_bytes": "local_bytes",
    "local_retention_seconds": "local_ms",
}
"""By the name of an action's argument, what it sets."""


def own_retention(arguments: Mapping[str, Any], before: OwnRetention) -> OwnRetention:
    """What an action's arguments, or a row of definitions, make of a topic's own. Raises BadArgument."""
    given: dict[str, int | None] = {}
    for name, field in _FIELDS.items():
        if name in arguments:
            aged = name.endswith("seconds")
            most = SECONDS_MAX if aged else 1 << 62
            value = None if arguments[name] is None else a_count(arguments, name, 0, 0, most)
            given[field] = value * 1000 if aged and value is not None else value
    return attrs.evolve(before, **given)


def require_bucket(own: OwnRetention, store: Store) -> None:
    """Raise BadArgument for what means nothing where nothing is shipped."""
    if own.needs_bucket and store.shipping is None:
        raise BadArgument(
            "local_retention_bytes, local_retention_seconds: this server ships to no bucket, which would "
            "have the rest; ship.url names one"
        )


def as_row(own: OwnRetention) -> Mapping[str, int]:
    """What is set, by the names of an action's arguments."""
    row = {name: getattr(own, field) for name, field in _FIELDS.items()}
    return {
        name: value // 1000 if name.endswith("seconds") else value
        for name, value in row.items()
        if value is not None
    }
