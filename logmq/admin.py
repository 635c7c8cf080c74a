"""What the API shows of LogMQ, and the actions on it: topics, their records, groups' offsets."""

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from operator import attrgetter
from typing import Any

import attrs

from logmq.actions import CHANGE, CREATE
from logmq.broker import Broker
from logmq.groups import Committed, group_of
from logmq.record_counts import RecordCounts
from logmq.retentions import NOTHING_SET, OwnRetention, own_retention, require_bucket
from logmq.runs import encode
from logmq.wire import NUMBER_MAX, topic_untrusted
from shared.access import ASKER
from shared.actions import BODY, FORGET, action, changing
from shared.errors import BrokerError
from shared.objects import (
    GROUPS,
    MESSAGES,
    TOPICS,
    Argument,
    BadArgument,
    BadValue,
    MessageRows,
    ObjectMissing,
    Objects,
    a_body,
    a_count,
    a_flag,
    a_text,
    key_of,
    time_text,
)
from shared.storage.format import LENGTH_BYTES, length_at
from shared.storage.log import RecordTimes, read_records, require_record_start
from shared.storage.settings import Durability, Retention
from shared.storage.store import Log
from shared.task_turns import TaskTurn

RECORDS_MAX = 1000
READ_BYTES = 256 << 10
TIME_HELP = "RFC 3339: before the first record from then on, by up to 64 KiB"
BACK_HELP = "so many records before the end"
OFFSET, BACK = Argument("a record's start or the end", "number"), Argument(BACK_HELP, "number")


class TopicExists(BrokerError):
    """There is a topic of that name."""


