"""What trials of attacks share: attackers that take no processor from others, and a baseline's quiet."""

import os
import statistics
import time
from collections.abc import Sequence
from pathlib import Path

LOOK_SECONDS = 1.0
TAKEN_MAX = 0.2
"""Processors that other processes take."""
SPREAD_MAX = 1.25
"""Of the rounds without an attack: the largest but one, over the median."""


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
