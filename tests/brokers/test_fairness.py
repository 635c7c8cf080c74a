"""How long one task held the loop."""

import pytest
import trio
from structlog.stdlib import get_logger
from structlog.testing import capture_logs

from brokers.fairness import LONG_SECONDS, TOLD_SECONDS, LoopWatch


def test_the_longest_stretch_of_serving_is_known_by_its_task_and_a_very_long_one_is_logged() -> None:
    now = 0.0
    watch = LoopWatch(get_logger(), clock=lambda: now)

    async def hold(seconds: float) -> None:
        nonlocal now
        await trio.lowlevel.checkpoint()
        now += seconds

    async def serve() -> None:
        await hold(TOLD_SECONDS * 2)
        await trio.lowlevel.checkpoint()
        watch.begin()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(hold, LONG_SECONDS * 2, name="logmq: connections")
            nursery.start_soon(hold, TOLD_SECONDS * 3, name="dms: connections")
            nursery.start_soon(hold, 0.0, name="pubsub: connections")

    with capture_logs() as told:
        trio.run(serve, instruments=[watch])
    assert [line["task"] for line in told] == ["dms: connections"]
    values = {sample.name: (sample.value, sample.labels) for sample in watch.samples()}
    seconds, labels = values["loop_stretch_seconds_max"]
    assert seconds == pytest.approx(TOLD_SECONDS * 3)
    assert labels == (("task", "dms: connections"),)
    assert values["loop_stretches_long_total"][0] == 2
