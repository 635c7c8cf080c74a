"""`make trial-power`: the power goes off under load, on real file systems.

The data folder is on ext4 (and XFS) in an image file on a loop device. The real server is under load when the
file system is shut down without a flush of its log; the server is killed, the file system mounted again, the
server started again, and everything is compared with what was acknowledged. Then the control: the same with a
server that leaves every sync out must lose what it acknowledged, else the trial proves nothing and fails.

What `interval` and `none` may lose is in PROMISES: a suffix, with `interval` at most of the last interval and
one sync. (A sync that takes long on a busy machine is allowed for.)
"""

import argparse
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import attrs

from tests.trials.folder import MODES, BrokenPromiseError
from tests.trials.lanes import run_lanes
from tests.trials.loopdev import CannotMountError, Volume, own_mounts, usable_kinds
from tests.trials.power_folder import PowerFolder
from tests.trials.serving import REAL, TrialServer
from tests.trials.tally import Tally
from tests.trials.workloads import WORKS, chosen

_CUTS_PER_FOLDER = 10
_RECOVERY_SECONDS = 0.15
UNSYNCED = (sys.executable, "-m", "tests.trials.unsynced")

_TURNS: Sequence[Sequence[str]] = (("always",), ("always",), MODES, ("interval",), ("none",))
"""The modes of one data folder after another: half of all in `always`, which promises most."""


@attrs.frozen
class Plan:
    """What one lane is to do on one file system."""

    kind: str
    cuts: int
    seed: str
    turns: Sequence[Sequence[str]]
    folder: Path
    command: Sequence[str] = REAL
    works: Sequence[str] = ("logmq",)
    """The protocols under load: a data folder after another, each with one."""


def run_lane(plan: Plan, progress: Callable[[Tally], None] = lambda tally: None) -> Tally:
    """So many cuts on one file system; the first broken promise ends it. Faults are in the tally."""
    tally = Tally()
    source = random.Random(plan.seed)
    place = plan.folder / plan.seed.replace("/", "-")
    place.mkdir()
    with Volume(plan.kind, place) as volume:
        volume.make()
        volume.mount()
        for number in range(sys.maxsize):
            if tally.cuts >= plan.cuts or tally.verdict.faults:
                break
            turn, which = divmod(number, len(plan.works))
            modes, protocol = plan.turns[turn % len(plan.turns)], plan.works[which]
            toml = WORKS[protocol].settings(modes, source)
            server = _server(place, volume, protocol, toml, plan.command)
            folder = WORKS[protocol].power_folder(server, modes, source, tally, volume=volume)
            until = min(plan.cuts, tally.cuts + _CUTS_PER_FOLDER)
            try:
                _cut_and_recover(folder, until, progress)
            except BrokenPromiseError as error:
                what = f"{plan.kind}, {protocol}, seed {plan.seed}, modes {'+'.join(modes)}"
                tally.verdict.faults.append(f"{what}; data folder {place / 'broken'}:\n{toml}{error}")
                if server.alive:
                    server.kill()
                folder.remount()  # after a fault of the load it is still cut off, and nothing can be read
                shutil.copytree(server.data, place / "broken", ignore=shutil.ignore_patterns("*.sock"))
            finally:
                if server.alive:
                    server.kill()
            shutil.rmtree(server.data)
        volume.unmount()
    if not tally.verdict.faults:
        shutil.rmtree(place)
    return tally


def _server(place: Path, volume: Volume, protocol: str, toml: str, command: Sequence[str]) -> TrialServer:
    (place / "brokers.toml").write_text(toml)
    arguments = ("--enable", protocol, "--config", str(place / "brokers.toml"))
    return TrialServer(place, volume.root / "data", *arguments, command=command)


def _cut_and_recover(folder: PowerFolder, until: int, progress: Callable[[Tally], None]) -> None:
    source, tally, server = folder.source, folder.tally, folder.server
    folder.recover()
    while tally.cuts < until:
        if source.random() < 0.15:
            # What a recovery after a mere kill shows must be as safe as what was synced by a living server.
            folder.kill_under_load()
            tally.cuts -= 1
            folder.recover()
        cut = folder.cut_under_load()
        while tally.cuts < until and source.random() < 0.2:
            tally.cuts_in_recovery += server.begin_and_kill(
                source.uniform(0, _RECOVERY_SECONDS), after_lock=True, before_kill=folder.volume.cut
            )
            tally.cuts += 1
            folder.remount()
        folder.recover_from(cut)
        progress(tally)
    code = server.stop()
    tally.clean_stops += 1
    if code:
        raise BrokenPromiseError([f"SIGTERM: exit {code}", server.said])


@attrs.define
class Control:
    """What a server without syncs lost. `unusable`: data folders that no server would start on any more."""

    cuts: int = 0
    acknowledged: int = 0
    lost: Counter[str] = attrs.field(factory=Counter)
    """By protocol."""
    unusable: int = 0

    def add(self, other: "Control") -> None:
        self.cuts += other.cuts
        self.acknowledged += other.acknowledged
        self.lost += other.lost
        self.unusable += other.unusable


