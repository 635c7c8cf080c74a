"""A table is laid out to a width: whole words, what matters first."""

import hypothesis.strategies as st
from hypothesis import given

from brokers.commands.render import Column, lay_out


def test_a_word_is_never_broken_but_cut_where_it_alone_is_too_long() -> None:
    laid = lay_out([Column("name", ["n" * 30]), Column("text", ["x" * 100])], 70)
    assert laid.cut
    assert laid.lines[1] == "n" * 30 + "  " + "x" * 37 + "…"


def test_the_column_by_which_rows_are_sorted_is_left_out_after_all_others() -> None:
    columns = [Column(name, ["x" * 10]) for name in ("name", "ready", "bytes")]
    assert lay_out(columns, 22, kept="bytes").lines[0].split() == ["name", "bytes"]
    assert lay_out(columns, 22).lines[0].split() == ["name", "ready"]


texts = st.lists(st.text(st.sampled_from("ab ,"), max_size=60), min_size=3, max_size=3)


@given(
    st.lists(st.tuples(st.sampled_from(["n", "name", "a_long_name"]), texts), min_size=1, max_size=8),
    st.integers(16, 100),
)
def test_no_line_is_longer_than_the_terminal(columns: list[tuple[str, list[str]]], width: int) -> None:
    given_ = [Column(f"{name}{number}", cells) for number, (name, cells) in enumerate(columns)]
    laid = lay_out(given_, width)
    assert max(map(len, laid.lines)) <= width
    kept = [column.name for column in given_ if column.name not in laid.left_out]
    assert laid.lines[0].split() == kept
