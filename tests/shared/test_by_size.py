"""Who holds the most is found."""

from hypothesis import given
from hypothesis import strategies as st

from shared.by_size import BySize


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 300)), min_size=1))
def test_who_is_found_holds_at_least_half_of_the_most(steps: list[tuple[int, int]]) -> None:
    holders: BySize[int] = BySize()
    model: dict[int, int] = {}
    for holder, size in steps:
        holders[holder] = size
        model[holder] = size
        assert holders.total == sum(model.values())
        assert [holders[each] for each in model] == list(model.values())
        if any(model.values()):
            assert model[holders.large()] * 2 > max(model.values())
