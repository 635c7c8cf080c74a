"""Charts of objects: what is read becomes steps, means, and a file; damage costs what is behind it."""

import math
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any
from unittest.mock import call, create_autospec

import attrs
import pytest
import structlog
import trio
import trio.testing

from brokers.admin import charts
from brokers.admin.charts import LEVELS, OBJECTS_MAX, STEPS, Charts, ChartStep
from brokers.commands.chart import STEPS_A_BLOCK, charted, charts_of
from brokers.commands.control import AdminClient
from brokers.errors import ExitCode, Failure
from shared.objects import BRIDGES, GROUPS, QUEUES, Objects, key_of

LOG = structlog.stdlib.get_logger("test")


@attrs.define(eq=False)
class Thing:
    name: str
    ready: float | None = 0
    carried: float = 0


async def at_once(work: Callable[..., Any], *arguments: Any) -> Any:
    """In place of a thread: the clock would jump while one works."""
    return work(*arguments)


class World:
    """Objects whose columns are set by hand, and a clock that the test moves."""

    def __init__(self, path: Path, kind: Any = QUEUES) -> None:
        self.things = [Thing("a"), Thing("b")]
        self.later = 1_000_000.0
        self.objects = Objects(
            kind,
            lambda: list(self.things),
            lambda thing: key_of(thing.name),
            lambda parts: next((each for each in self.things if each.name == parts[0]), None),
            lambda thing: {"ready": thing.ready, "in_rate": 0, "carried": thing.carried},
        )
        self.path = path
        self.open()

    def open(self) -> None:
        self.charts = Charts(
            lambda: [("dms", self.objects)],
            self.path,
            LOG,
            lambda: self.later + trio.current_time(),
            at_once,
        )

    async def beat(self, count: int = 1) -> None:
        for _ in range(count):
            await trio.sleep(5)
            await self.charts.read()

    async def line(self, name: str, span: str = "15m", column: str = "ready") -> list[float | None]:
        objects = self.charts.with_history("dms", self.objects)
        (action,) = objects.actions
        found = await action.call(objects.find([name]), {"span": span}, False)
        assert found["seconds"] == LEVELS[span]
        assert len(found["times"]) == len(found["lines"][column][""])
        return list(found["lines"][column][""])


async def test_levels_are_means_of_the_one_below(tmp_path: Path, autojump_clock: Any) -> None:
    world = World(tmp_path / "charts")
    for value in (4, 8):
        world.things[0].ready = value
        await world.beat(12)
    assert await world.line("a") == [4] * 12 + [8] * 12
    assert await world.line("a", "3h") == [4, 8]
    world.things[0].ready = 0
    await world.beat(72)
    assert await world.line("a", "24h") == [1.5]
    assert await world.line("b", "3h") == [0] * 8


async def test_what_grows_is_shown_as_a_rate_and_what_is_not_known_as_nothing(
    tmp_path: Path, autojump_clock: Any
) -> None:
    world = World(tmp_path / "charts", BRIDGES)
    await world.beat()
    world.things[0].carried = 50
    await world.beat()
    world.things[0].carried = 0  # it was started anew
    await world.beat()
    assert await world.line("a", column="carried") == [0, 10, 0]
    assert await world.line("a", column="lag") == [None] * 3


async def test_charts_outlive_the_process_and_damage_costs_what_is_behind_it(
    tmp_path: Path, autojump_clock: Any
) -> None:
    world = World(tmp_path / "charts")

    async def run(beats: int) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(world.charts.run)
            await trio.sleep(5 * beats - 1)
            nursery.cancel_scope.cancel()

    world.things[0].ready = 7
    await run(30)
    data = world.path.read_bytes()
    size = len(next(ChartStep.unpack_all(data[len(charts.MAGIC) :]))[1].pack(0))
    for broken, left in ((None, 30), (11 * size + 20, 11)):
        there = bytearray(data)
        if broken is not None:
            there[len(charts.MAGIC) + broken] ^= 1
        world.path.write_bytes(there)
        world.open()
        await world.charts.load()
        assert await world.line("a") == [7] * left
    world.later += 60
    await world.beat()
    assert (await world.line("a"))[-3:] == [None, None, 7]
    assert world.path.stat().st_mode & 0o777 == 0o600
    world.later += 90_000
    world.open()
    await world.charts.load()
    assert await world.line("a", "24h") == []


async def test_a_file_of_something_else_is_begun_anew(tmp_path: Path, autojump_clock: Any) -> None:
    world = World(tmp_path / "charts")
    world.path.write_bytes(b"x" * 100_000)
    await world.charts.load()
    assert await world.line("a") == []
    with trio.move_on_after(9):
        await world.charts.run()
    assert world.path.read_bytes().startswith(charts.MAGIC)


def test_of_too_many_objects_those_that_do_most_are_kept() -> None:
    step = ChartStep.of(5, {key: [float(key), math.nan] for key in range(1, OBJECTS_MAX + 11)})
    assert step.find(11, 2) == [11, None]
    assert step.find(10, 2) == [None, None]
    ((level, again),) = ChartStep.unpack_all(step.pack(2) + b"more")
    assert (level, again.find(OBJECTS_MAX + 10, 1)) == (2, [OBJECTS_MAX + 10])
    assert STEPS * LEVELS["15m"] == 900


def test_a_command_shows_an_objects_charts_as_figures_and_blocks_and_in_json_whole() -> None:
    history = {
        "seconds": 5.0,
        "times": ["then", "now"],
        "lines": {"lag_bytes": {"": [*[None] * STEPS_A_BLOCK, 7.0, *[0.0] * 3, 1.0, 14.0]}},
    }
    item = {"group": "billing", "topic": "orders", "lag_bytes": 14}
    (row,) = charted(GROUPS, item, history, whole=False)
    assert row == {
        "group": "billing",
        "topic": "orders",
        "chart": "lag_bytes",
        "unit": "B",
        "now": 14.0,
        "least": 0.0,
        "mean": 3.667,
        "most": 14.0,
        "line": " ▅█",
    }
    (row,) = charted(GROUPS, item, history, whole=True)
    assert (row["times"], row["values"]) == (history["times"], history["lines"]["lag_bytes"][""])
    none = {**history, "lines": {"lag_bytes": {"": [None]}}}
    (row,) = charted(GROUPS, item, none, whole=False)
    assert (row["now"], row["most"], row["line"]) == (None, None, " ")


@pytest.mark.parametrize("code", [ExitCode.MISSING, ExitCode.UNAVAILABLE])
def test_a_command_passes_over_what_went_since_it_was_listed(code: ExitCode) -> None:
    history = {"seconds": 5.0, "times": ["now"], "lines": {"lag_bytes": {"": [1.0]}}}
    client = create_autospec(AdminClient, instance=True)
    client.get.side_effect = [Failure("gone", code), history]
    items = [{"group": group, "topic": "orders", "lag_bytes": 1} for group in ("old", "billing")]
    with pytest.raises(Failure) if code != ExitCode.MISSING else nullcontext():
        (row,) = charts_of(client, GROUPS, items, "15m", whole=False)
        assert row["group"] == "billing"
    assert client.get.call_args_list[0] == call("groups", "old", "orders", "history", span="15m")
