"""Committed offsets: kept apart by group and by a topic's life."""

import pytest
import trio
import trio.testing

from logmq.groups import Committed
from logmq.listener import LogmqService
from logmq.metrics import LAGS_SHOWN
from shared.storage.store import Ticket
from tests.logmq.world import Peer, World, record
from tests.support.stores import ALWAYS


@pytest.fixture
def world() -> World:
    world = World()
    peer = world.connect()
    peer.ask(b"PRODUCE t one\nPRODUCE t two\nPRODUCE u one\nCOMMIT g t 7\nCOMMIT h t 14\nCOMMIT g u 0\n")
    return world


def test_all_commits_are_listed_by_topic_and_group(world: World) -> None:
    rows = list(world.broker.groups.all(world.broker.topics.by_id().get))
    assert rows == [
        Committed("g", "t", 7, 14, 7),
        Committed("h", "t", 14, 14, 0),
        Committed("g", "u", 0, 7, 7),
    ]


def test_a_group_is_behind_by_what_is_kept_and_not_by_what_was_dropped(world: World) -> None:
    world.log("u").drop_below(7)
    world.connect().ask(b"PRODUCE u second\n")
    groups, by_id = world.broker.groups, world.broker.topics.by_id().get
    assert list(groups.all(by_id))[-1] == Committed("g", "u", 0, 17, 10)
    assert {row.behind_bytes for part in groups.in_parts(by_id) for row in part} == {7, 0, 10}
    _, listed = LogmqService(world.broker).objects
    rows = [listed.row(found) for found in listed.items()]
    assert {"group": "g", "topic": "u", "offset": 0, "end": 17, "lag_bytes": 10} in rows


def test_the_groups_that_are_farthest_behind_are_metrics(world: World, peer: Peer) -> None:
    for number in range(LAGS_SHOWN):
        peer.ask(f"COMMIT g{number} t 7\n".encode())
    service = LogmqService(world.broker)

    async def look() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(service.run)
            await trio.testing.wait_all_tasks_blocked()
            nursery.cancel_scope.cancel()

    trio.run(look)
    lags = [sample for sample in service.samples() if sample.name == "logmq_group_lag_bytes"]
    assert len(lags) == LAGS_SHOWN
    assert {sample.value for sample in lags} == {7}
    assert all(dict(sample.labels).keys() == {"group", "topic"} for sample in lags)


def test_commits_are_there_after_a_restart(world: World) -> None:
    world.restart()
    assert len(world.broker.groups) == 3
    assert world.broker.groups.committed("h", world.log("t")) == (14, None)


def test_a_start_keeps_commits_of_a_topic_that_is_not_there_and_was_not_deleted(world: World) -> None:
    world.store.namespace("logmq", ALWAYS).delete("t")  # nothing says that LogMQ did it
    world.commit()
    world.restart()
    assert len(world.broker.groups) == 3


def test_a_start_drops_commits_of_a_topic_whose_deletion_a_crash_cut_short(world: World) -> None:
    log, groups = world.log("t"), world.broker.groups
    world.broker.topics.delete(log, groups.grave(log.id))
    world.commit()
    world.restart()
    for _ in range(2):
        assert len(world.broker.groups) == 1
        assert not world.broker.groups.graves
        world.restart()


def test_a_start_brings_back_commits_past_the_end_of_a_log_that_lost_a_suffix(world: World) -> None:
    world.broker.groups.commit("h", world.log("t"), 21)
    world.commit()
    for _ in range(2):
        world.restart()
        assert world.broker.groups.committed("h", world.log("t")) == (14, None)
        assert world.broker.groups.committed("g", world.log("t")) == (7, None)


def test_a_newer_commit_is_not_durable_because_an_older_one_is(world: World) -> None:
    log, groups = world.log("t"), world.broker.groups
    newer: list[Ticket] = []
    _, ticket = log.append(record(b"three"), 1)
    ticket.when_done(lambda _: newer.append(groups.commit("new", log, 14)))
    assert groups.commit("new", log, 7) is ticket
    ticket.when_done(lambda _: seen.append(groups.committed("new", log)))
    seen: list[object] = []
    world.commit()
    assert seen == [(14, newer[0])]
    world.commit()
    assert groups.committed("new", log) == (14, None)
