"""Turns, and long work that goes on over several."""

import math
from collections.abc import Iterator

import pytest
import trio
import trio.lowlevel

from shared import turns
from shared.queues.timers import Timers
from shared.task_turns import TaskTurn
from shared.turns import ITEMS, TURN_SECONDS, LongWork, Turn, batched, taken_out
from tests.support.turns import short_turns


class Bench:
    """Long work under timers whose clock stands at 0."""

    def __init__(self) -> None:
        self.crashes: list[Exception] = []
        self.done: list[str] = []
        self.timers = Timers(lambda: 0.0, self.crashes.append)
        self.work = LongWork(self.timers.set_now, self.crashes.append)

    def steps(self, name: str, count: int) -> Iterator[None]:
        for _ in range(count):
            self.done.append(name)
            yield

    def next_turn(self) -> None:
        self.work.expire(0)


def test_a_turn_is_over_by_the_clock_at_a_look_every_items(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 5.0
    monkeypatch.setattr(turns.CLOCK, "now", lambda: now)
    turn = Turn()
    assert not any(turn.over() for _ in range(10 * ITEMS))
    now += TURN_SECONDS
    assert turn.over_now()
    assert [turn.over() for _ in range(ITEMS)] == [False] * (ITEMS - 1) + [True]
    turn.begin()
    assert not turn.over_now()


def test_small_work_is_done_by_whoever_adds_it() -> None:
    bench = Bench()
    bench.work.add(bench.steps("a", 1))
    assert (bench.done, bench.work.busy, bench.timers.next) == (["a"], False, math.inf)


def test_work_goes_on_until_its_turn_is_over_and_then_in_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    short_turns(monkeypatch, 3)
    bench = Bench()
    bench.work.add(bench.steps("a", 4))
    bench.work.add(bench.steps("b", 1))
    assert bench.done == ["a"] * 3
    assert bench.timers.next == 0
    bench.next_turn()
    assert (bench.done, bench.work.busy) == ([*"aaaab"], True)
    bench.next_turn()
    assert not bench.work.busy


def test_a_bug_in_one_piece_of_work_is_told_and_the_others_are_done() -> None:
    def fails() -> Iterator[None]:
        yield
        raise ZeroDivisionError

    bench = Bench()
    bench.work.add(fails())
    bench.work.add(bench.steps("a", 1))
    assert [type(error) for error in bench.crashes] == [ZeroDivisionError]
    assert (bench.done, bench.work.busy) == (["a"], False)


def test_items_come_in_lists_and_are_taken_when_they_are_asked_for() -> None:
    left = list(range(2 * ITEMS + 1))
    lists = taken_out(left.pop, left)
    assert next(lists) == list(range(2 * ITEMS, ITEMS, -1))
    assert len(left) == ITEMS + 1
    assert [len(batch) for batch in lists] == [ITEMS, 1]
    assert list(batched(range(ITEMS + 1))) == [list(range(ITEMS)), [ITEMS]]


async def test_other_tasks_run_once_the_turn_of_a_task_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    short_turns(monkeypatch, 1, 2)
    seen: list[int] = []

    async def counts() -> None:
        turn = TaskTurn()
        for number in range(6):
            seen.append(number)
            await turn.item()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(counts)
        await trio.lowlevel.checkpoint()
        for so_far in (2, 4, 6):
            assert len(seen) <= so_far
            await trio.lowlevel.checkpoint()
    assert seen == [*range(6)]
