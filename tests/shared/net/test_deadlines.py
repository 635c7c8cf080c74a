import math

import attrs
from hypothesis import given
from hypothesis import strategies as st

from shared.net.deadlines import STALE_MIN, Deadlines


@attrs.define(eq=False)
class Item:
    deadline: float = math.inf
    scheduled: float = math.inf


def test_renewing_a_deadline_adds_no_entries() -> None:
    deadlines: Deadlines[Item] = Deadlines()
    item = Item()
    for second in range(1000):
        deadlines.set(item, 30.0 + second)
    assert len(deadlines) == 1


def test_those_who_leave_do_not_pile_up_until_their_time() -> None:
    deadlines: Deadlines[Item] = Deadlines()
    for _ in range(10_000):
        item = Item()
        deadlines.set(item, 30.0)
        deadlines.forget(item)
        assert len(deadlines) <= 2 * STALE_MIN
    assert list(deadlines.due(31.0)) == []


def test_a_deadline_set_while_others_are_served_is_for_the_next_time() -> None:
    deadlines: Deadlines[Item] = Deadlines()
    items = [Item() for _ in range(3)]
    idle = [Item() for _ in range(50)]
    for each in idle:
        deadlines.set(each, 9.0)
    for each in items:
        deadlines.set(each, 1.0)
    for _ in range(2):
        served = []
        for each in deadlines.due(1.0):
            served.append(each)
            deadlines.set(each, 1.0)
        assert served == items
        assert deadlines.next == 1.0
    assert set(deadlines.due(9.0)) == {*items, *idle}


def test_who_stops_amid_those_that_are_due_is_given_the_rest_the_next_time() -> None:
    deadlines: Deadlines[Item] = Deadlines()
    items = [Item() for _ in range(4)]
    for each in items:
        deadlines.set(each, 1.0)
    due = deadlines.due(1.0)
    assert next(due) is items[0]
    deadlines.set(items[0], 1.0)
    assert next(due) is items[1]
    due.close()
    assert deadlines.next == 1.0
    assert list(deadlines.due(1.0)) == [items[2], items[3], items[0]]


@given(st.lists(st.tuples(st.integers(0, 5), st.one_of(st.integers(0, 50), st.just(math.inf), st.none()))))
def test_what_is_due_is_what_was_wanted(steps: list[tuple[int, float | None]]) -> None:
    deadlines: Deadlines[Item] = Deadlines()
    items = [Item() for _ in range(6)]
    wanted: dict[Item, float] = {}
    for number, deadline in steps:
        item = items[number]
        if deadline is None:
            deadlines.forget(item)
            wanted.pop(item, None)
        else:
            deadlines.set(item, deadline)
            wanted[item] = deadline
    for now in range(51):
        assert deadlines.next >= now or now == 0
        due = set(deadlines.due(now))
        assert due == {item for item, deadline in wanted.items() if deadline <= now}
        for item in due:
            del wanted[item]
