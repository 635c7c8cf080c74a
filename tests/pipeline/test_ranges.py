"""What is read of logs, cut into tasks."""

from contextlib import closing
from pathlib import Path

import pytest

from brokers.pipeline.source import ranges
from brokers.pipeline.source.folder import FolderReader
from brokers.pipeline.source.ranges import LogRange
from tests.pipeline.folders import (
    RECORDS,
    entries_of,
    options,
    values,
    whole,
)


def test_a_read_is_cut_at_entries_into_as_many_tasks_as_asked(folder: Path) -> None:
    span = whole(folder)
    starts = {entry.offset for entry in entries_of(folder)}
    with closing(FolderReader(str(folder), "logmq")) as opened:
        shares = ranges.shares([span], 4, opened.cut)
    pieces = [piece for share in shares for piece in share]
    assert len(shares) == 4
    assert {piece.start for piece in pieces} <= starts
    assert values(options(folder), *pieces) == RECORDS


@pytest.mark.parametrize(
    ("length", "asked", "tasks"), [(999, 2, 2), (1000, 2, 2), (2001, 2, 4), (2500, 3, 3)]
)
def test_tasks_are_a_multiple_of_what_was_asked_for_and_of_one_size(
    monkeypatch: pytest.MonkeyPatch, length: int, asked: int, tasks: int
) -> None:
    monkeypatch.setattr(ranges, "SPLIT_BYTES_LEAST", 1)
    span = LogRange("here", "a", 1, 0, length)
    shares = ranges.shares([span], asked, lambda span, offset: offset, size=1000)
    sizes = [piece.length for share in shares for piece in share]
    assert len(sizes) == len(shares) == tasks
    assert sum(sizes) == length
    assert max(sizes) - min(sizes) <= 1


def test_pieces_are_all_of_a_log_wherever_a_place_says_it_can_be_cut() -> None:
    span = LogRange("here", "a", 1, 5, 105)
    places = iter([5, 3, 30, 20, 105, 104, 200, 40, 41])
    shares = ranges.shares([span, LogRange("here", "b", 1, 7, 7)], None, lambda *_: next(places), size=10)
    assert [(piece.start, piece.stop) for share in shares for piece in share] == [
        (5, 30),
        (30, 104),
        (104, 105),
    ]


def test_small_logs_share_a_task() -> None:
    small = [LogRange("here", str(number), 1, 0, 1000) for number in range(500)]
    assert ranges.shares(small, None, lambda span, offset: span.start) == [tuple(small)]
    assert ranges.shares([], None, lambda span, offset: span.start) == []
