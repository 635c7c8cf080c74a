"""`make trial-kill`: SIGKILL of the real server at random instants under load, and while it recovers.

`kill -9` does not test syncing (the page cache outlives the process; that is `power`'s part). It tests that
whatever the process was in the middle of is made whole: batches half applied, checkpoints, segments that go
round, topics being made and deleted, recoveries cut short by the next kill.
"""

import argparse
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import attrs

from tests.trials.folder import (
    MODES,
    BrokenPromiseError,
    Folder,
    keep_as_it_was,
)
from tests.trials.lanes import run_lanes
from tests.trials.serving import REAL, TrialServer
from tests.trials.tally import Tally
from tests.trials.workloads import WORKS, chosen

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
    command: Sequence[str] = REAL
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
        (place / "brokers.toml").write_text(WORKS[protocol].settings(plan.modes, source))
        arguments = ("--enable", protocol, "--config", str(place / "brokers.toml"))
        server = TrialServer(place, place / "data", *arguments, command=plan.command)
        until = min(plan.kills, tally.cuts + _KILLS_PER_FOLDER)
        try:
            folder = WORKS[protocol].folder(server, plan.modes, source, tally, plan.load)
            folder.least = plan.least
            _kill_and_recover(folder, until, plan.keep, progress)
        except BrokenPromiseError as error:
            tally.verdict.faults.append(f"seed {plan.seed}, {place}:\n{error}")
        finally:
            if server.alive:
                server.kill()
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
            tally.cuts_in_recovery += server.begin_and_kill(seconds, after_lock=source.random() < 0.9)
            tally.cuts += 1
        snapshot = folder.recover().snapshot
        if tally.cuts < until and source.random() < 0.1:
            server.kill()
            tally.cuts += 1
            folder.recover_again(snapshot)
        progress(tally)
    code = server.stop()
    tally.clean_stops += 1
    if code:
        raise BrokenPromiseError([f"SIGTERM: exit {code}", server.said])


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.trials.kill", description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=1000)
    parser.add_argument(
        "--seed", type=int, default=None, help="of the load and the instants; drawn if not given"
    )
    parser.add_argument(
        "--durability", choices=("all", *MODES), default="all", help="all: topics of every mode"
    )
    parser.add_argument("--protocol", choices=("all", *WORKS), default="all", help="all: one after another")
    parser.add_argument("--lanes", type=int, default=2, help="servers under trial at once")
    parser.add_argument(
        "--folder", type=Path, default=None, help="where to put data folders (a temporary one)"
    )
    options = parser.parse_args(arguments)
    seed = options.seed if options.seed is not None else random.SystemRandom().randrange(1 << 32)
    modes = MODES if options.durability == "all" else (options.durability,)
    works = chosen(options.protocol)
    place = Path(tempfile.mkdtemp(prefix="trial-kill-", dir=options.folder))
    what = f"{options.kills} kills, {' and '.join(works)}, durability {options.durability}"
    print(f"{what}, --seed {seed}, in {place}", flush=True)
    started = time.monotonic()
    share, rest = divmod(options.kills, options.lanes)
    plans = [
        Plan(share + (lane < rest), f"{seed}/{lane}", modes, place, works=works)
        for lane in range(options.lanes)
    ]
    tally = Tally()
    try:
        for one in run_lanes(_run_lane_aloud, plans):
            tally.add(one)
    except KeyboardInterrupt:
        shutil.rmtree(place, ignore_errors=True)
        return 130
    for line in tally.lines("kills", started):
        print(line)
    if tally.verdict.faults:
        print("BROKEN:", *tally.verdict.faults, sep="\n")
        return 1
    shutil.rmtree(place)
    print("nothing promised was broken")
    return 0


def _run_lane_aloud(plan: Plan) -> Tally:
    told = 0

    def progress(tally: Tally) -> None:
        nonlocal told
        if tally.cuts >= told + 50:
            told = tally.cuts
            print(f"  lane {plan.seed}: {tally.cuts} kills, {tally.verdict.kept:,} records kept", flush=True)

    tally = run_lane(plan, progress)
    if tally.verdict.faults:  # told in full at the end; the others go on
        print(f"  lane {plan.seed}: BROKEN after {tally.cuts}", flush=True)
    return tally


if __name__ == "__main__":
    sys.exit(main())
