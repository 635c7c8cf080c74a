"""What is ready: by priority, then in order of arrival, also what comes back."""

from hypothesis import given
from hypothesis import strategies as st

from dmp.message import Message
from dmp.row import Priorities, ReadyRow
from tests.dmp.world import head

MOST = 3


def message(number: int, priority: int) -> Message:
    return Message(head(properties=b"\x08\x00" + bytes((priority,))), b"", number)


def place(one: Message) -> tuple[int, int]:
    return -min(one.head.noted.priority, MOST), one.number


@given(st.lists(st.tuples(st.sampled_from(["come", "come", "go", "back"]), st.integers(0, 9)), max_size=60))
def test_the_highest_comes_first_and_what_comes_back_has_its_old_place(steps: list[tuple[str, int]]) -> None:
    rows = Priorities(MOST)
    model: list[Message] = []
    away: list[Message] = []
    for number, (action, priority) in enumerate(steps):
        if action == "come":
            rows.extend([message(number, priority)])
            model = sorted([*model, message(number, priority)], key=place)
        elif action == "go" and model:
            assert rows[0].number == model[0].number
            away.append(rows.popleft())
            assert away[-1].number == model.pop(0).number
        elif action == "back" and away:
            back, away = sorted(away, key=lambda one: one.number), []
            rows.put_back(back)
            model = sorted([*model, *back], key=place)
        assert len(rows) == len(model)
        assert [one.number for one in rows] == [one.number for one in model]
        if model:
            assert rows.first_number() == min(one.number for one in model)
    rows.clear()
    assert not rows


@given(st.sets(st.integers(0, 30)), st.sets(st.integers(0, 30)))
def test_a_row_takes_back_what_was_in_it(those: set[int], out: set[int]) -> None:
    row = ReadyRow(message(number, 0) for number in sorted(those - out))
    row.put_back([message(number, 0) for number in sorted(those & out)])
    assert [one.number for one in row] == sorted(those)
