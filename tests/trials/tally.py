"""What a trial has done and seen, added up over its lanes."""

import math
import time
from collections import Counter

import attrs


@attrs.define
class Verdict:
    """What came of comparing one topic, or many (they add up)."""

    faults: list[str] = attrs.field(factory=list)
    life: int = 0
    """How many of the deletes came to pass."""
    kept: int = 0
    """Acknowledged records that are there."""
    lost: int = 0
    """Acknowledged records that are not: faults, where the mode promised them."""
    oldest_lost: float = math.inf
    """When the first of the lost was acknowledged."""
    newest_kept: float = -math.inf
    """When the last one that is there was queued, acknowledged or not."""
    extra: int = 0
    """Records that are there though nobody was told so."""
    deletes: int = 0
    """Acknowledged deletes that stayed."""
    commits: int = 0
    """Acknowledged group offsets that stayed."""

    def add(self, other: "Verdict") -> None:
        self.faults += other.faults
        self.kept += other.kept
        self.lost += other.lost
        self.oldest_lost = min(self.oldest_lost, other.oldest_lost)
        self.newest_kept = max(self.newest_kept, other.newest_kept)
        self.extra += other.extra
        self.deletes += other.deletes
        self.commits += other.commits


@attrs.define
class Tally:
    """Counts of one lane, or of all."""

    cuts: int = 0
    """Kills, or power cuts."""
    cuts_in_recovery: int = 0
    """Those that hit a server which was starting."""
    recoveries: int = 0
    """Starts after which everything was compared."""
    recoveries_again: int = 0
    """Starts on what a recovery had left, which must change nothing."""
    clean_stops: int = 0
    limited: int = 0
    """Loads amid which log files came to take nothing more."""
    repeated: int = 0
    """BATCHes sent again after a recovery."""
    verdict: Verdict = attrs.field(factory=Verdict)
    lost: Counter[str] = attrs.field(factory=Counter)
    """Acknowledged records that were not there any more, by mode: faults, unless the mode may lose them."""
    loss_seconds: float = 0.0
    """The longest time before a cut at which something was acknowledged that the cut took (`interval`)."""

    def add(self, other: "Tally") -> None:
        for field in attrs.fields(Tally):
            if field.name == "verdict":
                self.verdict.add(other.verdict)
            elif field.name == "lost":
                self.lost += other.lost
            elif field.name == "loss_seconds":
                self.loss_seconds = max(self.loss_seconds, other.loss_seconds)
            else:
                setattr(self, field.name, getattr(self, field.name) + getattr(other, field.name))

    def lines(self, cut: str, started: float) -> list[str]:
        """For people, at the end."""
        verdict = self.verdict
        losses = [f"{count:,} {mode}" for mode, count in sorted(self.lost.items())]
        lost = f"lost: {', '.join(losses) or 'none'}"
        if self.loss_seconds:
            lost += (
                f" (interval: what was acknowledged up to {self.loss_seconds * 1000:.0f} ms before the cut)"
            )
        return [
            f"{self.cuts:,} {cut}, {self.cuts_in_recovery:,} of them during a start; "
            f"{self.clean_stops:,} clean stops, {self.limited:,} loads on files that took no more; "
            f"{time.monotonic() - started:.0f} s",
            f"{self.recoveries:,} recoveries compared in full, "
            f"{self.recoveries_again:,} repeated with the same result",
            f"{verdict.kept:,} acknowledged records found as they were acknowledged; {lost}",
            f"{verdict.extra:,} unacknowledged records found whole, {verdict.deletes:,} deletes and "
            f"{verdict.commits:,} group offsets or ACKs kept, {self.repeated:,} batches written once",
        ]
