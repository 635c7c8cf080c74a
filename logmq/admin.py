"""What the API shows of LogMQ, and what can be done with it: topics, their records, groups' offsets."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from logmq.broker import Broker
from logmq.groups import Committed
from shared.objects import (
    GROUPS,
    TOPICS,
    Action,
    BadArgument,
    MessageRows,
    Objects,
    a_count,
    a_text,
    key_of,
    time_text,
)
from shared.storage.format import LENGTH_BYTES, length_at
from shared.storage.log import RecordTimes, read_records
from shared.storage.store import Log

OFFSET_MAX = (1 << 63) - 1
RECORDS_MAX = 1000
READ_BYTES = 256 << 10


class Admin:
    """The objects of one broker."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        page = {"from": "the offset of the first; else the first that is kept", "limit": "so many; 100"}
        records = Action("records", "Records, by offset.", self._records, page, looks=True)
        trim = Action(
            "trim",
            "Drop what is below an offset, which is a record's start or the end.",
            self._trim,
            {"offset": "the first that is kept"},
            dry_runs=True,
        )
        reset = Action(
            "reset",
            "Set where the group goes on.",
            self._reset,
            {
                "offset": "a record's start or the end",
                "time": "RFC 3339: before the first record from then on, by up to 64 KiB",
            },
            dry_runs=True,
        )
        delete = Action("delete", "Forget what the group has committed.", self._delete, dry_runs=True)
        self.objects: Sequence[Objects] = (
            Objects(
                TOPICS,
                lambda: list(broker.topics.by_id().values()),
                lambda log: key_of(log.name),
                self._find_topic,
                self._topic,
                (records, trim),
                begin="brokers logmq produce orders hello",
            ),
            Objects(
                GROUPS,
                lambda: list(broker.groups.all(broker.topics.by_id().get)),
                lambda row: key_of(row.group, row.topic),
                self._find_group,
                self._group,
                (reset, delete),
                begin="brokers logmq consume orders --group billing --commit",
            ),
        )

    # Topics.

    def _find_topic(self, parts: Sequence[str]) -> Log | None:
        return self._broker.topics.find(parts[0])

    def _topic(self, log: Log) -> dict[str, Any] | None:
        if log.deleted:
            return None
        kept = log.retention
        return {
            "name": log.name,
            "first": log.first,
            "end": log.visible,
            "bytes": log.visible - log.first,
            "durability": str(log.mode),
            "retention_bytes": kept and kept.bytes_max,
            "retention_seconds": kept.ms_max / 1000 if kept and kept.ms_max else None,
            "created": time_text(log.created_ms),
        }

    async def _records(self, log: Log, arguments: Mapping[str, Any], _: bool) -> dict[str, Any]:
        offset = a_count(arguments, "from", log.first, 0, OFFSET_MAX)
        limit = a_count(arguments, "limit", 100, 1, RECORDS_MAX)
        rows = MessageRows(limit)
        while rows.left:
            data = await read_records(log, offset, READ_BYTES)
            if not data:
                return {"items": rows.items, "next": None}
            times = RecordTimes(log, offset, offset + len(data))
            at = 0
            while at < len(data) and rows.left:
                length = length_at(data, at)[0]
                body = data[at + LENGTH_BYTES : at + LENGTH_BYTES + length]
                rows.add(offset + at, body, times.at(offset + at))
                at += LENGTH_BYTES + length
            offset += at
        return {"items": rows.items, "next": offset if offset < log.visible else None}

    async def _trim(self, log: Log, arguments: Mapping[str, Any], dry_run: bool) -> dict[str, Any]:
        offset = await self._boundary(log, arguments)
        dropped = max(offset - log.first, 0)
        if not dry_run and dropped:
            await self._broker.store.wait(log.drop_below(offset))
        return {"dropped": dropped, "first": offset if dropped else log.first}

    # Groups.

    def _find_group(self, parts: Sequence[str]) -> Committed | None:
        group, topic = parts
        log = self._broker.topics.find(topic)
        found = None if log is None else self._broker.groups.committed(group, log)
        return None if log is None or found is None else Committed(group, topic, found[0], log.visible)

    def _group(self, row: Committed) -> dict[str, Any]:
        return {
            "group": row.group,
            "topic": row.topic,
            "offset": row.offset,
            "end": row.end,
            "lag_bytes": row.behind_bytes,
        }

    async def _reset(self, row: Committed, arguments: Mapping[str, Any], dry_run: bool) -> dict[str, Any]:
        log = self._broker.topics.find(row.topic)
        if log is None:
            raise BadArgument(f"{row.topic} was deleted")
        if ("time" in arguments) == ("offset" in arguments):
            raise BadArgument("give offset or time")
        if "time" in arguments:
            offset = log.seek(round(_moment(arguments) * 1000))
        else:
            offset = await self._boundary(log, arguments)
        if not dry_run:
            await self._broker.store.wait(self._broker.groups.commit(row.group, log, offset))
        return {"reset": 1, "before": row.offset, "offset": offset}

    async def _delete(self, row: Committed, _: Mapping[str, Any], dry_run: bool) -> dict[str, Any]:
        log = self._broker.topics.find(row.topic)
        there = log is not None and self._broker.groups.committed(row.group, log) is not None
        if log is not None and there and not dry_run:
            await self._broker.store.wait(self._broker.groups.delete(row.group, log))
        return {"deleted": int(there)}

    async def _boundary(self, log: Log, arguments: Mapping[str, Any]) -> int:
        """An offset between two records. Raises BadArgument and StoreError."""
        if "offset" not in arguments:
            raise BadArgument("offset is missing")
        offset = a_count(arguments, "offset", 0, log.first, log.visible)
        await read_records(log, offset, 1)  # it says what is wrong with an offset inside a record
        return offset


def _moment(arguments: Mapping[str, Any]) -> float:
    """Unix seconds. Raises BadArgument."""
    try:
        moment = datetime.fromisoformat(a_text(arguments, "time"))
        if moment.tzinfo is None or moment.year < 1970:
            raise ValueError
    except ValueError:
        raise BadArgument("time is RFC 3339, with its zone: 2026-01-31T12:00:00Z") from None
    return moment.timestamp()