def run_control(plan: Plan) -> Control:
    """The same cuts for a server that never syncs: what the trial is able to see."""
    own_mounts()
    control = Control()
    source = random.Random(plan.seed)
    place = plan.folder / plan.seed.replace("/", "-")
    place.mkdir()
    with Volume(plan.kind, place) as volume:
        volume.make()
        volume.mount()
        while control.cuts < plan.cuts:
            protocol = plan.works[control.cuts % len(plan.works)]
            toml = WORKS[protocol].settings(("always",), source)
            server = _server(place, volume, protocol, toml, UNSYNCED)
            folder = WORKS[protocol].power_folder(server, ("always",), source, Tally(), volume=volume)
            try:
                folder.recover()
                volume.sync()  # what has been there for a while is on disk by itself
                cut = folder.cut_under_load()
                control.cuts += 1
                control.lost[protocol] += _losses(folder, cut, control)
            finally:
                if server.alive:
                    server.kill()
            shutil.rmtree(server.data, ignore_errors=True)
        volume.unmount()
    shutil.rmtree(place)
    return control


def _losses(folder: PowerFolder, cut: float, control: Control) -> int:
    """Only what was acknowledged before the cut counts: later answers would make it too easy."""
    acknowledged = folder.promised_records(cut)
    control.acknowledged += acknowledged
    try:
        folder.recover()
    except BrokenPromiseError:
        control.unusable += not folder.server.alive
    return max(0, acknowledged - folder.tally.verdict.kept)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.trials.power", description=__doc__.splitlines()[0])
    parser.add_argument("--cuts", type=int, default=500)
    parser.add_argument("--control-cuts", type=int, default=10, help="of the server that leaves syncs out")
    parser.add_argument(
        "--seed", type=int, default=None, help="of the load and the instants; drawn if not given"
    )
    parser.add_argument("--durability", choices=("all", *MODES), default="all", help="all: one after another")
    parser.add_argument("--protocol", choices=("all", *WORKS), default="all", help="all: one after another")
    parser.add_argument("--lanes", type=int, default=2, help="file systems and servers at once")
    parser.add_argument("--folder", type=Path, default=None, help="where to put the images (a temporary one)")
    options = parser.parse_args(arguments)
    try:
        kinds = usable_kinds()
    except CannotMountError as error:
        print(f"trial-power: skipped, nothing was proved: {error}")
        return 0
    missing = "" if "xfs" in kinds else " (no mkfs.xfs here, so XFS is left out)"
    seed = options.seed if options.seed is not None else random.SystemRandom().randrange(1 << 32)
    turns = _TURNS if options.durability == "all" else ((options.durability,),)
    works = chosen(options.protocol)
    place = Path(tempfile.mkdtemp(prefix="trial-power-", dir=options.folder))
    print(f"{options.cuts} cuts on {' and '.join(kinds)}{missing}, --seed {seed}, in {place}", flush=True)
    started = time.monotonic()

    def plans(what: str, cuts: int) -> list[Plan]:
        share, rest = divmod(cuts, options.lanes)
        return [
            Plan(
                kinds[lane % len(kinds)],
                share + (lane < rest),
                f"{seed}/{what}{lane}",
                turns,
                place,
                works=works,
            )
            for lane in range(options.lanes)
        ]

    tally, control = Tally(), Control()
    try:
        for one in run_lanes(_run_lane_aloud, plans("", options.cuts)):
            tally.add(one)
        for other in run_lanes(run_control, plans("control", options.control_cuts)):
            control.add(other)
    except KeyboardInterrupt:
        shutil.rmtree(place, ignore_errors=True)
        return 130
    for line in tally.lines("power cuts", started):
        print(line)
    print(
        f"control, syncing left out: {control.cuts} cuts, {control.lost.total():,} of "
        f"{control.acknowledged:,} acknowledged records lost, {control.unusable} data folders unusable"
    )
    if tally.verdict.faults:
        print("BROKEN:", *tally.verdict.faults, sep="\n")
        return 1
    if blind := [protocol for protocol in works if not control.lost[protocol]]:
        print(f"BROKEN: the control lost nothing of {', '.join(blind)}, so this trial proves nothing here")
        return 1
    shutil.rmtree(place)
    print("nothing promised was broken")
    return 0


def _run_lane_aloud(plan: Plan) -> Tally:
    own_mounts()
    told = 0

    def progress(tally: Tally) -> None:
        nonlocal told
        if tally.cuts >= told + 50:
            told = tally.cuts
            print(f"  {plan.kind}: {tally.cuts} cuts, {tally.verdict.kept:,} records kept", flush=True)

    tally = run_lane(plan, progress)
    if tally.verdict.faults:  # told in full at the end; the others go on
        print(f"  {plan.kind}: BROKEN after {tally.cuts}", flush=True)
    return tally


if __name__ == "__main__":
    sys.exit(main())