class Admin:
    """The objects of one broker."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._counts = RecordCounts(broker.topics)
        self._topic_values = _TOPIC_VALUES | {
            "retention_bytes": lambda log: self._retention(log).bytes_kept,
            "retention_seconds": lambda log: (ms := self._retention(log).ms_kept) and ms / 1000,
            "local_bytes": lambda log: log.visible - max(log.first, log.local),
            "local_retention_bytes": lambda log: log.local_retention.bytes_kept,
            "local_retention_seconds": lambda log: (ms := log.local_retention.ms_kept) and ms / 1000,
        }
        self.objects: Sequence[Objects] = (
            Objects(
                TOPICS,
                broker.topics.all,
                lambda log: key_of(log.name),
                lambda parts: broker.topics.find(parts[0]),
                self._topic,
                (self._records, self._publish, self._change, self._trim, self._delete_topic),
                (self._create,),
                begin="brokers logmq produce orders hello",
                totals=lambda log: (log.end, log.first, None),
                look=self._look_at_topic,
                values=self._topic_values,
            ),
            Objects(
                GROUPS,
                lambda: broker.groups.keys(broker.topics.all()),
                lambda found: key_of(group_of(found[1]), found[0].name),
                self._find_group,
                self._group,
                (self._reset, self._delete),
                begin="brokers logmq consume orders --group billing --commit",
                look=self._look_at_group,
                values={
                    "group": lambda found: group_of(found[1]),
                    "topic": lambda found: found[0].name,
                    "end": lambda found: found[0].visible,
                    "lag_bytes": lambda found: (row := self._committed(found)) and row.behind_bytes,
                },
            ),
        )

    # Topics.

    def _topic(self, log: Log) -> dict[str, Any] | None:
        if log.deleted:
            return None
        return {name: read(log) for name, read in self._topic_values.items()}

    def _retention(self, log: Log) -> Retention:
        return log.retention or self._broker.settings.retention_usual

    async def _look_at_topic(self, log: Log, seconds: float) -> dict[str, Any]:
        first, last = log.first, log.visible
        empty = {"records": 0, "first_time": None, "last_time": None}
        if first >= last or log.deleted:
            return empty
        began, ended = RecordTimes(log, first, first + 1).at(first), RecordTimes(log, last - 1, last).last
        return {
            "records": await self._counts.between(log, first, last, seconds),
            "first_time": began and time_text(began),
            "last_time": ended and time_text(ended),
        }

    @action(
        "records",
        "Records, by offset.",
        takes={
            "from": Argument("the offset of the first; else the first that is kept", "number"),
            "limit": Argument("so many; 100", "number"),
            "time": f"in place of from, {TIME_HELP}",
            "records_back": Argument(f"the same, {BACK_HELP}", "number"),
            "newest": Argument("the last ones, the newest first; or those of records_back", "flag"),
            "contains": "a text that they have in them; of 100,000 records and 64 MiB at most",
        },
        looks=True,
        answers=MESSAGES,
    )
    async def _records(self, log: Log, arguments: Mapping[str, Any], _: bool) -> dict[str, Any]:
        limit = a_count(arguments, "limit", 100, 1, RECORDS_MAX)
        newest, stop = a_flag(arguments, "newest"), log.visible
        if newest:
            back = a_count(arguments, "records_back", limit, 0, NUMBER_MAX)
            arguments = {**arguments, "records_back": back}
            if back > limit:
                stop = await self._counts.back_from_end(log, back - limit)
        offset = None if "from" in arguments else await self._place(log, arguments)
        if offset is None:
            offset = a_count(arguments, "from", log.first, 0, log.visible)
        rows = MessageRows(limit, a_text(arguments, "contains", ""))
        turn = TaskTurn()
        while rows.left and offset < stop and (data := await read_records(log, offset, READ_BYTES)):
            if turn.over_now():
                await turn.others()
            times = RecordTimes(log, offset, offset + len(data))
            at = 0
            while at < len(data) and rows.left and offset + at < stop:
                length = length_at(data, at)[0]
                body = data[at + LENGTH_BYTES : at + LENGTH_BYTES + length]
                rows.add(offset + at, body, times.at(offset + at))
                at += LENGTH_BYTES + length
            offset += at
        items = rows.items[::-1] if newest else rows.items
        return {"items": items, "next": offset if offset < log.visible else None}

    @changing(
        "trim",
        "Drop what is below an offset, which is a record's start or the end.",
        takes={"offset": Argument("the first that is kept", "number", required=True)},
        answers=("dropped", "first"),
    )
    async def _trim(self, log: Log, arguments: Mapping[str, Any], dry_run: bool) -> dict[str, Any]:
        offset = await self._boundary(log, arguments)
        dropped = max(offset - log.first, 0)
        if not dry_run and dropped:
            await self._broker.store.wait(log.drop_below(offset))
        return {"dropped": dropped, "first": offset if dropped else log.first}

    @CREATE
    async def _create(self, _: Any, arguments: Mapping[str, Any], dry_run: bool) -> dict[str, Any]:
        topics, name = self._broker.topics, topic_untrusted(a_text(arguments, "name").encode())
        own = self._own(arguments, NOTHING_SET)
        try:
            durability = Durability.parse(text) if (text := a_text(arguments, "durability", "")) else None
        except ValueError as error:
            raise BadValue(f"durability: {error}") from None
        if topics.find(name) is not None:
            raise TopicExists(f"name: there is a topic {name} already")
        if not dry_run:
            log, ticket = topics.create(name, durability, user=ASKER.get())
            await self._broker.store.wait(ticket)
            await self._keep(log, own)
        return {"created": 1}

    @CHANGE
    async def _change(self, log: Log, arguments: Mapping[str, Any], dry_run: bool) -> dict[str, Any]:
        before = self._broker.topics.retentions.of(log)
        own = self._own(arguments, before)
        if not dry_run:
            await self._keep(log, own)
        return {"changed": int(own != before)}

    def _own(self, arguments: Mapping[str, Any], before: OwnRetention) -> OwnRetention:
        """What a topic is to keep. Raises BadArgument."""
        own = own_retention(arguments, before)
        require_bucket(own, self._broker.store)
        return own

    async def _keep(self, log: Log, own: OwnRetention) -> None:
        topics = self._broker.topics
        if own != topics.retentions.of(log):
            await self._broker.store.wait(await topics.retain(log, own))

    @changing("messages", "Write a record.", takes=BODY, answers=("published", "offset"))
    async def _publish(self, log: Log, arguments: Mapping[str, Any], dry_run: bool) -> dict[str, Any]:
        body, broker = a_body(arguments), self._broker
        most = broker.settings.message_bytes_max
        if len(body) > most:
            raise BadArgument(f"a message has at most message_bytes_max = {most}")
        records, _ = encode([body])
        if dry_run:
            return {"published": 1, "offset": log.end}
        offset, ticket = log.append(records, 1)
        broker.counts.messages_in += 1
        broker.counts.bytes_in += len(records)
        await broker.store.wait(ticket)
        return {"published": 1, "offset": offset}

    @changing(
        "delete", "Delete it, with its records and what groups have committed.", answers=("deleted", "bytes")
    )
    async def _delete_topic(self, log: Log, _: Mapping[str, Any], dry_run: bool) -> dict[str, Any]:
        kept = log.visible - log.first
        if not dry_run:
            await self._broker.store.wait(self._broker.delete(log))
        return {"deleted": 1, "bytes": kept}

    # Groups.

    def _find_group(self, parts: Sequence[str]) -> tuple[Log, bytes] | None:
        group, topic = parts
        log = self._broker.topics.find(topic)
        key = None if log is None else self._broker.groups.find(group, log)
        return None if log is None or key is None else (log, key)

    def _group(self, found: tuple[Log, bytes]) -> dict[str, Any] | None:
        row = self._committed(found)
        if row is None:
            return None
        shown = attrs.asdict(row)
        behind = shown.pop("behind_bytes")
        return {**shown, "lag_bytes": behind}

    async def _look_at_group(self, found: tuple[Log, bytes], seconds: float) -> dict[str, Any]:
        log, row = found[0], self._committed(found)
        if row is None:
            return {}
        came = None
        if row.behind_bytes:
            at = max(row.offset, log.first)
            came = RecordTimes(log, at, at + 1).at(at)
        return {
            "lag_records": await self._counts.between(log, row.offset, row.end, seconds),
            "lag_seconds": 0.0
            if not row.behind_bytes
            else came and round(max(self._broker.store.clock.wall_ms() - came, 0) / 1000, 3),
        }

    @changing(
        "reset",
        "Set where the group goes on.",
        takes={"offset": OFFSET, "time": TIME_HELP, "records_back": BACK},
        answers=("reset", "before", "offset"),
    )
    async def _reset(
        self, found: tuple[Log, bytes], arguments: Mapping[str, Any], dry_run: bool
    ) -> dict[str, Any]:
        log, _ = found
        row = self._there(found)
        if len(arguments) != 1:
            raise BadValue("give offset, time or records_back")
        offset = await self._place(log, arguments)
        if offset is None:
            offset = await self._boundary(log, arguments)
        if not dry_run:
            self._there(found)
            await self._broker.store.wait(self._broker.groups.commit(row.group, log, offset))
        return {"reset": 1, "before": row.offset, "offset": offset}

    @FORGET
    async def _delete(self, found: tuple[Log, bytes], _: Mapping[str, Any], dry_run: bool) -> dict[str, Any]:
        log, key = found
        exists = self._committed(found) is not None
        if exists and not dry_run:
            await self._broker.store.wait(self._broker.groups.delete(group_of(key), log))
        return {"deleted": int(exists)}

    def _committed(self, found: tuple[Log, bytes]) -> Committed | None:
        log, key = found
        return None if log.deleted else self._broker.groups.read(log, key)

    def _there(self, found: tuple[Log, bytes]) -> Committed:
        """The commit. Raises ObjectMissing."""
        log, key = found
        row = self._committed(found)
        if row is None:
            raise ObjectMissing(f"{group_of(key)} has committed nothing in {log.name}, or that was deleted")
        return row

    async def _place(self, log: Log, arguments: Mapping[str, Any]) -> int | None:
        """The offset at a time, or of some records before the end. Raises BadArgument and StoreError."""
        if "time" in arguments:
            return log.seek(round(_moment(arguments) * 1000))
        if "records_back" in arguments:
            back = a_count(arguments, "records_back", 0, 0, NUMBER_MAX)
            return await self._counts.back_from_end(log, back)
        return None

    async def _boundary(self, log: Log, arguments: Mapping[str, Any]) -> int:
        """A record boundary. Raises BadArgument and StoreError."""
        if "offset" not in arguments:
            raise BadValue("offset is missing")
        offset = a_count(arguments, "offset", 0, log.first, log.visible)
        await require_record_start(log, offset)
        return offset


_TOPIC_VALUES: dict[str, Callable[[Log], Any]] = {
    "name": attrgetter("name"),
    "first": attrgetter("first"),
    "end": attrgetter("visible"),
    "bytes": lambda log: log.visible - log.first,
    "durability": lambda log: str(log.mode),
    "created": lambda log: time_text(log.created_ms),
}


def _moment(arguments: Mapping[str, Any]) -> float:
    """Unix seconds. Raises BadArgument."""
    try:
        moment = datetime.fromisoformat(a_text(arguments, "time"))
        if moment.tzinfo is None or moment.year < 1970:
            raise ValueError
    except ValueError:
        raise BadValue("time is RFC 3339, with its zone: 2026-01-31T12:00:00Z") from None
    return moment.timestamp()
