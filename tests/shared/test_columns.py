"""Rows that are alike are found a column at a time, as they would be one by one."""

from hypothesis import given
from hypothesis import strategies as st

from shared.columns import equal_rows


@given(
    st.integers(1, 6),
    st.integers(1, 300),
    st.integers(0, 5),
    st.data(),
    st.sets(st.integers(0, 5), max_size=6),
)
def test_as_many_rows_are_found_alike_as_one_by_one(
    stride: int, rows: int, at: int, data: st.DataObject, wanted: set[int]
) -> None:
    columns = [column for column in sorted(wanted) if column < stride]
    given_ = bytearray(at) + bytearray(stride) * rows
    for place in data.draw(st.lists(st.integers(0, len(given_) - 1), max_size=3)):
        given_[place] = 1
    first = given_[at : at + stride]
    alike = 0
    for row in range(rows):
        begin = at + row * stride
        if any(given_[begin + column] != first[column] for column in columns):
            break
        alike += 1
    most = data.draw(st.integers(1, rows))
    assert equal_rows(bytes(given_), at, stride, columns, most) == min(alike, most)
