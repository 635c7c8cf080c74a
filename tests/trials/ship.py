"""`make trial-ship`: the machine is lost under load, with its disk, and comes back from the bucket.

The server ships to a bucket. SIGKILL ends it at a random instant of the load; its data folder is thrown away,
or never looked at again; another one comes from `brokers restore`, or from a follower that is promoted. What
is served then is held against the trial's own ledger, as after a kill (`folder.py`): what was acknowledged
before the shipped instant is there, in order and whole, and nothing else.

The server acknowledges by the bucket, so all that was acknowledged is promised. Nobody acknowledges what
passes through pub/sub and recording: there it is what came before the last object but one was made.
"""

import math
import random
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import attrs

from tests.support.server import run
from tests.trials import cuts, outcomes
from tests.trials.adapters import adapter_on, chosen
from tests.trials.folder import BrokenPromiseError, Folder, HasMode
from tests.trials.lanes import run_lanes
from tests.trials.tally import Tally

_LOSSES_PER_FOLDER = 5
_INTERVAL_SECONDS = 0.1
_UNANSWERED = ("pubsub", "kqmsgq")
"""No answer waits for the bucket here."""


@attrs.define(eq=False)
class ShippedFolder(Folder):
    """A data folder whose bucket outlives it."""

    bucket: Path = attrs.field(kw_only=True)
    planted: bool = attrs.field(kw_only=True, default=False)
    """The newest object but one is taken out of the bucket: the trial must find that."""

    def lose_machine(self) -> Callable[[HasMode], float]:
        """Load, and the machine gone; a folder comes back from the bucket. Returns what is promised of it.
        Raises BrokenPromiseError."""
        load = self._loaded()
        self._until_something_is_shipped(load.run)
        self.server.limit_files(None)
        cut = time.monotonic()
        self.server.kill()
        self.tally.cuts += 1
        self._end(load, cut)
        shipped = self._shipped_until()
        self._forget_shown(shipped)
        if self.planted:
            self._objects()[-2].unlink()
        shutil.rmtree(self.server.data)
        said = run(
            "restore", f"file://{self.bucket}", "--data-dir", str(self.server.data), "--verify", "full"
        )
        if said.returncode and not self.planted:
            raise BrokenPromiseError([f"restore: exit {said.returncode}", said.stdout, said.stderr])
        all_of_it = self.adapter.protocol not in _UNANSWERED
        return lambda book: cut if all_of_it else shipped

    def _forget_shown(self, shipped: float) -> None:
        """What is on the disk here is delivered and read: it is safe once it is acknowledged, or shipped."""
        model = getattr(getattr(self.adapter, "book", None), "model", None)
        for topic in () if model is None else model.topics.values():
            for message in topic.messages.values():
                if not message.acked and message.known_seconds > shipped:
                    message.known_seconds = message.ended = math.inf
                    message.offset = None
        for queue in getattr(getattr(self.adapter, "book", None), "queues", {}).values():
            for message in queue.messages.values():
                if message.shown is not None and message.shown > shipped:
                    message.shown = None

    def _objects(self) -> list[Path]:
        return sorted((self.bucket / "wal").glob("0*"))

    def _until_something_is_shipped(self, go_on: Callable[[float], None]) -> None:
        """A ledger is worth something if the bucket has some of it."""
        count, give_up = len(self._objects()), time.monotonic() + 30
        while len(self._objects()) < count + 3 and time.monotonic() < give_up:
            go_on(0.05)

    def _shipped_until(self) -> float:
        """All that was acknowledged before this monotonic time is in the bucket."""
        objects = self._objects()
        made = objects[-2].stat().st_mtime if len(objects) > 1 else 0.0
        return time.monotonic() - (time.time() - made)


@attrs.frozen
class ShipPlan:
    """What one lane is to do."""

    losses: int
    seed: str
    folder: Path
    works: Sequence[str] = ("logmq",)
    planted: bool = False
    load: float = 1.0


def settings_of(bucket: Path, source: random.Random) -> str:
    """The section `[ship]`, drawn."""
    return "\n".join(
        [
            "[ship]",
            f'url = "file://{bucket}"',
            f"interval = {_INTERVAL_SECONDS}",
            f"fold = {source.choice((1, 3, 30))}",
            f'part_bytes = "{source.choice(("64KiB", "1MiB"))}"',
            'ack = "bucket"',
            "",
        ]
    )


def run_lane(plan: ShipPlan, progress: Callable[[Tally], None] = lambda tally: None) -> Tally:
    """So many machines lost; the first broken promise ends it."""
    tally = Tally()
    source = random.Random(plan.seed)
    number = 0
    while tally.cuts < plan.losses and not tally.verdict.faults:
        number += 1
        place = plan.folder / f"{plan.seed.replace('/', '-')}-{number}"
        place.mkdir(parents=True)
        protocol = plan.works[number % len(plan.works)]
        adapter = adapter_on(protocol, ("always",), source, place, place / "data", load_factor=plan.load)
        bucket = place / "bucket"
        with open(place / "brokers.toml", "a") as settings:
            settings.write(settings_of(bucket, source))
        folder = ShippedFolder(adapter, tally, bucket=bucket, planted=plan.planted)
        until_ = min(plan.losses, tally.cuts + _LOSSES_PER_FOLDER)
        try:
            folder.recover()
            while tally.cuts < until_:
                promised = folder.lose_machine()
                lost_before = tally.verdict.lost
                folder.recover(promised)
                if protocol not in _UNANSWERED and tally.verdict.lost > lost_before:
                    raise BrokenPromiseError([f"{tally.verdict.lost - lost_before} acknowledged are lost"])
                progress(tally)
            folder.stop()
        except BrokenPromiseError as error:
            text = f"seed {plan.seed}, {place}, {protocol}:\n{error}"
            tally.verdict.faults.append(text)
        finally:
            if folder.server.alive:
                folder.server.kill()
        if not tally.verdict.faults:
            shutil.rmtree(place)
    return tally


def main(arguments: Sequence[str] | None = None) -> int:
    parser = cuts.parser("ship", __doc__)
    parser.add_argument("--losses", type=int, default=100, help="machines that are lost")
    parser.add_argument("--planted", action="store_true", help="an object is missing: this must be found")
    options = parser.parse_args(arguments)
    works = chosen(options.protocol)
    print(f"{options.losses} machines lost, {' and '.join(works)}", flush=True)

    def trial(place: Path, seed: int) -> Sequence[str]:
        started, tally = time.monotonic(), Tally()
        shares = cuts.shared_out(options.losses, options.lanes)
        plans = [
            ShipPlan(share, f"{seed}/{lane}", place, works, options.planted)
            for lane, share in enumerate(shares)
        ]
        for one in run_lanes(_run_lane_aloud, plans):
            tally.add(one)
        print(*tally.lines("machines lost", started), sep="\n")
        return tally.verdict.faults

    return outcomes.judged("ship", options, trial)


def _run_lane_aloud(plan: ShipPlan) -> Tally:
    return cuts.aloud(lambda progress: run_lane(plan, progress), f"lane {plan.seed}", "losses")


if __name__ == "__main__":
    sys.exit(main())
