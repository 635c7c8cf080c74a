"""Keys: so many of a key at a time, priorities first, then order or turns; judged by a list and a counter."""

import tracemalloc
from collections import Counter

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from shared.queues.keys import Keys
from shared.queues.runs import Run

NAMES = ("", "a", "b", "c")


class Machine(RuleBasedStateMachine):
    """`waiting`: by number, the priority and key of what is ready; `held`: the same of what was taken;
    `put_off`: of what was tried, and waits for its time."""

    def __init__(self) -> None:
        super().__init__()
        self.next = -20  # numbers may be below 0
        self.waiting: dict[int, tuple[int, str]] = {}
        self.runs: dict[int, Run] = {}
        self.held: dict[int, tuple[int, str]] = {}
        self.put_off: dict[int, tuple[int, str]] = {}
        self.passed: Counter[str] = Counter()

    @initialize(per_key=st.integers(0, 3), fair=st.booleans(), most=st.integers(0, 2))
    def make(self, per_key: int, fair: bool, most: int) -> None:
        self.keys = Keys(per_key, fair=fair, priority_max=most)
        self.per_key, self.fair, self.most = per_key, fair, most

    @rule(key=st.sampled_from(NAMES), priority=st.integers(0, 3), count=st.integers(1, 3))
    def add(self, key: str, priority: int, count: int) -> None:
        run = Run(None, [b"%d" % number for number in range(self.next, self.next + count)], self.next)
        self.next += count
        self.runs[run.first] = run
        self.waiting |= {number: (min(priority, self.most), key) for number in run.numbers}
        self.keys.add(run, priority, key)

    def free(self) -> dict[int, tuple[int, str]]:
        """What may be taken."""
        held = Counter(key for _, key in self.held.values())
        if self.per_key == 1:  # in order: what was tried goes before the next of its key
            held.update(key for _, key in self.put_off.values())
        full = {key for key in NAMES if key and self.per_key and held[key] >= self.per_key}
        return {number: of for number, of in self.waiting.items() if of[1] not in full}

    @rule(most=st.integers(1, 3))
    def take(self, most: int) -> None:
        free = self.free()
        first = self.keys.first()
        if not free:
            assert first is None
            return
        assert first is not None
        top = max(priority for priority, _ in free.values())
        assert self.keys.first_priority == top
        run = self.keys.take(most)
        priority, key = free[run.first]
        assert priority == top, "a lower priority went first"
        assert run.bodies == [b"%d" % number for number in run.numbers]
        assert 1 <= len(run) <= most
        of_lane = [number for number, of in free.items() if of == (priority, key)]
        assert run.first == min(of_lane), "the order within a key"
        others = {of[1] for of in free.values() if of[0] == top} - {key}
        if self.fair:
            assert len(run) == 1 or not others
            self.passed[key] = 0
            self.passed = Counter({other: self.passed[other] + 1 for other in others})
            assert not others or max(self.passed.values()) < 2 * len(NAMES), (
                "a key waits for more than a turn"
            )
        else:
            assert run.first == min(number for number, of in free.items() if of[0] == top)
        for number in run.numbers:
            self.held[number] = self.waiting.pop(number)
        held = Counter(of[1] for of in self.held.values())
        assert not (self.per_key and key) or held[key] <= self.per_key

    @precondition(lambda self: len(self.waiting) > 2)
    @rule()
    def drop_next(self) -> None:
        first = self.keys.first()
        if first is None:
            return
        number = first.first
        of = self.waiting.pop(number)
        assert self.keys.take(1, keeps_turn=True).first == number
        self.keys.release(of[1])
        behind = [other for other, of_other in self.free().items() if of_other == of]
        if self.fair and behind:
            first = self.keys.first()
            assert first is not None
            assert first.first == min(behind), "it took a turn of its key"

    @precondition(lambda self: self.held)
    @rule(pick=st.integers(0, 99), back=st.booleans())
    def settle(self, pick: int, back: bool) -> None:
        number = sorted(self.held)[pick % len(self.held)]
        priority, key = self.held.pop(number)
        self.keys.release(key)
        if back:
            self.runs[number] = Run(None, [b"%d" % number], number)
            self.waiting[number] = priority, key
            self.keys.requeue(self.runs[number], priority, key)

    @precondition(lambda self: self.waiting)
    @rule(most=st.integers(1, 3))
    def drop_oldest(self, most: int) -> None:
        run = self.keys.take_oldest(most)
        assert run.first == min(self.waiting)
        assert 1 <= len(run) <= most
        assert run.bodies == [b"%d" % number for number in run.numbers]
        for number in run.numbers:
            _, key = self.waiting.pop(number)
        self.keys.release(key, len(run))

    @precondition(lambda self: self.held)
    @rule(pick=st.integers(0, 99))
    def wait(self, pick: int) -> None:
        number = sorted(self.held)[pick % len(self.held)]
        self.put_off[number] = of = self.held.pop(number)
        self.keys.release(of[1])
        self.keys.waits(number, of[1], tried=True)

    @precondition(lambda self: self.put_off)
    @rule(pick=st.integers(0, 99), comes=st.booleans())
    def wait_no_more(self, pick: int, comes: bool) -> None:
        number = sorted(self.put_off)[pick % len(self.put_off)]
        priority, key = self.put_off.pop(number)
        self.keys.waits_no_more(number, key)
        if comes:
            self.runs[number] = Run(None, [b"%d" % number], number)
            self.waiting[number] = priority, key
            self.keys.requeue(self.runs[number], priority, key)

    @precondition(lambda self: self.waiting)
    @rule(pick=st.integers(0, 99))
    def take_out(self, pick: int) -> None:
        number = sorted(self.waiting)[pick % len(self.waiting)]
        found = self.keys.find(number)
        assert found is not None
        assert number in found.numbers
        message = self.keys.take_out(number)
        assert message is not None
        assert (message.first, message.bodies) == (number, [b"%d" % number])
        assert self.keys.take_out(number) is None
        del self.waiting[number]

    @precondition(lambda self: self.waiting)
    @rule(pick=st.integers(0, 99))
    def remove(self, pick: int) -> None:
        number = sorted(self.waiting)[pick % len(self.waiting)]
        run = self.runs.get(number)
        if run is None or not run.bodies or run.first != number:
            return
        priority, key = self.waiting[number]
        for gone in self.keys.remove(run, priority, key).numbers:
            assert self.waiting.pop(gone) == (priority, key)

    @rule()
    def clear(self) -> None:
        gone = [number for runs in self.keys.clear() for run in runs for number in run.numbers]
        assert sorted(gone) == sorted(self.waiting)
        self.waiting.clear()
        self.passed.clear()

    @invariant()
    def counts_agree(self) -> None:
        if hasattr(self, "keys"):
            assert len(self.keys) == self.keys.count == len(self.waiting)
            assert self.keys.ready_keys == len({key for _, key in self.waiting.values()})
            shown = [(-self.waiting[number][0], number) for run in self.keys for number in run.numbers]
            assert sorted(shown) == shown
            assert len(shown) == len(self.waiting)
            if shown:
                assert self.keys.first_number() == min(self.waiting)


