"""How long the loop was held, and where."""

from time import perf_counter

import trio
import trio.lowlevel
from structlog.stdlib import get_logger
from structlog.testing import capture_logs

from brokers.fairness import TOLD_SECONDS, LoopWatch


def hold(seconds: float) -> None:
    ends = perf_counter() + seconds
    while perf_counter() < ends:
        pass


async def test_a_long_stretch_of_the_loop_is_known_by_where_it_stood_and_logged() -> None:
    watch = LoopWatch(get_logger())
    place = f"{__name__}:hold"
    with capture_logs() as told:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(watch.run)
            while place not in [line["at"] for line in told]:  # a busy machine makes it late elsewhere, too
                await trio.lowlevel.checkpoint()
                hold(TOLD_SECONDS * 2)
            nursery.cancel_scope.cancel()
    values = {sample.name: (sample.value, sample.labels) for sample in watch.samples()}
    seconds, ((label, at),) = values["loop_stretch_seconds_max"]
    assert seconds > TOLD_SECONDS
    assert label == "at"
    assert at in [line["at"] for line in told]
    assert values["loop_stretches_long_total"][0] >= len(told)
