"""After a crash anywhere the store shows what it acknowledged, and invents nothing.

A fake disk knows every state that a power cut may leave (tests/support/fake_disk.py); the real store recovers
from each, and a witness compares (tests/support/promises.py). States that differ only where recovery and the
comparison never look are recovered once. Both numbers are printed: `pytest -s`.
"""

import itertools
from collections.abc import Callable, Iterable
from functools import partial

import pytest
import trio

from tests.support.crashes import SETTINGS, Tally, check_cuts, check_kills, check_recovery, record, varied
from tests.support.fake_disk import FakeDisk
from tests.support.promises import BrokenPromiseError
from tests.support.workloads import REFERRING, SEVERAL, SMALL, check_short, drawn, sequence, something

# A quarter of the pairs of operations are run, in which each stands first and last, and none of these:
# "change weakest" makes states of those kinds, a fifth as many. `make trial-states` runs all triples. Laps
# reuse segments of the journal.
_DEAREST = {
    ("change weak", last) for last in ("write tails", "checkpoint", "checkpoint amid a deletion", "restart")
}
_LAP = ("append much", "append much", "checkpoint")
_LAPS = (*_LAP, "append much", "append much"), (*_LAP, *_LAP, "append much", "append")
_SEEDS = (0, 1)
_SAMPLE = 16

pytestmark = pytest.mark.usefixtures("recoveries")


def _tally(results: Iterable[Tally]) -> Tally:
    total = Tally()
    for result in results:
        total.add(result)
    print(total)
    return total


def test_short_workloads_keep_their_promises_in_every_legal_state() -> None:
    workloads = [
        *itertools.product(SMALL, repeat=1),
        *(
            (first, last)
            for (at, first), (behind, last) in itertools.product(enumerate(SMALL), repeat=2)
            if (at + behind) % 4 == 0 and (first, last) not in _DEAREST
        ),
        *_LAPS,
    ]
    total = _tally(map(check_short, workloads))
    assert total.sampled == 0, "all states of all cuts"
    assert total.states >= total.runs > len(workloads)


def test_what_is_appended_together_is_there_as_a_whole_or_not_at_all() -> None:
    joins = ("join", "join weak", "join weakest")
    workloads = [*((join,) for join in joins), ("append none", "join weak"), ("join", "restart")]
    total = _tally(map(check_short, workloads))
    assert total.sampled == 0, "all states of all cuts"
    assert total.runs > len(workloads)


def test_a_commit_of_several_batches_keeps_its_promises_in_every_legal_state() -> None:
    for settings in (SETTINGS, REFERRING):
        total = _tally(map(partial(check_short, settings=settings), [(last,) for last in SEVERAL]))
        assert total.sampled == 0, "all states of all cuts"
        assert total.runs > len(SEVERAL)


def test_long_workloads_keep_their_promises_in_very_many_states() -> None:
    total = _tally(map(_long, _SEEDS))
    assert total.states >= 200_000
    assert total.runs > 500


def _long(seed: int) -> Tally:
    return trio.run(_check_long, seed)


async def _check_long(seed: int) -> Tally:
    history = await record(drawn(seed, operations=10), settings=varied(seed))
    tally = await check_cuts(history.cuts, history.witness, _SAMPLE, seed)
    tally.add(await check_kills(history))
    cut = history.cuts[seed % len(history.cuts)]
    tally.add(await check_recovery(history.witness, cut, seed, runs=2))
    return tally


class _LyingDisk(FakeDisk):
    """Says that it synced, and did not."""

    lies: Callable[[str, str], bool]

    def sync_data(self, fd: int) -> None:
        path = self._open[fd].path
        if self.lies("file", path):
            self._told("sync", path)
        else:
            super().sync_data(fd)

    def sync_folder(self, path: str) -> None:
        if self.lies("folder", path):
            self._told("sync_folder", path)
        else:
            super().sync_folder(path)


@pytest.mark.parametrize(
    ("what", "suffix"),
    [("file", ".wal"), ("file", ".log"), ("file", ".idx"), ("file", "CATALOG.new"), ("folder", "")],
)
async def test_a_sync_left_out_anywhere_is_found_out(what: str, suffix: str) -> None:
    """Else this proves nothing."""
    found = []
    for operations in (["append"] * 3, ["append", "checkpoint", "append"], ["delete or make again"] * 2):
        disk = _LyingDisk()
        disk.lies = lambda kind, path: kind == what and path.endswith(suffix)
        history = await record(sequence(operations), something(["restart"]), disk)
        try:
            await check_cuts(history.cuts, history.witness, 200, seed=0)
        except BrokenPromiseError as error:
            found.append(error)
    assert found
