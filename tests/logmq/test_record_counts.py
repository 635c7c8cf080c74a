"""How many records stand between two offsets: as many as were written, whatever was counted before."""

import random
from typing import Any

import pytest
import trio

from logmq import record_counts
from logmq.record_counts import RecordCounts
from shared.storage.store import Log
from tests.logmq.world import World, record


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record_counts, "KEPT_ENTRIES", 3)
    monkeypatch.setattr(record_counts, "ENTRIES_AT_ONCE", 4)
    monkeypatch.setattr(record_counts, "STEP_BYTES", 512)


def written(world: World, rounds: int, rng: random.Random) -> tuple[Log, list[int]]:
    """A topic of records and index entries of many sizes; where its records begin, and its end."""
    log = world.broker.topics.writable_untrusted(b"t")
    starts = [0]
    for _ in range(rounds):
        for _ in range(rng.randrange(1, 9)):
            data = record(bytes(rng.choice([0, 1, 100, 5000])))
            log.append(data, 1)
            starts.append(starts[-1] + len(data))
        world.commit()
        if rng.random() < 0.7:
            world.clock.advance(1)
    return log, starts


def test_any_part_is_counted_and_found_from_its_end_before_and_after_a_trim_and_a_restart() -> None:
    rng = random.Random(7)
    world = World()
    log, starts = written(world, 60, rng)
    counts = RecordCounts(world.broker.topics)

    async def check(first: int) -> None:
        for _ in range(200):
            begin, end = sorted(rng.sample(range(first, len(starts)), 2))
            assert await counts.between(log, starts[begin], starts[end], 60) == end - begin
        for _ in range(100):
            back = rng.randrange(len(starts) - first + 3)
            place = max(len(starts) - 1 - back, first)
            assert await counts.back_from_end(log, back) == starts[place]

    trio.run(check, 0)
    first = len(starts) // 3
    log.drop_below(starts[first])
    world.commit()
    trio.run(check, first)
    trio.run(world.store.checkpoint)
    world.restart()
    log, counts = world.log("t"), RecordCounts(world.broker.topics)
    trio.run(check, first)


def test_where_time_is_too_short_the_count_goes_on_with_the_next_question(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, starts = written(world, 60, random.Random(1))
    counts = RecordCounts(world.broker.topics)
    now = 0.0

    def thread_time() -> float:
        nonlocal now
        now += 0.01
        return now

    monkeypatch.setattr(record_counts, "thread_time", thread_time)

    async def ask() -> list[Any]:
        return [await counts.between(log, 0, log.visible, 0.035) for _ in range(30)]

    found = trio.run(ask)
    assert found[0] is None
    assert found[-1] == len(starts) - 1
