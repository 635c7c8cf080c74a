"""A data folder on a file system whose power goes off."""

import math
import time

import attrs

from tests.trials.folder import BrokenPromiseError, Folder
from tests.trials.judge import Verdict
from tests.trials.ledger import Ledger
from tests.trials.loopdev import Volume

_INTERVAL_SECONDS = 0.05
_SYNC_SECONDS = 0.5
"""How long the sync that an interval ends with may take here, and telling us about the answer."""


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
