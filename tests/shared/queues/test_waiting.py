"""What waits for its time comes out once, at it, in order, however often it was put off."""

import math
import tracemalloc

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from shared.queues import waiting
from shared.queues.waiting import Waiting


class Machine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.waiting: Waiting[str] = Waiting()
        self.model: dict[int, tuple[int, str]] = {}
        self.now = 0
        self.named = 0

    @rule(number=st.integers(0, 9), due=st.integers(0, 30))
    def add(self, number: int, due: int) -> None:
        self.named += 1
        self.waiting.add(number, due, str(self.named))
        self.model[number] = due, str(self.named)

    @rule(number=st.integers(0, 9))
    def take(self, number: int) -> None:
        _, item = self.model.pop(number, (0, None))
        assert self.waiting.get(number) == item
        assert self.waiting.take(number) == item

    @rule(now=st.integers(0, 30))
    def pass_time(self, now: int) -> None:
        due = sorted((due, number, item) for number, (due, item) in self.model.items() if due <= now)
        for _, number, item in due:
            assert self.waiting.pop(now) == (number, item)
            del self.model[number]
        assert self.waiting.pop(now) is None

    @invariant()
    def all_is_there(self) -> None:
        assert len(self.waiting) == len(self.model)
        shown = sorted(self.waiting)
        assert shown == sorted((number, due, item) for number, (due, item) in self.model.items())
        assert self.waiting.next == min([due for due, _ in self.model.values()], default=math.inf)


@pytest.fixture(autouse=True, params=[0, waiting.STALE_MIN])
def stale(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting, "STALE_MIN", request.param)


def test_any_order_of_calls_gives_each_item_at_its_time() -> None:
    run_state_machine_as_test(
        Machine,
        settings=settings(max_examples=25, stateful_step_count=40, suppress_health_check=list(HealthCheck)),
    )


def test_an_item_takes_no_more_than_200_bytes_beside_itself() -> None:
    item = b"the same for all"
    tracemalloc.start()
    try:
        many: Waiting[bytes] = Waiting()
        for number in range(1 << 52, (1 << 52) + 20_000):
            many.add(number, number % 7919 + 1_000_000, item)
        size, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert size < 200 * len(many)


def test_what_is_put_off_again_and_again_leaves_little_behind() -> None:
    many: Waiting[bytes] = Waiting()
    tracemalloc.start()
    try:
        for due in range(20_000):
            many.add(1, due, b"")
            many.add(2, due, b"")
            many.take(2)
        size, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert size < 60_000
