"""LogMQ's part of a definitions document: topics with durability and own retention, and groups' offsets."""

from collections.abc import Iterator, Sequence

from logmq.actions import RETENTION
from logmq.broker import Broker
from logmq.retentions import NOTHING_SET, as_row, own_retention, require_bucket
from logmq.wire import NUMBER_MAX, name_untrusted, topic_untrusted
from shared.definitions import (
    Conflict,
    DefinitionSection,
    LeftOut,
    Made,
    Promised,
    Row,
    Written,
    name_of,
)
from shared.errors import StoreError
from shared.objects import BadArgument, a_count, a_text
from shared.storage.log import require_record_start
from shared.storage.settings import Durability


def definitions_of(broker: Broker) -> Sequence[DefinitionSection]:
    """Topics and groups of one broker."""
    retentions = broker.topics.retentions

    def topics(_: Written) -> Iterator[Row]:
        for log in list(broker.topics.by_id().values()):
            if not log.deleted:
                yield {"name": log.name, "durability": str(log.mode), **as_row(retentions.of(log))}

    async def make_topic(row: Row, dry_run: bool, _: Promised) -> Made:
        name = topic_untrusted(a_text(row, "name").encode())
        try:
            durability = Durability.parse(a_text(row, "durability", "always"))
        except ValueError as error:
            raise BadArgument(str(error)) from None
        kept = {each: row[each] for each in RETENTION if each in row}
        own = own_retention(kept, NOTHING_SET)
        require_bucket(own, broker.store)
        existing = broker.topics.find(name)
        if existing is not None:
            if "durability" in row and existing.mode != durability:
                raise Conflict(f"its durability is {existing.mode} here")
            here = retentions.of(existing)
            if own_retention(kept, here) != here:
                shown = ", ".join(f"{each} {value}" for each, value in as_row(here).items())
                raise Conflict(f"its own retention is {shown or 'not set'} here")
            return Made(new=False)
        if dry_run:
            return Made(new=True)
        log, ticket = broker.topics.create(name, durability if "durability" in row else None)
        if own != NOTHING_SET:
            ticket = await broker.topics.retain(log, own)
        return Made(new=True, ticket=ticket)

    def groups(_: Written) -> Iterator[Row]:
        for row in broker.groups.each(broker.topics.by_id().get):
            yield {"group": row.group, "topic": row.topic, "offset": row.offset}

    async def make_group(row: Row, dry_run: bool, promised: Promised) -> Made:
        group, topic = a_text(row, "group"), a_text(row, "topic")
        offset = a_count(row, "offset", 0, 0, NUMBER_MAX)
        name_untrusted(group.encode(), "group")
        log = broker.topics.find(topic)
        if log is None and not offset and promised("topics", topic):
            return Made(new=True)
        if log is None or (offset and not log.visible):
            raise LeftOut("its topic has no records here, so it begins where it is told to")
        key = broker.groups.find(group, log)
        committed = None if key is None else broker.groups.read(log, key)
        if committed is not None:
            if committed.offset != offset:
                raise LeftOut(f"it has committed {committed.offset} here, and goes on there")
            return Made(new=False)
        try:
            if not log.first <= offset <= log.visible:
                raise BadArgument("")
            await require_record_start(log, offset)
        except (BadArgument, StoreError):
            raise LeftOut(f"{offset} is no record of its topic here") from None
        return Made(new=True, ticket=None if dry_run else broker.groups.commit(group, log, offset))

    return (
        DefinitionSection(
            "topics",
            ("name", "durability", *RETENTION),
            topics,
            name_of,
            make_topic,
            lambda: ("topics_max", len(broker.topics), broker.topics.topics_max),
        ),
        DefinitionSection(
            "groups",
            ("group", "topic", "offset"),
            groups,
            lambda row: f"{row.get('group', '')}/{row.get('topic', '')}",
            make_group,
            lambda: ("commits_max", len(broker.groups), broker.groups.commits_max),
        ),
    )
