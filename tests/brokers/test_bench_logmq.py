"""`brokers bench logmq` measures what it says; how fast that is here is not for a test to say."""

from pathlib import Path

import pytest

from brokers.bench import load, logmq
from brokers.errors import ExitCode, Refusal


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logmq, "PRELOADED_BYTES", 200_000)
    monkeypatch.setattr(load, "WARM_UP_SECONDS", 0.02)


def test_every_mode_gives_rows_beside_a_named_baseline(tmp_path: Path) -> None:
    rows = logmq.bench(
        connections=3, window=4, topics=5, readers=2, seconds=0.05, rounds=1, size=1000, data_dir=tmp_path
    )
    cases = [(row.mode, row.connections, row.window) for row in rows]
    assert ("produce", 1, 1) in cases
    assert ("produce", 3, 4) in cases
    assert ("consume", 3, 4) in cases
    assert cases.count(("topics", 5, 4)) == 2
    assert ("fetch", 4, 1) in cases
    assert ("tail", 2, 4) in cases
    for row in rows:
        assert row.messages_per_second > 0
        assert 0 < row.median_us <= row.p99_us
        assert row.baseline in ("fdatasync", "redis", "one", "-")
        assert row.ratio is None or row.ratio >= 0
    first = next(row for row in rows if row.mode == "consume")
    assert (first.connections, first.window, first.baseline, first.ratio) == (1, 1, "one", 1.0)
    assert list(tmp_path.iterdir()) == []


def test_a_message_has_room_for_its_time() -> None:
    with pytest.raises(Refusal, match="24 bytes") as refused:
        logmq.bench(size=10)
    assert refused.value.code is ExitCode.USAGE


def test_answers_of_several_lines_are_counted_as_they_end() -> None:
    answers = load.lines(2)
    assert [answers(data) for data in (b"$1", b"5\r\n12", b"-3\r\n$2\r\n", b"x\r\n")] == [0, 0, 1, 1]


def test_round_trips_are_taken_oldest_first() -> None:
    from collections import deque

    trips = load.histogram()
    sent = deque([(2, 1_000_000), (3, 5_000_000)])
    load._record(trips, sent, 3, 10_000_000)
    assert list(sent) == [(2, 5_000_000)]
    assert trips.get_total_count() == 3
    assert abs(trips.get_max_value() - 9000) < 20
    assert abs(trips.get_min_value() - 5000) < 20
