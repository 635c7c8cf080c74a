"""A rate holds over any stretch of time, but for the second with which a bucket starts."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from shared.rates import Rate, TokenBucket


@given(
    st.floats(0.1, 1000),
    st.lists(st.tuples(st.floats(0, 5), st.integers(0, 2000)), min_size=1, max_size=50),
)
def test_no_stretch_has_more_than_the_rate_and_a_second_of_it(
    rate: float, steps: list[tuple[float, int]]
) -> None:
    bucket = TokenBucket(Rate(rate))
    now = 100.0
    passed = list[tuple[float, int]]()
    for seconds, wanted in steps:
        now += seconds
        count = min(wanted, bucket.allowance(now))
        bucket.take(count)
        passed.append((now, count))
    for at, (begin, _) in enumerate(passed):
        for end, _ in passed[at:]:
            total = sum(count for time, count in passed if begin <= time <= end)
            assert total <= max(rate, 1) + rate * (end - begin) + 1e-3


@given(st.floats(0.1, 1000))
@example(256.9999999999999)  # what lacks to a token is less than a clock tells
def test_whoever_waits_as_long_as_told_may_pass_one(rate: float) -> None:
    bucket = TokenBucket(Rate(rate))
    full = bucket.allowance(5.0)
    assert full == int(max(rate, 1.0) + 1e-9)
    bucket.take(full)
    assert bucket.allowance(5.0 + bucket.wait_seconds * 1.001) >= 1
    assert bucket.wait_seconds == 0


@pytest.mark.parametrize(
    "text", ["", "1", "0/s", "-1/s", "1/m", "1e3/s", "9" * 40 + "/s", "10000001/s", "\u0661/s"]
)
def test_what_is_no_rate_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="messages a second"):
        Rate.parse(text)


def test_a_rate_is_written_as_it_is_read() -> None:
    assert [str(Rate.parse(text)) for text in ("100/s", "0.5/s")] == ["100/s", "0.5/s"]
