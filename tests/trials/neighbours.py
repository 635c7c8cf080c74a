"""`make trial-neighbours`: what four clients of DMS that behave badly cost 252 others.

One vanishes amid frames, one asks and never reads, one sends a byte a second, and one just fills the last
place. The good clients are measured alone, and then beside them, who are a process of their own. A round is a
server of its own. What is judged is the median of the rounds' ratios of p99: from one minute to the next a
machine's p99 drifts by a third, within a round by less. Where the rounds alone are far from each other the
machine is too busy to judge: exit 2.
"""

import argparse
import contextlib
import itertools
import os
import socket
import statistics
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from multiprocessing import get_context
from multiprocessing.synchronize import Event
from pathlib import Path

from brokers.bench.dms import QUEUE, dms_talk, make_queues
from brokers.bench.load import Measured, run
from shared.process_limits import raise_file_limit
from tests.support import dms_spec as spec
from tests.support.dms_spec import SpecClient
from tests.support.server import counter, until
from tests.trials import outcomes
from tests.trials.serving import TrialServer

Address = tuple[str, int]

SETTLE_SECONDS = 1.0
"""Until bad peers hold what they hold; and a process's first requests cost more than those after them."""
LOOK_SECONDS = 1.0
TAKEN_MAX = 0.2
"""Processors that other processes take."""
SPREAD_MAX = 1.25
"""Of the rounds alone: the largest but one, over the median."""
TOO_BUSY = 2
"""An exit code."""
RATIO_MAX = 2.0
"""Of the p99 beside bad peers over that alone."""
_GOOD = 252
_RESET = b"\1\0\0\0\0\0\0\0"
"""SO_LINGER: closing resets."""


def _be_bad(address: Address, begun: Event, over: Event) -> None:
    """Each in a thread."""
    begun.set()
    whole = spec.frame(spec.PRODUCE, 1, spec.name(QUEUE) + b"x" * 100)

    def vanish() -> None:
        for number in itertools.count():
            if over.wait(0.05):
                return
            with contextlib.suppress(ValueError), SpecClient(address) as client:
                # Refused where the server has not yet noticed that the last one has gone.
                client.send(whole[: 1 + number * 7 % (len(whole) - 1)])
                if number % 2:
                    client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)

    def never_read() -> None:
        asking = spec.frame(spec.LIST, 1) * 500
        with SpecClient(address) as client:
            client.socket.settimeout(0.1)
            while not over.is_set():
                with contextlib.suppress(TimeoutError):
                    client.socket.send(asking)

    def trickle() -> None:
        with SpecClient(address) as client:
            for byte in whole:
                client.send(bytes([byte]))
                if over.wait(1.0):
                    return

    with SpecClient(address):
        threads = [threading.Thread(target=bad) for bad in (vanish, never_read, trickle)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()


def a_round(place: Path, seconds: float) -> tuple[Measured, Measured]:
    """What was measured of the good clients, alone and beside the bad ones."""
    data = place / "data"
    data.mkdir(parents=True)
    (place / "brokers.toml").write_text("[dms]\ndepth = 1000000\n")
    words = ("--config", str(place / "brokers.toml"), "--log-level", "error")
    with TrialServer(place, data, "--enable", "dms", *words) as server:
        address = server.address("dms")
        make_queues(address, [QUEUE, *(f"{number}".ljust(60, "-") for number in range(100))])

        def measured(seconds: float) -> Measured:
            return run(address, [dms_talk(100, 1) for _ in range(_GOOD)], seconds)

        def all_gone() -> None:
            until(lambda: counter(data, 'connections{protocol="dms"}') == 0)

        measured(SETTLE_SECONDS)
        all_gone()
        alone = measured(seconds)
        all_gone()
        with beside(address):
            return alone, measured(seconds)


@contextmanager
def beside(address: Address) -> Iterator[None]:
    """Bad peers in a process of their own. Raises AssertionError where it has ended before it is told to."""
    context = get_context("spawn")
    begun, over = context.Event(), context.Event()
    process = context.Process(target=_be_bad, args=(address, begun, over))
    process.start()
    try:
        begun.wait()
        time.sleep(SETTLE_SECONDS)
        yield
        assert process.is_alive(), "the bad peers have ended"
    finally:
        over.set()
        process.join()


def too_busy(p99s_us: Sequence[float]) -> str:
    """Why rounds that were measured alone are no baseline; "" where they are one."""
    middle, ordered = statistics.median(p99s_us), sorted(p99s_us)
    others = processors_taken()
    if others < TAKEN_MAX and (len(ordered) < 3 or ordered[-2] <= SPREAD_MAX * middle):
        return ""
    return (
        f"the machine is too busy to judge: other processes take {others:.1f} processors, and alone the p99 "
        f"is {ordered[0] / 1000:.2f} to {ordered[-1] / 1000:.2f} ms; end them, and try again"
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


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.trials.neighbours", description=__doc__)
    parser.add_argument("--seconds", type=float, default=5.0, help="of each measurement")
    parser.add_argument("--rounds", type=int, default=3, help="alone and beside them")
    given = parser.parse_args(arguments)
    raise_file_limit()
    with outcomes.passing_place("neighbours") as place:
        rounds = [a_round(place / str(number), given.seconds) for number in range(given.rounds)]
    ratio = statistics.median(bad.p99_us / alone.p99_us for alone, bad in rounds)
    for name, found in zip(("alone", "beside four that are bad"), zip(*rounds, strict=True), strict=True):
        p99 = statistics.median(one.p99_us for one in found) / 1000
        median = statistics.median(one.median_us for one in found) / 1000
        print(f"p99 {p99:.2f} ms, median {median:.2f} ms  {name}")
    print(f"{ratio:.2f} times")
    if why := too_busy([alone.p99_us for alone, _ in rounds]):
        print(why)
        return TOO_BUSY
    return outcomes.told([f"{RATIO_MAX:g} times are promised"] if ratio > RATIO_MAX else [])


if __name__ == "__main__":
    sys.exit(main())
