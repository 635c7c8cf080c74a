"""The benchmark is run for what it says, not for how fast it is here."""

from brokers.bench.routing import bench


def test_the_benchmark_measures_every_call_and_some_memory() -> None:
    rows = {row.measure: row for row in bench(subscriptions=3000, subscribers=50, names=200)}
    assert rows["subscribe"].samples == 3000
    assert rows["match of any number, no cache"].samples == 200
    assert rows["drop, a subscription"].samples == 50
    assert all((row.median is None) == (row.samples == 0) for row in rows.values())
