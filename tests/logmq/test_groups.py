"""Committed offsets: kept apart by group and by a topic's life."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from operator import attrgetter
from typing import Self

import attrs
import pytest
import trio
import trio.testing
from trio.testing import MockClock

from logmq.groups import Committed
from logmq.listener import LogmqService, open_broker
from logmq.metrics import LAGS_SHOWN
from logmq.settings import LogmqSettings
from shared.plugin import Context
from shared.storage.store import Log, Ticket
from tests.logmq.world import LOG, Peer, World, record
from tests.support.fake_disk import FakeDisk
from tests.support.stores import ALWAYS, HandClock, open_store, running


@pytest.fixture
def world() -> World:
    world = World()
    peer = world.connect()
    peer.ask(b"PRODUCE t one\nPRODUCE t two\nPRODUCE u one\nCOMMIT g t 7\nCOMMIT h t 14\nCOMMIT g u 0\n")
    return world


def test_all_commits_are_listed_by_topic_and_group(world: World) -> None:
    rows = sorted(world.broker.groups.each(world.broker.topics.by_id().get), key=attrgetter("topic", "group"))
    assert rows == [
        Committed("g", "t", 7, 14, 7),
        Committed("h", "t", 14, 14, 0),
        Committed("g", "u", 0, 7, 7),
    ]


def test_a_group_is_behind_by_what_is_kept_and_not_by_what_was_dropped(world: World) -> None:
    world.log("u").drop_below(7)
    world.connect().ask(b"PRODUCE u second\n")
    groups, by_id = world.broker.groups, world.broker.topics.by_id().get
    assert Committed("g", "u", 0, 17, 10) in groups.each(by_id)
    assert {row.behind_bytes for row in groups.each(by_id)} == {7, 0, 10}
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


def test_a_commit_that_damage_may_have_taken_is_not_answered_as_none(world: World) -> None:
    world.damage("groups", namespace="logmq-tables")
    world.restart()
    peer = world.connect()
    refused = b"ERR STORAGE the commits are damaged: whether group g has committed anything of t is not known"
    assert peer.ask(b"COMMITTED g t\n").startswith(refused)
    assert peer.ask(b"COMMIT g t 7\nCOMMITTED g t\n") == b"OK 7\nOK 7\n"


@attrs.define(eq=False)
class Served:
    """A broker that runs, with a topic of two records."""

    service: LogmqService
    clock: HandClock
    log: Log

    @classmethod
    @asynccontextmanager
    async def running(cls) -> AsyncIterator[Self]:
        clock = HandClock()
        store = await open_store(FakeDisk(), clock=clock)
        broker = await open_broker(Context(store, LOG), LogmqSettings(group_seconds=100))
        log, _ = broker.topics.create("t")
        here = cls(LogmqService(broker), clock, log)
        here.write()
        here.write()
        async with running(store), trio.open_nursery() as nursery:
            nursery.start_soon(here.service.run)
            yield here
            nursery.cancel_scope.cancel()

    def write(self) -> None:
        self.log.append(record(b"one"), 1)
        self.service.broker.store.commit_pending()

    def commit(self, group: str, offset: int) -> None:
        self.service.broker.groups.commit(group, self.log, offset)
        self.service.broker.store.commit_pending()

    async def later(self, seconds: float) -> list[str]:
        """The groups that have a commit after so long."""
        self.clock.wall += round(seconds * 1000)
        await trio.sleep(seconds)
        rows = self.service.broker.groups.each({self.log.id: self.log}.get)
        return sorted(row.group for row in rows)


async def test_the_commit_of_a_group_expires_that_has_records_to_read_and_commits_nothing(
    autojump_clock: MockClock,
) -> None:
    async with Served.running() as here:
        here.commit("behind", 7)
        here.commit("finished", 14)
        here.commit("slow", 0)
        assert await here.later(60) == ["behind", "finished", "slow"]
        here.commit("slow", 7)
        assert await here.later(60) == ["finished", "slow"], (
            "one has read everything, one has committed since"
        )
        here.write()
        assert "finished" in await here.later(60), "it has something to read since 60 s only"
        assert await here.later(300) == []
        assert here.service.broker.counts.commits_expired == 3


async def test_a_clock_that_was_set_expires_no_commit(autojump_clock: MockClock) -> None:
    async with Served.running() as here:
        here.commit("behind", 7)
        here.clock.wall += 365 * 24 * 3_600_000
        assert await here.later(1000) == ["behind"]


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
    world.broker.topics.delete(log, groups.tombstone(log.id))
    world.commit()
    world.restart()
    for _ in range(2):
        assert len(world.broker.groups) == 1
        assert not world.broker.groups.tombstones
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
