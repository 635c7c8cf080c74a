"""Committed offsets: kept apart by group and by a topic's life."""

from typing import Any, cast

from logmq.groups import Committed, Groups
from tests.logmq.fakes import FakeTicket, World


def world_with_commits() -> World:
    world = World()
    peer = world.connect()
    peer.ask(b"PRODUCE t one\nPRODUCE t two\nPRODUCE u one\nCOMMIT g t 7\nCOMMIT h t 14\nCOMMIT g u 0\n")
    return world


def reopened(world: World) -> Groups:
    return Groups(cast(Any, world.group_table), 100)


def test_all_commits_are_listed_by_topic_and_group() -> None:
    world = world_with_commits()
    rows = list(world.broker.groups.all(world.broker.topics.by_id().get))
    assert rows == [Committed("g", "t", 7, 14), Committed("h", "t", 14, 14), Committed("g", "u", 0, 7)]
    assert [row.behind_bytes for row in rows] == [7, 0, 7]


def test_commits_are_there_after_a_restart() -> None:
    world = world_with_commits()
    groups = reopened(world)
    assert len(groups) == 3
    assert groups.committed("h", cast(Any, world.log("t"))) == (14, None)


def test_a_start_keeps_commits_of_a_topic_that_is_not_there_and_was_not_deleted() -> None:
    world = world_with_commits()
    log = world.namespace.logs.pop("t")
    groups = reopened(world)
    assert groups.repair(world.broker.topics.by_id().get) == (2, [])
    assert len(groups) == 3
    world.namespace.logs["t"] = log  # from a backup
    assert groups.committed("h", cast(Any, log)) == (14, None)


def test_a_start_drops_commits_of_a_topic_whose_deletion_a_crash_cut_short() -> None:
    world = world_with_commits()
    log = world.namespace.logs.pop("t")
    rows = world.group_table
    world.broker.groups.grave(log.id)  # which is all that came after the end of the log
    groups = reopened(world)
    assert list(groups.graves) == [log.id]
    groups.forget(log.id, lambda: groups.close_grave(log.id))
    assert len(groups) == len(rows.rows) == 1
    assert groups.repair(world.broker.topics.by_id().get) == (0, [])
    assert not groups.graves


def test_a_start_brings_back_commits_past_the_end_of_a_log_that_lost_a_suffix() -> None:
    world = world_with_commits()
    log = world.log("t")
    del log.data[7:]
    log.visible = 7
    groups = reopened(world)
    assert groups.repair(world.broker.topics.by_id().get) == (0, [Committed("h", "t", 14, 7)])
    assert groups.committed("h", cast(Any, log)) is not None
    world.store.commit_pending()
    assert groups.committed("h", cast(Any, log)) == (7, None)
    assert groups.committed("g", cast(Any, log)) == (7, None)


def test_a_newer_commit_is_not_durable_because_an_older_one_is() -> None:
    world = world_with_commits()
    log, groups = cast(Any, world.log("t")), world.broker.groups
    older, newer = FakeTicket(), FakeTicket()
    for offset, ticket in ((7, older), (14, newer)):
        world.group_table.log.store._tickets["always"] = ticket
        groups.commit("new", log, offset)
    older.resolve()
    assert groups.committed("new", log) == (14, newer)
    newer.resolve()
    assert groups.committed("new", log) == (14, None)
