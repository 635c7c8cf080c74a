"""`brokers bench net` measures what it says; how fast that is here is not for a test to say."""

import json
import sys

import attrs
import pytest

from brokers.bench import net


def test_both_drivers_are_measured_with_many_clients_and_with_one() -> None:
    rows = net.run(clients=5, seconds=0.05, rounds=1)
    assert [(row.driver, row.clients) for row in rows] == [("poll", 5), ("task", 5), ("poll", 1), ("task", 1)]
    for row in rows:
        assert json.loads(json.dumps(attrs.asdict(row)))["driver"] == row.driver
        assert row.requests_per_second > 0
        assert 0 < row.round_trip_median_us <= row.round_trip_p99_us
    assert rows[1].ratio == rows[3].ratio == 1
    assert rows[0].ratio == pytest.approx(
        rows[0].requests_per_second / rows[1].requests_per_second, abs=0.01, rel=0.05
    )


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_idle_connections_are_weighed() -> None:
    row = net.measure_idle("poll", 200, 0.05)
    assert row.idle_connections == 200
    assert 0 < row.bytes_each < 10_240, "PROMISES: under 10 KiB each"
