"""The garbage collector sets apart what it has walked long."""

import subprocess
import sys
from collections.abc import Callable

import pytest

from brokers.host import collector
from brokers.host.collector import LONG_SECONDS, Collector

FEW = 100_000
"""So many objects are walked in LONG_SECONDS."""


class FakeGc:
    """`walked`: what the next full collection walks; `frozen`: what is set apart."""

    def __init__(self) -> None:
        self.callbacks: list[Callable[[str, dict[str, int]], None]] = []
        self.walked = self.frozen = 0
        self.thresholds = 700, 10, 10
        self.enabled = True

    def get_threshold(self) -> tuple[int, int, int]:
        return self.thresholds

    def set_threshold(self, *thresholds: int) -> None:
        self.thresholds = thresholds  # type: ignore[assignment]

    def collect(self, generation: int = 2) -> int:
        for callback in self.callbacks:
            callback("start", {"generation": 2})
            callback("stop", {"generation": 2})
        return 0

    def disable(self) -> None:
        self.enabled = False

    def enable(self) -> None:
        self.enabled = True

    def freeze(self) -> None:
        self.frozen += self.walked
        self.walked = 0

    def unfreeze(self) -> None:
        self.walked += self.frozen
        self.frozen = 0


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeGc:
    """A collection takes as long as what it walks."""
    made = FakeGc()
    times = iter(range(1 << 30))

    def perf_counter() -> float:
        return next(times) % 2 * made.walked / FEW * LONG_SECONDS

    monkeypatch.setattr(collector, "perf_counter", perf_counter)
    return made


def test_what_a_long_collection_has_walked_is_not_walked_again(fake: FakeGc) -> None:
    Collector(fake).install()
    fake.walked = FEW // 2
    fake.collect()
    assert fake.frozen == 0
    fake.walked = FEW * 2
    fake.collect()
    assert (fake.walked, fake.frozen) == (0, FEW * 2)


def test_nothing_is_collected_while_the_process_starts(fake: FakeGc) -> None:
    its = Collector(fake)
    its.prepare()
    assert not fake.enabled
    its.install()
    assert fake.enabled
    its.remove()
    its.prepare()
    its.remove()  # the start has failed
    assert fake.enabled


def test_the_collector_is_as_it_was_where_the_server_has_ended() -> None:
    """With the real one, in a process of its own."""
    text = """
import gc
from brokers.host.collector import Collector
before = gc.get_threshold(), gc.callbacks[:]
its = Collector()
its.prepare()
its.install()
assert gc.get_freeze_count() > 0
its.remove()
print((gc.get_threshold(), gc.callbacks) == before, gc.get_freeze_count(), gc.isenabled())
"""
    run = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=True, timeout=60)
    assert run.stdout == "True 0 True\n"
