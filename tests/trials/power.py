"""`make trial-power`: the power goes off under load, on real file systems.

The data folder is on ext4 (and XFS) in an image file on a loop device. The real server is under load when the
file system is shut down without a flush of its log; the server is killed, the file system mounted again, the
server started again, and everything is compared with what was acknowledged. Then the control: the same with a
server that leaves every sync out must lose what it acknowledged, else the trial proves nothing and fails.

What `interval` and `none` may lose is in PROMISES: a suffix, with `interval` at most of the last interval and
one sync. (A sync that takes long on a busy machine is allowed for.)
"""

import argparse
import math
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import attrs

from tests.trials.folder import MODES, BrokenPromiseError, Folder, settings
from tests.trials.judge import Verdict
from tests.trials.lanes import run_lanes
from tests.trials.ledger import Ledger, Write
from tests.trials.loopdev import CannotMountError, Volume, own_mounts, usable_kinds
from tests.trials.serving import REAL, TrialServer
from tests.trials.tally import Tally

_CUTS_PER_FOLDER = 10
_RECOVERY_SECONDS = 0.15
_INTERVAL_SECONDS = 0.05
_SYNC_SECONDS = 0.5
"""How long the sync that an interval ends with may take here, and telling us about the answer."""
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


@attrs.define(eq=False)
class PowerFolder(Folder):
    """A data folder on a volume."""

    volume: Volume = attrs.field(kw_only=True)

    def load_seconds(self) -> float:
        """Long enough, now and then, for several intervals to have been synced."""
        if "interval" in self.modes and self.source.random() < 0.5:
            return self.source.uniform(0.5, 1.5)
        return super().load_seconds()

    def cut_under_load(self) -> float:
        """Load, and the power off at a random instant of it; returns when. Raises BrokenPromiseError.

        The server outlives the file system by a moment, in which it finds out and says so.
        """
        load = self.load()
        load.run(self.load_seconds())
        cut = time.monotonic()
        self.volume.cut()
        load.run(self.source.choice((0, self.source.uniform(0, 0.05))))
        self.server.kill()
        self.tally.cuts += 1
        self._end(load, cut)
        self.remount()
        return cut

    def remount(self) -> None:
        self.volume.unmount()
        self.volume.mount()

    def recover_from(self, cut: float) -> None:
        """Recover, and hold every mode to what it promises about the power cut. Raises BrokenPromiseError."""
        try:
            verdicts = self.recover(lambda ledger: promised_until(ledger, cut)).verdicts
        except BrokenPromiseError as error:
            raise BrokenPromiseError([f"the power was cut at {cut:.4f} s", str(error)]) from error
        if late := self.tally.lost.pop("always", 0):
            self.tally.lost["always (answered after the cut)"] += late
        for mode in ("always", "interval"):
            verdict = verdicts.get(mode, Verdict())
            if verdict.oldest_lost < verdict.newest_kept:
                text = f"{mode}: what was lost had been acknowledged before something kept was sent: a hole"
                raise BrokenPromiseError([text])
            if verdict.lost and mode == "interval":
                self.tally.loss_seconds = max(self.tally.loss_seconds, cut - verdict.oldest_lost)


def promised_until(ledger: Ledger, cut: float) -> float:
    """Until when what was acknowledged must have survived a power cut.

    What was read after the ioctl was called may rest on a sync that it overlapped, and such a sync may say
    yes to bytes that the shutdown then takes (seen with a bare loop of pwrite and fdatasync, once in 300
    cuts on ext4; never with a sync that had returned before). A real power cut leaves nobody to hear that.
    """
    match ledger.mode:
        case "always":
            return cut
        case "interval":
            return cut - _INTERVAL_SECONDS - _SYNC_SECONDS
        case _:
            return -math.inf


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
            modes = plan.turns[number % len(plan.turns)]
            toml = settings(modes, source)
            server = _server(place, volume, toml, plan.command)
            folder = PowerFolder(server, modes, source, tally, volume=volume)
            until = min(plan.cuts, tally.cuts + _CUTS_PER_FOLDER)
            try:
                _cut_and_recover(folder, until, progress)
            except BrokenPromiseError as error:
                what = f"{plan.kind}, seed {plan.seed}, modes {'+'.join(modes)}"
                tally.verdict.faults.append(f"{what}; data folder {place / 'broken'}:\n{toml}{error}")
                shutil.copytree(server.data, place / "broken", ignore=shutil.ignore_patterns("*.sock"))
            finally:
                if server.alive:
                    server.kill()
            shutil.rmtree(server.data)
        volume.unmount()
    if not tally.verdict.faults:
        shutil.rmtree(place)
    return tally


def _server(place: Path, volume: Volume, toml: str, command: Sequence[str]) -> TrialServer:
    (place / "brokers.toml").write_text(toml)
    arguments = ("--enable", "logmq", "--config", str(place / "brokers.toml"))
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
    lost: int = 0
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
            server = _server(place, volume, settings(("always",), source), UNSYNCED)
            folder = PowerFolder(server, ("always",), source, Tally(), volume=volume)
            try:
                folder.recover()
                volume.sync()  # what has been there for a while is on disk by itself
                cut = folder.cut_under_load()
                control.cuts += 1
                _count_losses(folder, cut, control)
            finally:
                if server.alive:
                    server.kill()
            shutil.rmtree(server.data, ignore_errors=True)
        volume.unmount()
    shutil.rmtree(place)
    return control


def _count_losses(folder: PowerFolder, cut: float, control: Control) -> None:
    """Only what was acknowledged before the cut counts: later answers would make it too easy."""
    acknowledged = sum(
        operation.count
        for ledger in folder.book.ledgers.values()
        for operation in ledger.operations
        if isinstance(operation, Write) and operation.promised(cut)
    )
    control.acknowledged += acknowledged
    try:
        folder.recover()
    except BrokenPromiseError:
        control.unusable += not folder.server.alive
    control.lost += max(0, acknowledged - folder.tally.verdict.kept)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.trials.power", description=__doc__.splitlines()[0])
    parser.add_argument("--cuts", type=int, default=500)
    parser.add_argument("--control-cuts", type=int, default=10, help="of the server that leaves syncs out")
    parser.add_argument(
        "--seed", type=int, default=None, help="of the load and the instants; drawn if not given"
    )
    parser.add_argument("--durability", choices=("all", *MODES), default="all", help="all: one after another")
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
    place = Path(tempfile.mkdtemp(prefix="trial-power-", dir=options.folder))
    print(f"{options.cuts} cuts on {' and '.join(kinds)}{missing}, --seed {seed}, in {place}", flush=True)
    started = time.monotonic()

    def plans(what: str, cuts: int) -> list[Plan]:
        share, rest = divmod(cuts, options.lanes)
        return [
            Plan(kinds[lane % len(kinds)], share + (lane < rest), f"{seed}/{what}{lane}", turns, place)
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
        f"control, syncing left out: {control.cuts} cuts, {control.lost:,} of {control.acknowledged:,} "
        f"acknowledged records lost, {control.unusable} data folders unusable"
    )
    if tally.verdict.faults:
        print("BROKEN:", *tally.verdict.faults, sep="\n")
        return 1
    if not control.lost:
        print("BROKEN: the control lost nothing, so this trial proves nothing here")
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

    return run_lane(plan, progress)


if __name__ == "__main__":
    sys.exit(main())
