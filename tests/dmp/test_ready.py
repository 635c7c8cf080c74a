"""What is ready: by priority, then in order of arrival, also what comes back."""

from hypothesis import given
from hypothesis import strategies as st

from dmp.memory import Memory
from dmp.message import Message
from dmp.row import ReadyMessages, Row
from shared.budget import unbounded
from shared.queues.timers import Timers
from tests.dmp.world import head

MOST = 3


def message(number: int, priority: int) -> Message:
    return Message(head(properties=b"\x08\x00" + bytes((priority,))), b"", number)


def place(one: Message) -> tuple[int, int]:
    return -min(one.head.noted.priority, MOST), one.number


@given(st.lists(st.tuples(st.sampled_from(["come", "come", "go", "back"]), st.integers(0, 9)), max_size=60))
def test_the_highest_comes_first_and_what_comes_back_has_its_old_place(steps: list[tuple[str, int]]) -> None:
    rows = ReadyMessages(MOST)
    model: list[Message] = []
    away: list[Message] = []
    for number, (action, priority) in enumerate(steps):
        if action == "come":
            rows.add([message(number, priority)])
            model = sorted([*model, message(number, priority)], key=place)
        elif action == "go" and model:
            assert rows.first().number == model[0].number
            away += rows.take(1)
            assert away[-1].number == model.pop(0).number
        elif action == "back" and away:
            back, away = away[::-1], []
            rows.requeue(back)
            model = sorted([*model, *back], key=place)
        assert len(rows) == len(model)
        assert [one.number for one in rows] == [one.number for one in model]
        if model:
            assert rows.first_number() == min(one.number for one in model)
    while model:
        taken = rows.take(3)
        assert [one.number for one in taken] == [one.number for one in model[: len(taken)]]
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
    row = Row(Memory(1 << 20, 1 << 20, unbounded(), Timers(lambda: 0.0, print)), 0)
    messages = [Message(head(size=size), bytes(size), number) for number, size in enumerate(sizes)]
    if returned:
        row.put_back(messages)
    else:
        row.add(messages, may_cool=False)
    taken: list[Message] = []
    while len(row):
        some = row.take(most, room_bytes)
        assert 1 <= len(some) <= most
        assert sum(message.head.body_bytes for message in some[:-1]) <= room_bytes
        taken += some
    assert [message.number for message in taken] == [*range(len(sizes))]
    assert row.body_bytes == row.cost_bytes == 0
