"""What a recorded log holds after a cut, compared with what producers sent.

Pure: books and what was read in, faults out. No producer is told what is recorded; but a counter says how
many messages were written, and the promise is about these: after a kill they are all there, after a power cut
those that were counted an interval and a sync before it. What is there stands in the order in which it was
sent, with gaps that say how many are missing; what is lost is the end of what one server took, never a hole.
"""

import math
from collections.abc import Iterable, Iterator

import attrs

from tests.trials.tally import Verdict


@attrs.frozen
class Run:
    """Messages that follow each other, by their numbers; or a gap, which has none."""

    messages: int
    first: int | None = None


@attrs.define(eq=False)
class Sent:
    """What one server was sent: the numbers from `first` on, and up to which by when. `counted`: how many of
    them it said were written."""

    first: int
    writes: list[tuple[float, int]] = attrs.field(factory=list)
    counted: list[tuple[float, int]] = attrs.field(factory=list)

    @property
    def stop(self) -> int:
        """Behind the last that was sent."""
        return self.writes[-1][1] if self.writes else self.first

    def least(self, until: float) -> int:
        """How far it must be accounted for, by what was counted until then."""
        return self.first + max((count for at, count in self.counted if at <= until), default=0)

    def time_of(self, number: int) -> float:
        return next((at for at, stop in self.writes if stop > number), math.inf)


@attrs.define(eq=False)
class RecordedBook:
    """Everything that was sent. `settled`: what the last recovery has shown. `mode`: of the recorded log."""

    sent: list[Sent] = attrs.field(factory=list)
    settled: list[Run] = attrs.field(factory=list)
    mode: str = "interval"

    @property
    def next(self) -> int:
        """The number of the next message."""
        return self.sent[-1].stop if self.sent else 0

    def promised(self, until: float) -> int:
        """How many of the last load must be accounted for."""
        return self.sent[-1].least(until) - self.sent[-1].first if self.sent else 0

    def judge(self, shown: Iterable[Run], promised_until: float) -> Verdict:
        """Compare, and take what is shown for granted from now on."""
        runs = joined(shown)
        verdict = Verdict()
        if not _begins_with(runs, self.settled):
            verdict.faults.append("what an earlier recovery has shown is not there any more")
        ends = self._ends(runs, verdict)
        for sent in self.sent[-1:]:
            end = ends.get(sent.first, sent.first)
            least = sent.least(promised_until)
            verdict.kept, verdict.extra = min(end, least) - sent.first, max(end - least, 0)
            verdict.lost = sent.stop - end
            if verdict.lost:
                verdict.oldest_lost = sent.time_of(end)
            if end < least:
                verdict.faults.append(
                    f"{least - end} messages that had to be there are not, from number {end} on"
                )
        self.settled = runs
        return verdict

    def _ends(self, runs: Iterable[Run], verdict: Verdict) -> dict[int, int]:
        """How far each load is accounted for, by its first number."""
        loads = {sent.first: sent.stop for sent in self.sent if sent.writes}
        ends: dict[int, int] = {}
        load, gap = -1, 0
        for run in runs:
            if run.first is None:  # of the load before, or of the one whose messages follow
                gap = run.messages
                continue
            at, left = run.first, run.messages
            if load >= 0 and at == ends[load] + gap:
                ends[load] = at
            elif at in loads and at not in ends:
                if load >= 0:
                    ends[load] += gap
                load = ends[at] = at
            elif at - gap in loads and at - gap not in ends:
                load = at - gap
                ends[load] = at
            else:
                verdict.faults.append(f"number {at} stands behind {ends.get(load)} and a gap of {gap}")
                return ends
            gap = 0
            while left:
                took = min(left, loads[load] - at)
                at, left = at + took, left - took
                ends[load] = at
                if left:  # it goes on with the next
                    if at not in loads or at in ends:
                        verdict.faults.append(f"number {at} was not sent then")
                        return ends
                    load = at
        if load >= 0:
            ends[load] += gap
        elif gap and self.sent:
            ends[self.sent[-1].first] = self.sent[-1].first + gap
        return ends


def joined(runs: Iterable[Run]) -> list[Run]:
    """Runs that go on where the one before ended are one, and so are gaps."""
    found: list[Run] = []
    for run in runs:
        last = found[-1] if found else None
        if last is not None and _goes_on(last, run):
            found[-1] = Run(last.messages + run.messages, last.first)
        else:
            found.append(run)
    return found


def _goes_on(last: Run, run: Run) -> bool:
    if last.first is None or run.first is None:
        return last.first is run.first
    return last.first + last.messages == run.first


def _begins_with(runs: list[Run], before: list[Run]) -> bool:
    """The last run may have grown."""
    if not before:
        return True
    same = len(before) - 1
    if runs[:same] != before[:same] or len(runs) <= same:
        return False
    return runs[same].first == before[same].first and runs[same].messages >= before[same].messages


def numbered(numbers: Iterable[int]) -> Iterator[Run]:
    """Each message as a run."""
    for number in numbers:
        yield Run(1, number)
