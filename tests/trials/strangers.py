"""What trials of strangers share: clients that are asked, strangers beside them, and what those may cost.

Clients of a protocol are asked in rounds without and with the strangers, who are a process of their own. What
is judged is the median of the rounds' ratios: from one minute to the next a machine's p99 drifts by a third,
within a round by less. Where the rounds without strangers are far from each other the machine is too busy to
judge.
"""

import os
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing import get_context
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any

from brokers.bench.load import Measured, Talk, lines, run
from tests.trials import outcomes

Address = tuple[str, int]

RATIO_MAX = 1.10
"""Of the p99 with strangers over that without."""
LOOK_SECONDS = 1.0
TAKEN_MAX = 0.2
"""Processors that other processes take."""
SPREAD_MAX = 1.25
"""Of the rounds without an attack: the largest but one, over the median."""
TOO_BUSY = 2
"""An exit code."""


def ask(address: Address, requests: Sequence[bytes], seconds: float) -> Measured:
    """Each on a connection of its own, again and again, one at a time."""
    return run(address, [Talk(request.__mul__, lines()) for request in requests], seconds)


@contextmanager
def beside(strangers: Callable[..., Any], *arguments: Any) -> Iterator[Callable[[], Any]]:
    """`strangers(begun, over, *arguments)` in a process of its own, which has set the first of these events.

    It returns when the second is set. What is given sets it, and returns what it returned. Raises
    AssertionError where it has ended before.
    """
    context = get_context("spawn")
    begun, over = context.Event(), context.Event()
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_be_strangers, args=(theirs, strangers, begun, over, *arguments))
    process.start()
    theirs.close()

    def end() -> Any:
        alive = process.is_alive()
        over.set()
        assert alive, "the strangers have ended"
        return ours.recv()

    try:
        while not begun.wait(0.1):
            assert process.is_alive(), "the strangers have ended"
        yield end
    finally:
        over.set()
        process.join()


def _be_strangers(
    result: "Connection[Any, Any]", strangers: Callable[..., Any], begun: Event, over: Event, *arguments: Any
) -> None:
    result.send(strangers(begun, over, *arguments))


def median_ratio(beside_us: Sequence[float], alone_us: Sequence[float]) -> float:
    return statistics.median(with_ / alone for with_, alone in zip(beside_us, alone_us, strict=True))


def judged(ratio: float, alone_us: Sequence[float]) -> int:
    """The exit code, by the largest of the ratios; what it means is said."""
    if why := too_busy(alone_us):
        print(why)
        return TOO_BUSY
    return outcomes.told([f"{RATIO_MAX:g} times are promised"] if ratio > RATIO_MAX else [])


def too_busy(p99s_us: Sequence[float]) -> str:
    """Why rounds that were measured without an attack are no baseline; "" where they are one."""
    middle, ordered = statistics.median(p99s_us), sorted(p99s_us)
    others = processors_taken()
    if others < TAKEN_MAX and (len(ordered) < 3 or ordered[-2] <= SPREAD_MAX * middle):
        return ""
    return (
        f"the machine is too busy to judge: other processes take {others:.1f} processors, and without an "
        f"attack the p99 is {ordered[0] / 1000:.2f} to {ordered[-1] / 1000:.2f} ms; end them, and try again"
    )


def processors_taken() -> float:
    """By whatever runs, in the mean over a second; for a time when nothing of the trial does."""

    def taken() -> float:
        line = Path("/proc/stat").read_text().splitlines()[0]
        user, nice, system, _, _, irq, soft, *_ = (int(ticks) for ticks in line.split()[1:])
        return (user + nice + system + irq + soft) / os.sysconf("SC_CLK_TCK")

    before, began = taken(), time.monotonic()
    time.sleep(LOOK_SECONDS)
    return (taken() - before) / (time.monotonic() - began)


def stand_aside() -> None:
    """Run this process only while no other wants the processor.

    With the lowest priority alone (nice 19) it still raises the others' p99 by half. Raises OSError where the
    system forbids it.
    """
    os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
