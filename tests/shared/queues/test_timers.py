"""Timers: what expires does so in time, by whichever clock, and a bug of one item is nobody else's."""

import math
from collections.abc import Callable

import attrs
import pytest
import trio
import trio.testing

from shared.queues.timers import Timers


@attrs.define(eq=False)
class Item:
    timers: Timers
    again: float | None = None
    deadline: float = math.inf
    scheduled: float = math.inf
    expired: list[float] = attrs.Factory(list)

    def expire(self, now: float) -> None:
        self.expired.append(now)
        if self.again is not None:
            self.timers.set(self, now + self.again)


def fails(error: Exception) -> None:
    raise error


CLOCKS: list[tuple[Callable[[], float], Callable[[float], float], float]] = [
    (trio.current_time, lambda deadline: deadline, 1.0),
    (lambda: 500 + int(trio.current_time() * 1000), lambda deadline: (deadline - 500) / 1000, 1000.0),
]


@pytest.mark.parametrize(("now", "loop_time", "second"), CLOCKS, ids=["the loop's", "milliseconds"])
async def test_items_expire_at_their_time_by_the_clock_of_the_broker(
    now: Callable[[], float],
    loop_time: Callable[[float], float],
    second: float,
    autojump_clock: trio.testing.MockClock,
) -> None:
    timers = Timers(now, fails, loop_time)
    item, earlier, gone = Item(timers, again=10 * second), Item(timers), Item(timers)
    start = now()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(timers.run, lambda: None)
        await trio.testing.wait_all_tasks_blocked()
        for one, deadline in ((item, 5), (gone, 1), (earlier, 2)):
            timers.set(one, start + deadline * second)
        timers.forget(gone)
        await trio.sleep(26)
        nursery.cancel_scope.cancel()
    assert [(at - start) / second for at in item.expired] == pytest.approx([5, 15, 25], abs=0.01)
    assert [(at - start) / second for at in earlier.expired] == pytest.approx([2], abs=0.01)
    assert gone.expired == []


async def test_what_one_item_raises_is_told_and_the_others_expire() -> None:
    class Bug(Item):
        def expire(self, now: float) -> None:
            raise ValueError("a bug")

    told: list[Exception] = []
    timers = Timers(lambda: 1.0, told.append)
    items = [Bug(timers), Item(timers)]
    for item in items:
        timers.set(item, 0.5)
    timers.run_due()
    assert [str(error) for error in told] == ["a bug"]
    assert items[1].expired == [1.0]
