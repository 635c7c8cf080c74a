"""What is ready: by priority, then in order of arrival, also what comes back; and where records stand."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dmp.memory import Memory
from dmp.queue_log import RecordPlaces
from dmp.row import Row
from shared.budget import unbounded
from shared.queues.priorities import Priorities
from shared.queues.runs import Ready, Run
from shared.queues.timers import Timers
from tests.dmp.world import head

RECORD_BYTES = 10
HEADS = [head(properties=b"\x08\x00" + bytes((priority,))) for priority in range(10)]


def numbers(runs: Any) -> list[int]:
    return [number for run in runs for number in run.numbers]


@given(
    st.lists(
        st.tuples(st.sampled_from(["come", "come", "go", "back"]), st.integers(0, 9), st.integers(1, 4)),
        max_size=60,
    ),
    st.sampled_from([0, 3]),
)
def test_the_highest_comes_first_and_what_comes_back_has_its_old_place(
    steps: list[tuple[str, int, int]], most: int
) -> None:
    rows = Priorities(most) if most else Ready()
    model: list[tuple[int, int]] = []
    away: list[tuple[int, Run]] = []
    following = 0
    for action, priority, count in steps:
        level = min(priority, most)
        if action == "come":
            rows.add(Run(HEADS[priority], [b""] * count, following), priority)
            model = sorted([*model, *[(-level, number) for number in range(following, following + count)]])
            following += count
        elif action == "go" and model:
            assert rows.first().first == model[0][1]
            run = rows.take(count)
            assert 1 <= len(run) <= count
            away += [(run.head.noted.priority, run)]
            assert [*run.numbers] == [number for _, number in model[: len(run)]]
            del model[: len(run)]
        elif action == "back" and away:
            back, away = away[::-1], []
            for of, run in back:
                rows.requeue(run, of)
                model = sorted([*model, *[(-min(of, most), number) for number in run.numbers]])
        assert len(rows) == len(model)
        assert numbers(rows) == [number for _, number in model]
        if model:
            assert rows.first_number() == min(number for _, number in model)
    while model:
        taken = rows.take(3)
        assert [*taken.numbers] == [number for _, number in model[: len(taken)]]
        del model[: len(taken)]
    assert not rows


@given(
    st.lists(st.integers(0, 40), min_size=1, max_size=20),
    st.integers(1, 20),
    st.integers(0, 100),
    st.booleans(),
)
def test_who_takes_gets_one_message_more_than_fits_in_his_room_and_the_rest_stays(
    sizes: list[int], most: int, room_bytes: int, returned: bool
) -> None:
    row = Row(Memory(1 << 20, 1 << 20, unbounded(), Timers(lambda: 0.0, print)), print, Ready())
    heads = {size: head(size=size) for size in sizes}
    runs = [Run(heads[size], [bytes(size)], number) for number, size in enumerate(sizes)]
    if returned:
        row.put_back(runs)
    else:
        for run in runs:
            row.add(run, may_cool=False)
    taken: list[Run] = []
    while len(row):
        some = [message for run in row.take(most, room_bytes) for message in run.singles()]
        assert 1 <= len(some) <= most
        body_bytes = [len(message.bodies[0]) for message in some]
        assert sum(body_bytes[:-1]) <= room_bytes
        assert len(some) == most or not len(row) or sum(body_bytes) > room_bytes
        taken += some
    assert numbers(taken) == [*range(len(sizes))]
    assert row.body_bytes == row.cost_bytes == 0


@given(
    st.lists(st.tuples(st.sampled_from(["add", "add", "remove", "copy"]), st.integers(1, 9)), max_size=60),
    st.data(),
)
def test_places_know_where_each_record_is_and_the_lowest(
    steps: list[tuple[str, int]], data: st.DataObject
) -> None:
    places = RecordPlaces()
    model: dict[int, int] = {}
    following = end = 0
    for action, count in steps:
        if action == "add":
            following += data.draw(st.integers(0, 2))
            end += data.draw(st.sampled_from([0, 0, 7]))  # what is between is no message
            places.add(Run(None, [b""] * count, following, 0, end, RECORD_BYTES))
            model.update({following + at: end + at * RECORD_BYTES for at in range(count)})
            following += count
            end += count * RECORD_BYTES
        elif action == "remove":
            first = data.draw(st.integers(0, following))
            gone = [model.pop(number, None) for number in range(first, first + count)]
            assert places.remove(first, first + count) == sum(place is not None for place in gone)
        elif model:
            number = data.draw(st.sampled_from(sorted(model)))
            places.move(number, end)
            model[number] = end
            end += RECORD_BYTES
        assert bool(places) == bool(model)
        assert places.lowest == min(model.values(), default=float("inf"))
        assert [places.place_of(number) for number in range(following + 1)] == [
            model.get(number) for number in range(following + 1)
        ]


@pytest.mark.parametrize("most", [0, 1])
def test_two_runs_of_one_number_come_back_and_both_are_there(most: int) -> None:
    rows = Priorities(most) if most else Ready()
    for body in (b"held", b"of a feed"):  # which numbers anew what it gives back
        rows.requeue(Run(HEADS[0], [body], 5), 0)
    assert {rows.take(9).bodies[0], rows.take(9).bodies[0]} == {b"held", b"of a feed"}


@pytest.mark.parametrize(("count", "stretch"), [(1, 1), (64, 64), (300, 64)])
def test_no_more_of_a_log_is_read_than_is_written_again_at_once(count: int, stretch: int) -> None:
    places = RecordPlaces()
    places.add(Run(None, [b""] * count, 5, 0, 1000, RECORD_BYTES))
    assert places.stretch(1000) == stretch * RECORD_BYTES
