"""The garbage collector sets apart what it has walked long, and walks all of it again now and then."""

import subprocess
import sys
from collections.abc import Callable

import pytest

from brokers.host import collector
from brokers.host.collector import FEW, LONG_SECONDS, Collector


class FakeGc:
    """`walked`: what the next full collection walks; `frozen`: what is set apart."""

    def __init__(self) -> None:
        self.callbacks: list[Callable[[str, dict[str, int]], None]] = []
        self.walked = self.frozen = self.counted = 0
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

    def get_freeze_count(self) -> int:
        self.counted += 1
        return self.frozen


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeGc:
    """A collection takes as long as what it walks; `seconds` pass between two."""
    made = FakeGc()
    made.seconds = 0.0  # type: ignore[attr-defined]
    times = iter(range(1 << 30))

    def perf_counter() -> float:
        return next(times) % 2 * made.walked / FEW * LONG_SECONDS

    monkeypatch.setattr(collector, "perf_counter", perf_counter)
    monkeypatch.setattr(collector, "monotonic", lambda: made.seconds)  # type: ignore[attr-defined]
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


def test_garbage_in_cycles_is_found_also_where_it_was_set_apart() -> None:
    """With the real collector, in a process of its own."""
    text = """
import gc, weakref
from brokers.host import collector
collector.LONG_SECONDS, collector.WHOLE_SECONDS, collector.FEW = 0.0, -1.0, -1_000_000
class Thing: pass
its = collector.Collector()
its.install()
thing = Thing()
thing.itself = thing
found = weakref.ref(thing)
gc.collect()
assert gc.is_tracked(thing)
del thing
gc.collect()
gc.collect()
print(found() is None)
its.remove()
print(gc.get_freeze_count())
"""
    run = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=True, timeout=60)
    assert run.stdout == "True\n0\n"