def test_any_order_of_calls_is_that_of_priorities_numbers_and_turns() -> None:
    run_state_machine_as_test(
        Machine,
        settings=settings(max_examples=40, stateful_step_count=40, suppress_health_check=list(HealthCheck)),
    )


@pytest.mark.parametrize("fair", [False, True])
def test_all_that_was_taken_and_released_leaves_nothing_behind(fair: bool) -> None:
    keys = Keys(1, fair=fair, priority_max=3)

    def pass_through(rounds: int) -> int:
        """Memory behind so many rounds, each of other keys."""
        for number in range(1000 * rounds):
            keys.add(Run(None, [b""], number), number % 4, f"key {rounds} {number % 100}")
            if number % 100 == 99:
                while (first := keys.first()) is not None:
                    assert keys.take(10) is first
                    keys.release(f"key {rounds} {first.first % 100}")
        assert (keys.count, keys.ready_keys) == (0, 0)
        return tracemalloc.get_traced_memory()[0]

    tracemalloc.start()
    try:
        before = pass_through(1)
        assert pass_through(10) < before + 20_000
    finally:
        tracemalloc.stop()


def test_one_tenants_many_wait_and_anothers_one_goes_in_its_turn() -> None:
    keys = Keys(fair=True)
    for number in range(100_000):
        keys.add(Run(None, [b""], number), 0, "large")
    keys.add(Run(None, [b"small"], 100_000), 0, "small")
    assert [keys.take(1).bodies for _ in range(2)] == [[b""], [b"small"]]


def test_what_a_key_had_unacknowledged_before_counts() -> None:
    keys = Keys(1)
    keys.take_over("a")
    keys.add(Run(None, [b""], 1), 0, "a")
    assert keys.first() is None
    keys.release("a")
    assert keys.first() is not None


def test_a_key_goes_on_where_an_earlier_message_came_while_another_held_it() -> None:
    keys = Keys(1)
    keys.add(Run(None, [b"second"], 2), 0, "a")
    keys.take_over("a")
    keys.add(Run(None, [b"first"], 1), 0, "a")
    assert keys.first() is None
    keys.release("a")
    assert keys.take(1).bodies == [b"first"]
