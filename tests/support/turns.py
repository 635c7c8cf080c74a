"""Turns that end after a known number of looks at the clock, in place of after some time."""

from collections.abc import Callable

import pytest

from shared import turns

SLICES = 4
"""Slices of a turn, where a test does not say otherwise."""


def look_clock(looks: int) -> Callable[[], float]:
    """A clock by which a turn is over at so many looks after its first."""
    seen = 0

    def now() -> float:
        nonlocal seen
        seen += 1
        return seen * turns.TURN_SECONDS * 1.0001 / looks

    return now


def short_turns(monkeypatch: pytest.MonkeyPatch, slices: int = SLICES, items: int = turns.ITEMS) -> None:
    """For the rest of a test a turn takes so many slices of long work, of so many items each."""
    monkeypatch.setattr(turns.CLOCK, "now", look_clock(slices))
    monkeypatch.setattr(turns, "ITEMS", items)
