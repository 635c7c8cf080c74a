"""The scrub, where logs have nothing to be read."""

import itertools
from typing import Any

import pytest
import trio
import trio.testing

from shared.storage.log import Tails
from shared.storage.scrub import Scrub
from shared.turns import CLOCK


class Empty:
    """A log that has no records."""

    first = visible = 0
    deleted = False


class Logs:
    """So many that have no records."""

    def all_logs(self) -> list[Any]:
        return [Empty()] * 2000


class Steps(trio.abc.Instrument):
    count = 0

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self.count += task.name == "the scrub"


async def test_very_many_logs_without_anything_to_read_are_passed_over_in_turns(
    autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(CLOCK, "now", itertools.count().__next__)  # each look at the clock ends a turn
    nothing: Any = None
    tails = Tails(0, 0)
    logs: Any = Logs()
    scrub, steps = Scrub(logs, nothing, nothing, nothing, tails, 1 << 20, nothing), Steps()
    trio.lowlevel.add_instrument(steps)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(scrub.run, name="the scrub")
        await trio.sleep(10.5)
        assert scrub.rounds == 1
        assert steps.count > 10
        nursery.cancel_scope.cancel()
