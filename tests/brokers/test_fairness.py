"""How long the loop was held, and where."""

import inspect
from collections.abc import Callable
from time import sleep, thread_time
from types import FrameType

import attrs
import pytest
import trio
import trio.lowlevel
from structlog.stdlib import get_logger
from structlog.testing import capture_logs

from brokers.host import fairness
from brokers.host.fairness import TOLD_SECONDS, LoopWatch


def hold(seconds: float) -> None:
    ends = thread_time() + seconds
    while thread_time() < ends:
        pass


@pytest.mark.parametrize(("kept", "said"), [(hold, "the loop was held"), (sleep, "the loop did not run")])
async def test_a_long_stretch_of_the_loop_is_known_by_where_it_stood_and_logged(
    kept: Callable[[float], None], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    watch = LoopWatch(get_logger(), ("tests",))
    monkeypatch.setattr(fairness, "TELL_SECONDS", 0.0)

    def step() -> None:
        kept(TOLD_SECONDS * 2)

    with capture_logs() as told:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(watch.run)
            while not any(
                line.get("at", "").startswith(__name__) and line["event"].startswith(said) for line in told
            ):
                await trio.lowlevel.checkpoint()  # a busy machine makes it late elsewhere, too
                step()
            nursery.cancel_scope.cancel()
    values = {sample.name: (sample.value, sample.labels) for sample in watch.samples()}
    seconds, ((label, at),) = values["loop_stretch_seconds_max"]
    assert seconds > TOLD_SECONDS
    assert label == "at"
    assert at in [line.get("at", "") for line in told]
    assert values["loop_stretches_long_total"][0] >= len(told)


def test_the_place_is_in_our_code_and_not_in_a_library() -> None:
    frames: list[FrameType | None] = []

    def check(_: object, __: object, value: object) -> None:
        frames.append(inspect.currentframe())

    made = attrs.make_class("Made", {"field": attrs.field(validator=[check])})  # attrs calls it
    made(1)
    (frame,) = frames
    assert frame is not None
    assert fairness.place_in(frame.f_back, ("tests",)).startswith(f"{__name__}:")
