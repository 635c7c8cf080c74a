"""A key is taken once while its message is there, and within its window."""

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from shared.queues.dedup import SeenKeys

KEYS = st.sampled_from("abc")


class Machine(RuleBasedStateMachine):
    """`known`: number, end of the window, and whether the message is still there."""

    def __init__(self) -> None:
        super().__init__()
        self.seen = SeenKeys()
        self.known: dict[str, tuple[int, int, bool]] = {}
        self.now = self.number = 0

    def forget(self) -> None:
        self.known = {key: of for key, of in self.known.items() if of[2] or of[1] > self.now}

    @rule(key=KEYS, window=st.integers(0, 10))
    def come(self, key: str, window: int) -> None:
        self.forget()
        found = self.known.get(key)
        assert self.seen.number_of(key, self.now) == (None if found is None else found[0])
        if found is None:
            self.number += 1
            until = self.now + window if window else 0
            self.seen.add(key, self.number, until)
            self.known[key] = self.number, until, True

    @rule(key=KEYS)
    def leave(self, key: str) -> None:
        if key in self.known:
            self.seen.leave(key)
            self.known[key] = (*self.known[key][:2], False)

    @rule(key=KEYS)
    def refused(self, key: str) -> None:
        if self.known.get(key, (0, 0, False))[2]:
            self.seen.undo(key)
            del self.known[key]

    @rule(by=st.integers(1, 8))
    def pass_time(self, by: int) -> None:
        self.now += by

    @rule()
    def restart(self) -> None:
        self.seen.forget(self.now)
        left = sorted(self.seen.left_keys())
        self.forget()
        assert left == sorted((key, n, until) for key, (n, until, inside) in self.known.items() if not inside)
        self.seen = SeenKeys()
        for key, (number, until, _) in self.known.items():
            self.seen.add(key, number, until if until > self.now else 0)
        for key, _, _ in left:
            self.seen.leave(key)

    @invariant()
    def nothing_else_is_known(self) -> None:
        self.forget()
        self.seen.forget(self.now)
        assert len(self.seen) == len(self.known)
        for key in "abc":
            number, _, inside = self.known.get(key, (0, 0, False))
            assert self.seen.waiting(key) == (number if inside else None)


def test_any_order_of_calls_knows_what_was_seen() -> None:
    run_state_machine_as_test(
        Machine,
        settings=settings(max_examples=25, stateful_step_count=40, suppress_health_check=list(HealthCheck)),
    )
