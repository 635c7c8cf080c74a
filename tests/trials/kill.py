"""`make trial-kill`: SIGKILL of the real server at random instants under load, and while it recovers.

`kill -9` does not test syncing (the page cache outlives the process; that is `power`'s part). It tests that
whatever the process was in the middle of is made whole: batches half applied, checkpoints, segments that go
round, topics being made and deleted, recoveries cut short by the next kill.
"""

import random
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import attrs

from tests.trials import cuts, outcomes
from tests.trials.adapters import adapter_on, chosen
from tests.trials.folder import MODES, BrokenPromiseError, Folder, keep_as_it_was
from tests.trials.lanes import run_lanes
from tests.trials.tally import Tally

_KILLS_PER_FOLDER = 25
_RECOVERY_SECONDS = 0.15
"""A recovery of these folders takes less: kills that long after the lock was taken hit all of it."""


@attrs.frozen
class Plan:
    """What one lane is to do."""

    kills: int
    seed: str
    modes: Sequence[str]
    folder: Path
    bug: str = ""
    """That the server has (planted.py)."""
    load: float = 1.0
    """How long the load lasts each time, as a factor."""
    least: int = 0
    """Records that are acknowledged before a kill, at least."""
    works: Sequence[str] = ("logmq",)
    """The protocols under load: a data folder after another, each with one."""
    keep: bool = True
    """Copy the data folder before each recovery, to have it if that one fails."""


def run_lane(plan: Plan, progress: Callable[[Tally], None] = lambda tally: None) -> Tally:
    """So many kills, on a fresh folder every now and then; the first broken promise ends it.

    The faults are in the tally; the folder that they were found in is left.
    """
    tally = Tally()
    source = random.Random(plan.seed)
    number = 0
    while tally.cuts < plan.kills and not tally.verdict.faults:
        number += 1
        place = plan.folder / f"{plan.seed.replace('/', '-')}-{number}"
        place.mkdir(parents=True)
        protocol = plan.works[number % len(plan.works)]
        adapter = adapter_on(
            protocol, plan.modes, source, place, place / "data", bug=plan.bug, load_factor=plan.load
        )
        folder = Folder(adapter, tally, least=plan.least)
        until = min(plan.kills, tally.cuts + _KILLS_PER_FOLDER)
        try:
            _kill_and_recover(folder, until, plan.keep, progress)
        except BrokenPromiseError as error:
            tally.verdict.faults.append(f"seed {plan.seed}, {place}:\n{error}")
        finally:
            if folder.server.alive:
                folder.server.kill()
        if not tally.verdict.faults:
            shutil.rmtree(place)
    return tally


def _kill_and_recover(folder: Folder, until: int, keep: bool, progress: Callable[[Tally], None]) -> None:
    source, tally, server = folder.source, folder.tally, folder.server
    folder.recover()
    while tally.cuts < until:
        if source.random() < 0.05:
            folder.stop_under_load()
        else:
            folder.kill_under_load()
        if keep:
            keep_as_it_was(server.data, server.folder / "before")
        while tally.cuts < until and source.random() < 0.3:
            seconds = source.uniform(0, _RECOVERY_SECONDS)
            folder.kill_in_start(seconds, after_lock=source.random() < 0.9)
        snapshot = folder.recover().snapshot
        if tally.cuts < until and source.random() < 0.1:
            server.kill()
            tally.cuts += 1
            folder.recover_again(snapshot)
        progress(tally)
    folder.stop()


def main(arguments: Sequence[str] | None = None) -> int:
    parser = cuts.parser("kill", __doc__)
    parser.add_argument("--kills", type=int, default=1000)
    options = parser.parse_args(arguments)
    modes = MODES if options.durability == "all" else (options.durability,)
    works = chosen(options.protocol)
    print(f"{options.kills} kills, {' and '.join(works)}, durability {options.durability}", flush=True)

    def trial(place: Path, seed: int) -> Sequence[str]:
        started, tally = time.monotonic(), Tally()
        kills = cuts.shared_out(options.kills, options.lanes)
        plans = [Plan(share, f"{seed}/{lane}", modes, place, works=works) for lane, share in enumerate(kills)]
        for one in run_lanes(_run_lane_aloud, plans):
            tally.add(one)
        print(*tally.lines("kills", started), sep="\n")
        return tally.verdict.faults

    return outcomes.judged("kill", options, trial)


def _run_lane_aloud(plan: Plan) -> Tally:
    return cuts.aloud(lambda progress: run_lane(plan, progress), f"lane {plan.seed}", "kills")


if __name__ == "__main__":
    sys.exit(main())
