"""Lanes: one process each, side by side, that clean up after themselves whatever ends the trial."""

import signal
from collections.abc import Callable, Sequence
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import Any, TypeVar

Plan = TypeVar("Plan")
Result = TypeVar("Result")

_CLEAN_UP_SECONDS = 30.0


class LaneError(Exception):
    """A lane ended without a result; it has said why on standard error."""


def run_lanes(work: Callable[[Plan], Result], plans: Sequence[Plan]) -> list[Result]:
    """The results of `work` for each plan, in order. Ctrl-C and SIGTERM end the lanes in order too."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    context = get_context("spawn")
    lanes = []
    try:
        for plan in plans:
            ours, theirs = context.Pipe(duplex=False)
            process = context.Process(target=_lane, args=(work, plan, theirs))
            process.start()
            theirs.close()
            lanes.append((process, ours))
        results = []
        for _, ours in lanes:
            try:
                results.append(ours.recv())
            except EOFError:
                raise LaneError("a lane ended before its time") from None
        return results
    finally:
        for process, _ in lanes:
            process.terminate()  # one that has given its result is ending anyhow
        for process, _ in lanes:
            process.join(_CLEAN_UP_SECONDS)


def _lane(work: Callable[[Any], Any], plan: Any, result: "Connection[Any, Any]") -> None:
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _end)
    try:
        result.send(work(plan))
        _hear_no_more()  # it is ending anyhow: what asks for that must not interrupt it
    except KeyboardInterrupt:
        pass


def _heard(number: int, frame: object) -> None:
    """It is ending."""


def _end(number: int, frame: object) -> None:
    """The first signal unwinds what was begun; the next must not interrupt that."""
    _hear_no_more()
    raise KeyboardInterrupt


def _hear_no_more() -> None:
    for each in (signal.SIGINT, signal.SIGTERM):
        signal.signal(each, _heard)
