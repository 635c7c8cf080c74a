"""Retention of single topics, which wins over the settings: a table by the log's id.

An id is never used again, so a row that is left of a deleted topic counts for no other.
"""

import json
from collections.abc import Mapping
from typing import Any, Self

import attrs

from logmq.settings import RETENTIONS
from shared.objects import a_count
from shared.storage.inventory import Namespace
from shared.storage.log import Log, Ticket
from shared.storage.settings import Retention
from shared.storage.table import Table

_ID_BYTES = 8


@attrs.frozen
class OwnRetention:
    """What is set for one topic. None: as the settings say; 0: keep all."""

    bytes_kept: int | None = None
    ms_kept: int | None = None

    def over(self, usual: Retention) -> Retention:
        bytes_kept = usual.bytes_kept if self.bytes_kept is None else self.bytes_kept
        ms_kept = usual.ms_kept if self.ms_kept is None else self.ms_kept
        return Retention(bytes_kept or None, ms_kept or None)


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
        if RETENTIONS in namespace.logs:
            table = retentions._table = await Table.open(namespace, RETENTIONS)
            retentions._own = {
                int.from_bytes(key, "big"): OwnRetention(*json.loads(value)) for key, value in table.items()
            }
        return retentions

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


def own_retention(arguments: Mapping[str, Any], before: OwnRetention) -> OwnRetention:
    """What an action's arguments, or a row of definitions, make of a topic's own. Raises BadArgument."""
    given = {
        name: None if arguments[name] is None else a_count(arguments, name, 0, 0, most)
        for name, most in (("retention_bytes", 1 << 62), ("retention_seconds", SECONDS_MAX))
        if name in arguments
    }
    seconds = given.get("retention_seconds")
    return OwnRetention(
        given.get("retention_bytes", before.bytes_kept),
        (None if seconds is None else seconds * 1000) if "retention_seconds" in given else before.ms_kept,
    )


def as_row(own: OwnRetention) -> Mapping[str, int]:
    """What is set, by the names of an action's arguments."""
    seconds = None if own.ms_kept is None else own.ms_kept // 1000
    given = {"retention_bytes": own.bytes_kept, "retention_seconds": seconds}
    return {name: value for name, value in given.items() if value is not None}
