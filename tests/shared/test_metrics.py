"""A metric is declared once, beside what it counts."""

import attrs

from shared.metrics import Gauge, Sample, counter, counter_by, samples


@attrs.define(eq=False)
class Counts:
    taken: int = counter("taken_total", "Taken.")
    faults: dict[int, int] = counter_by("fault", "faults_total", "Faults.", lambda number: f"F{number}")
    inside: int = 0


def test_what_is_declared_is_read_in_order_and_what_is_not_is_not_shown() -> None:
    counts = Counts(taken=3, faults={2: 1, 1: 7}, inside=5)
    gauges = (Gauge("open", "Open.", lambda owner: len(owner)),)
    assert [each.computed() for each in samples("echo", counts, gauges, [1, 2])] == [
        Sample("echo_taken_total", 3, "Taken."),
        Sample("echo_faults_total", 7, "Faults.", labels=(("fault", "F1"),)),
        Sample("echo_faults_total", 1, "Faults.", labels=(("fault", "F2"),)),
        Sample("echo_open", 2, "Open.", "gauge"),
    ]
    assert Counts().faults is not Counts().faults
