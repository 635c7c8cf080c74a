"""Messages that are taken out of the middle of what is ready: the others stay, in their order."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.queues.keys import Keys
from shared.queues.priorities import Priorities
from shared.queues.runs import Ready, Run
from shared.turns import ITEMS

COUNT = 12


@given(
    sizes=st.lists(st.tuples(st.integers(1, 4), st.integers(0, 2)), min_size=1, max_size=6),
    requeued=st.integers(0, 6),
    late=st.lists(st.integers(0, COUNT), max_size=3, unique=True),
    wanted=st.lists(st.integers(0, COUNT), max_size=COUNT),
    most=st.sampled_from((None, 0, 2)),
)
def test_what_is_taken_out_is_gone_and_all_else_goes_in_order(
    sizes: Sequence[tuple[int, int]],
    requeued: int,
    late: Sequence[int],
    wanted: Sequence[int],
    most: int | None,
) -> None:
    """`late`: what waits for its time first, and then stands at its number's place."""
    ready = Ready() if most is None else Priorities(most)
    first, there = 0, dict[int, int]()
    for size, priority in sizes:
        numbers = range(first, first + size)
        ready.add(Run(priority, [b"%d" % number for number in numbers], first), priority)
        there |= dict.fromkeys(numbers, min(priority, most or 0))
        first += size
    taken = [ready.take(1) for _ in range(min(requeued, len(there)))]
    for run in reversed(taken):
        ready.requeue(run, run.head)
    for number in late:
        message = ready.take_out(number)
        if message is not None:
            ready.requeue(message, message.head)
    shown = [number for run in ready for number in run.numbers]
    assert len(shown) == len(there)
    for number in wanted:
        found, message = ready.find(number), ready.take_out(number)
        assert (message is not None) == (there.pop(number, None) is not None) == (found is not None)
        assert message is None or (message.first, message.bodies) == (number, [b"%d" % number])
    assert ready.count == len(there)
    out = [ready.take(1) for _ in range(len(there))]
    assert [run.first for run in out] == sorted(there, key=lambda number: (-there[number], number))
    assert all(run.bodies == [b"%d" % run.first] for run in out)
    assert not ready.count


@pytest.mark.parametrize("ready", [Ready(), Priorities(1), Keys(1)], ids=["ready", "priorities", "keys"])
def test_what_is_cleared_is_gone_at_once_and_is_gone_through_in_steps(
    ready: Ready | Priorities | Keys,
) -> None:
    def put(number: int) -> None:
        run = Run(object(), [b"x"], number)
        if isinstance(ready, Keys):
            ready.add(run, 0, f"key {number}")
        else:
            (ready.requeue if number % 2 else ready.add)(run, number % 2)

    for number in range(100):
        put(number)
    ready.first()
    taken = ready.take(1)
    assert taken.first in (0, 1)
    cleared = ready.clear()
    assert (len(ready), [*ready]) == (0, [])
    put(200)
    runs = [*cleared]
    assert max(map(len, runs)) <= ITEMS
    assert {run.first for some in runs for run in some} == {*range(100)} - {taken.first}
    assert [run.first for run in ready] == [200]
    if isinstance(ready, Keys):
        ready.add(Run(object(), [b"y"], 300), 0, f"key {taken.first}")
        ready.first()
        assert (ready.take(1).first, ready.first()) == (200, None), "its key is still held"
