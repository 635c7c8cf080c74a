"""The judge of recorded logs: what it lets pass, and what it does not."""

import math

from tests.trials.recorded_judge import RecordedBook, Run, Sent, joined, numbered


def book() -> RecordedBook:
    """Two servers were sent ten messages each, one a second, and counted each half a second later."""
    return RecordedBook(
        [
            Sent(
                first,
                [(n, n + 1) for n in range(first, first + 10)],
                [(n + 0.5, n + 1 - first) for n in range(first, first + 10)],
            )
            for first in (0, 10)
        ]
    )


def judged(*runs: Run, until: float = math.inf) -> list[str]:
    return book().judge(runs, until).faults


def test_all_of_it_is_in_order_and_so_is_a_lost_end_and_a_marked_gap() -> None:
    assert judged(Run(10, 0), Run(10, 10)) == []
    assert judged(Run(7, 0), Run(10, 10)) == []
    assert judged(Run(4, 0), Run(3), Run(10, 10)) == [], "the end is lost behind a gap"
    assert judged(Run(2, 0), Run(3), Run(5, 5), Run(4, 10), Run(6)) == []
    assert judged(Run(2, 0), Run(3), Run(7, 13)) == [], "a gap that the second server begins with"
    assert judged(Run(10, 0), Run(5, 10), until=14.5) == []
    assert judged(*numbered(range(20))) == []
    verdict = book().judge([Run(10, 0), Run(6, 10)], 14.5)
    assert (verdict.kept, verdict.extra, verdict.lost, verdict.oldest_lost) == (5, 1, 4, 16)


def test_a_hole_is_a_fault_and_so_is_what_came_twice_or_was_never_sent() -> None:
    assert judged(Run(2, 0), Run(5, 5), Run(10, 10))
    assert judged(Run(2, 0), Run(2), Run(5, 5), Run(10, 10))
    assert judged(Run(10, 0), Run(10, 10), Run(1, 19))
    assert judged(Run(10, 0), Run(11, 10))
    assert judged(Run(10, 0), Run(5, 10), until=15.5)
    assert judged(Run(10, 0), until=10.5)


def test_what_was_shown_stays() -> None:
    those = book()
    assert those.judge([Run(7, 0), Run(6, 10)], 14.5).faults == []
    those.sent.append(Sent(20, [(20, 25)], [(20, 5)]))
    assert those.judge([Run(7, 0), Run(6, 10), Run(5, 20)], 20).faults == []
    assert those.judge([Run(7, 0), Run(5, 10), Run(5, 20)], 20).faults
    assert joined([Run(1), Run(2), Run(3, 5), Run(2, 8), Run(1, 0)]) == [Run(3), Run(5, 5), Run(1, 0)]
