"""What was done of late: rates of a minute, and the lines of the charts."""

from collections.abc import Iterator
from types import SimpleNamespace

import trio
import trio.testing

from brokers.admin.rates import BEAT_SECONDS, HISTORY_BEATS, Rates
from brokers.page import shown
from logmq.metrics import GAUGES, Counts
from shared.metrics import Sample, samples


class Counting:
    """A server whose counters grow by what the test says in each beat."""

    def __init__(self) -> None:
        self.count = 0.0
        self.open = 2

    def samples(self) -> Iterator[Sample]:
        yield Sample("x_messages_produced_total", self.count, "In.")
        yield Sample("net_bytes_in_total", 10 * self.count, "Bytes.", labels=(("protocol", "x"),))
        yield Sample("connections", self.open, "Open.", "gauge", (("protocol", "x"),))
        yield Sample("budget_bytes", 7, "Memory.", "gauge", (("account", "process"),))


async def test_what_a_protocol_cannot_count_is_no_zero() -> None:
    """LogMQ's readers are sent bytes of a log."""
    broker = SimpleNamespace(topics=(), groups=(), writers=(), counts=Counts())
    rates = Rates(lambda: samples("logmq", broker.counts, GAUGES, broker))
    assert rates.overview()["flows"] == {"messages_in": {"logmq": 0}, "processor": {"": 0}}
    assert shown.rate(None) == shown.NOTHING


async def test_the_history_has_the_lines_of_a_quarter_of_an_hour_and_no_more(
    autojump_clock: trio.testing.MockClock,
) -> None:
    counting = Counting()
    rates = Rates(counting.samples)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(rates.run)
        await trio.sleep(BEAT_SECONDS / 2)
        for _ in range(HISTORY_BEATS + 5):
            counting.count += 100
            await trio.sleep(BEAT_SECONDS)
        counting.count = 0  # its protocol has started again
        await trio.sleep(BEAT_SECONDS)
        nursery.cancel_scope.cancel()
    found = rates.history()
    assert len(found["times"]) == HISTORY_BEATS
    assert found["lines"]["messages_in"]["x"][-2:] == [20, 0]
    assert found["lines"]["bytes_in"]["x"][-2] == 200
    assert found["lines"]["connections"] == {"x": [2] * HISTORY_BEATS}
    assert found["lines"]["memory"][""][-1] == 7
    assert set(found["lines"]["processor"]) == {""}


async def test_only_what_is_later_is_told_again(autojump_clock: trio.testing.MockClock) -> None:
    rates = Rates(Counting().samples)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(rates.run)
        await trio.sleep(3.5 * BEAT_SECONDS)
        nursery.cancel_scope.cancel()
    times = rates.history()["times"]
    assert len(times) == 3
    assert rates.history(times[-1]) == {"seconds": BEAT_SECONDS, "times": [], "lines": {}}
