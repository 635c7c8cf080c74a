"""What the kill trial and the power trial share: options, a share of the cuts a lane, word of how it goes."""

import argparse
from collections.abc import Callable, Sequence

from tests.trials import outcomes
from tests.trials.adapters import ADAPTERS
from tests.trials.folder import MODES
from tests.trials.tally import Tally

_TOLD_EVERY = 50


def parser(name: str, doc: str | None) -> argparse.ArgumentParser:
    made = outcomes.parser(name, doc)
    made.add_argument("--durability", choices=("all", *MODES), default="all", help="all: every mode")
    made.add_argument("--protocol", choices=("all", *ADAPTERS), default="all", help="all: one after another")
    made.add_argument("--lanes", type=int, default=2, help="servers under trial at once")
    return made


def shared_out(cuts: int, lanes: int) -> Sequence[int]:
    share, rest = divmod(cuts, lanes)
    return [share + (lane < rest) for lane in range(lanes)]


def aloud(run: Callable[[Callable[[Tally], None]], Tally], lane: str, cut: str) -> Tally:
    """Run a lane, which calls what it is given now and then, and say how it goes."""
    told = 0

    def progress(tally: Tally) -> None:
        nonlocal told
        if tally.cuts >= told + _TOLD_EVERY:
            told = tally.cuts
            print(f"  {lane}: {tally.cuts} {cut}, {tally.verdict.kept:,} records kept", flush=True)

    tally = run(progress)
    if tally.verdict.faults:  # told in full at the end; the others go on
        print(f"  {lane}: BROKEN after {tally.cuts}", flush=True)
    return tally
