"""Walk through the legal states after a power cut: all of them, or a sample drawn by a seed.

A run is one boot of the machine (`Crash.boot`) with one list of choices. The walk is complete when every
possibility of every choice that a run met has had its run; what no run looked at made no difference.
"""

import random
from collections.abc import Iterator

from tests.support.fake_disk import Choose, Crash, FakeDisk, What

Taken = list[tuple[int, int]]  # for each choice met: what was picked, of how many


def _replay(picks: tuple[int, ...], taken: Taken) -> Choose:
    def choose(n: int, what: What) -> int:
        pick = picks[len(taken)] if len(taken) < len(picks) else 0
        taken.append((pick, n))
        return pick

    return choose


def every_state(crash: Crash, runs_max: int) -> Iterator[FakeDisk]:
    """Disks that together stand for every legal state, each for some that no other does.

    The caller recovers each before asking for the next (that is when the choices are met). Stops after
    `runs_max` runs: then the walk was not complete, and raises `TooManyStatesError` to say so.
    """
    waiting: list[tuple[int, ...]] = [()]
    runs = 0
    while waiting:
        if runs == runs_max:
            raise TooManyStatesError(f"more than {runs_max} runs")
        picks = waiting.pop()
        taken: Taken = []
        yield crash.boot(_replay(picks, taken))
        runs += 1
        for position in range(len(picks), len(taken)):
            before = tuple(pick for pick, _ in taken[:position])
            waiting.extend((*before, other) for other in range(1, taken[position][1]))


class TooManyStatesError(Exception):
    """The states were not all walked through."""


def sampled_states(crash: Crash, seed: int, runs: int) -> Iterator[FakeDisk]:
    """`runs` disks drawn by `seed` (some may be alike).

    Draws differ in how much is there: nearly everything, nearly nothing, in between, and 'in order': what
    comes after the first loss is lost too, as on a file system with an ordered journal.
    """
    source = random.Random(seed)
    for _ in range(runs):
        yield crash.boot(_draw(source))


def _draw(source: random.Random) -> Choose:
    lossy = source.choice((0.05, 0.3, 0.5, 0.9))
    in_order = source.random() < 0.25
    lost = False

    def choose(n: int, what: What) -> int:
        nonlocal lost
        pick = 0
        if (in_order and lost) or source.random() < lossy:
            pick = source.randrange(1, n)
            lost = True
        return pick

    return choose
