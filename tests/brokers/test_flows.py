"""Rates and ages of objects, made of what came and left: read once a second, in turns."""

from collections.abc import Iterator, Mapping
from typing import Any

import attrs
import structlog

from brokers.admin.flows import Flows
from shared.objects import QUEUES, Objects


@attrs.define(eq=False)
class Counted:
    came: int = 0
    left: int = 0
    held: list[int] = attrs.Factory(list)
    """The numbers of deliveries."""

    def totals(self) -> tuple[int, int, int | None]:
        return self.came, self.left, self.left if self.left < self.came else None


BAD = Objects(QUEUES, lambda: [1], str, lambda _: None, lambda _: None, totals=lambda _: (1 // 0, 0, None))
"""Of a protocol that has a bug, which costs no other its rates."""


@attrs.define
class Watch:
    """Some objects under a clock of the test's."""

    items: list[Counted]
    now: float = 100.0
    flows: Flows = attrs.field(init=False)
    objects: Objects = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.objects = Objects(
            QUEUES,
            lambda: list(self.items),
            str,
            lambda _: None,
            lambda _: {"name": "q"},
            totals=Counted.totals,
            values={"held": lambda found: len(found.held)},
            holders=self.holders,
        )
        self.flows = Flows(
            lambda: [("bad", BAD), ("dms", self.objects)], structlog.get_logger(), lambda: self.now
        )

    def holders(self) -> Iterator[tuple[Any, int, Mapping[Any, int]]]:
        """Each holds what it has been given itself."""
        for each in self.items:
            yield f"holder of {id(each)}", each.left, {each: min(each.held)} if each.held else {}

    async def pass_seconds(self, count: int, came: int = 0, left: int = 0) -> None:
        for _ in range(count):
            self.now += 1
            for each in self.items:
                each.came += came
                each.left += left
            await self.flows.read()

    def row(self) -> Any:
        return self.flows.with_rates(self.objects).row(self.items[0])


async def test_a_rate_is_that_of_the_last_seconds() -> None:
    watch = Watch([Counted()])
    await watch.flows.read()
    await watch.pass_seconds(30, came=7, left=3)
    assert (watch.row()["in_rate"], watch.row()["out_rate"]) == (7, 3)
    await watch.pass_seconds(11)
    assert (watch.row()["in_rate"], watch.row()["out_rate"]) == (0, 0)


async def test_the_oldest_is_as_old_as_the_reading_that_saw_it_first() -> None:
    watch = Watch([])
    await watch.flows.read()
    watch.items.append(Counted())
    await watch.pass_seconds(1)
    assert watch.row()["oldest_seconds"] is None
    await watch.pass_seconds(10, came=1)
    assert watch.row()["oldest_seconds"] == 9
    await watch.pass_seconds(1, left=4)
    assert watch.row()["oldest_seconds"] == 6
    watch.items[0].came += 1
    watch.items[0].left = 10
    assert watch.row()["oldest_seconds"] == 0


async def test_of_what_was_there_before_nobody_knows_the_age() -> None:
    watch = Watch([Counted(5)])
    await watch.flows.read()
    await watch.pass_seconds(3, came=1)
    assert watch.row()["oldest_seconds"] is None
    watch.items[0].left = 6
    assert watch.row()["oldest_seconds"] == 1


async def test_what_is_gone_is_forgotten() -> None:
    watch = Watch([Counted() for _ in range(3)])
    await watch.flows.read()
    gone = watch.items.pop()
    await watch.pass_seconds(10)
    assert watch.flows.with_rates(watch.objects).row(gone)["in_rate"] is None  # type: ignore[index]
    assert watch.row()["in_rate"] == 0


async def test_the_oldest_delivery_is_as_old_as_the_reading_that_saw_it_first() -> None:
    watch = Watch([Counted()])
    await watch.pass_seconds(1)
    assert watch.row()["held_seconds"] is None
    watch.items[0].held = [*range(10)]
    await watch.pass_seconds(10, came=1, left=1)
    assert watch.row()["held_seconds"] == 9
    watch.items[0].held.remove(0)
    del watch.items[0].held[3:]
    await watch.pass_seconds(1)
    assert watch.row()["held_seconds"] == 9, "that of 1, which came a second later"
    watch.items[0].held = [3]
    await watch.pass_seconds(600, came=5, left=5)
    assert watch.row()["held_seconds"] == 607
    watch.items[0].held = []
    assert watch.row()["held_seconds"] is None, "before the next reading"
