"""`make trial-power`: the power goes off under load, on real file systems.

The data folder is on ext4 (and XFS) in an image file on a loop device. The real server is under load when the
file system is shut down without a flush of its log; the server is killed, the file system mounted again, the
server started again, and everything is compared with what was acknowledged. Then the control: the same with a
server that leaves every sync out must lose what it acknowledged, else the trial proves nothing and fails.

What `interval` and `none` may lose is in PROMISES: a suffix, with `interval` at most of the last interval and
one sync. (A sync that takes long on a busy machine is allowed for.)
"""

import math
import random
import shutil
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import attrs

from tests.trials import cuts, outcomes
from tests.trials.adapters import adapter_on, chosen
from tests.trials.folder import MODES, BrokenPromiseError, Folder, HasMode
from tests.trials.lanes import run_lanes
from tests.trials.loopdev import CannotMountError, Volume, own_mounts, usable_kinds
from tests.trials.planted import UNSYNCED
from tests.trials.tally import Tally, Verdict

_CUTS_PER_FOLDER = 10
_RECOVERY_SECONDS = 0.15
_INTERVAL_SECONDS = 0.05
_SYNC_SECONDS = 0.5
"""How long the sync that an interval ends with may take here, and telling us about the answer."""

_TURNS: Sequence[Sequence[str]] = (("always",), ("always",), MODES, ("interval",), ("none",))
"""The modes of one data folder after another: half of all in `always`, which promises most."""


@attrs.define(eq=False)
class PowerFolder(Folder):
    """A data folder on a volume."""

    volume: Volume = attrs.field(kw_only=True)

    def cut_under_load(self) -> float:
        """Load, and the power off at a random instant of it; returns when. Raises BrokenPromiseError.

        The server outlives the file system by a moment, in which it finds out and says so.
        """
        load = self._loaded(intervals=True)
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
            verdicts = self.recover(lambda book: promised_until(book, cut)).verdicts
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


def promised_until(book: HasMode, cut: float) -> float:
    """Until when what was acknowledged must have survived a power cut.

    What was read after the ioctl was called may rest on a sync that it overlapped, and such a sync may say
    yes to bytes that the shutdown then takes (seen with a bare loop of pwrite and fdatasync, once in 300
    cuts on ext4; never with a sync that had returned before). A real power cut leaves nobody to hear that.
    """
    match book.mode:
        case "always":
            return cut
        case "interval":
            return cut - _INTERVAL_SECONDS - _SYNC_SECONDS
        case _:
            return -math.inf


@attrs.frozen
class Plan:
    """What one lane is to do on one file system."""

    kind: str
    cuts: int
    seed: str
    turns: Sequence[Sequence[str]]
    folder: Path
    bug: str = ""
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
            data = volume.root / "data"
            adapter = adapter_on(protocol, modes, source, place, data, bug=plan.bug)
            folder, server = PowerFolder(adapter, tally, volume=volume), adapter.server
            until = min(plan.cuts, tally.cuts + _CUTS_PER_FOLDER)
            try:
                _cut_and_recover(folder, until, progress)
            except BrokenPromiseError as error:
                what = f"{plan.kind}, {protocol}, seed {plan.seed}, modes {'+'.join(modes)}"
                toml = (place / "brokers.toml").read_text()
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


def _cut_and_recover(folder: PowerFolder, until: int, progress: Callable[[Tally], None]) -> None:
    source, tally = folder.source, folder.tally
    folder.recover()
    while tally.cuts < until:
        if source.random() < 0.15:
            # What a recovery after a mere kill shows must be as safe as what was synced by a living server.
            folder.kill_under_load()
            tally.cuts -= 1
            folder.recover()
        cut = folder.cut_under_load()
        while tally.cuts < until and source.random() < 0.2:
            folder.kill_in_start(source.uniform(0, _RECOVERY_SECONDS), before_kill=folder.volume.cut)
            folder.remount()
        folder.recover_from(cut)
        progress(tally)
    folder.stop()


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
            data = volume.root / "data"
            adapter = adapter_on(protocol, ("always",), source, place, data, bug=UNSYNCED)
            folder, server = PowerFolder(adapter, Tally(), volume=volume), adapter.server
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
    acknowledged = folder.adapter.promised_records(cut)
    control.acknowledged += acknowledged
    try:
        folder.recover()
    except BrokenPromiseError:
        control.unusable += not folder.server.alive
    return max(0, acknowledged - folder.tally.verdict.kept)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = cuts.parser("power", __doc__)
    parser.add_argument("--cuts", type=int, default=500)
    parser.add_argument("--control-cuts", type=int, default=30, help="of the server that leaves syncs out")
    options = parser.parse_args(arguments)
    try:
        kinds = usable_kinds()
    except CannotMountError as error:
        print(f"trial-power: skipped, nothing was proved: {error}")
        return 0
    missing = "" if "xfs" in kinds else " (no mkfs.xfs here, so XFS is left out)"
    turns = _TURNS if options.durability == "all" else ((options.durability,),)
    works = chosen(options.protocol)
    print(f"{options.cuts} cuts on {' and '.join(kinds)}{missing}", flush=True)

    def trial(place: Path, seed: int) -> Sequence[str]:
        def plans(what: str, count: int) -> list[Plan]:
            found: list[Plan] = []
            for lane, share in enumerate(cuts.shared_out(count, options.lanes)):
                first = sum(plan.cuts for plan in found) % len(works)  # so that few cuts are of all protocols
                own = [*works[first:], *works[:first]]
                kind = kinds[lane % len(kinds)]
                found.append(Plan(kind, share, f"{seed}/{what}{lane}", turns, place, works=own))
            return found

        started, tally, control = time.monotonic(), Tally(), Control()
        for one in run_lanes(_run_lane_aloud, plans("", options.cuts)):
            tally.add(one)
        for other in run_lanes(run_control, plans("control", options.control_cuts)):
            control.add(other)
        print(*tally.lines("power cuts", started), sep="\n")
        print(
            f"control, syncing left out: {control.cuts} cuts, {control.lost.total():,} of "
            f"{control.acknowledged:,} acknowledged records lost, {control.unusable} data folders unusable"
        )
        if tally.verdict.faults:
            return tally.verdict.faults
        blind = [protocol for protocol in works if not control.lost[protocol]]
        return [f"the control lost nothing of {name}, so this trial proves nothing here" for name in blind]

    return outcomes.judged("power", options, trial)


def _run_lane_aloud(plan: Plan) -> Tally:
    own_mounts()
    return cuts.aloud(lambda progress: run_lane(plan, progress), plan.kind, "cuts")


if __name__ == "__main__":
    sys.exit(main())
