"""Makes Prometheus text from `Sample`s, which are read from plain ints at each scrape."""

import math
from collections.abc import Iterable, Iterator, Sequence

import prometheus_client
from prometheus_client.core import Metric
from prometheus_client.registry import Collector, CollectorRegistry

from shared.metrics import Sample
from shared.task_turns import TaskTurn

CONTENT_TYPE = prometheus_client.CONTENT_TYPE_LATEST


async def computed(samples: Iterable[Sample]) -> list[Sample]:
    """The samples with their values. Others have their turn in between: some add up what 50,000 queues have,
    which takes milliseconds."""
    read: list[Sample] = []
    turn = TaskTurn()
    for each in [*samples]:  # at once: between turns others change what is read
        read.append(each.computed())
        if turn.over_now():
            await turn.others()
    return read


def render(samples: Sequence[Sample]) -> bytes:
    """Return the text of all samples, which are computed, and of what the system knows of the process.

    It may run in any thread: 60,000 series take over a second.
    """
    return prometheus_client.generate_latest(_Read(samples))


class _Read(Collector):
    """Gives samples that were read already to a registry."""

    def __init__(self, samples: Iterable[Sample]) -> None:
        self._samples = samples

    def collect(self) -> Iterator[Metric]:
        families: dict[str, Metric] = {}
        for sample in self._samples:
            name = "brokers_" + sample.name.removesuffix("_total")
            family = families.get(name)
            if family is None:
                family = families[name] = Metric(name, sample.help, sample.kind)
            labels = dict(sample.labels)
            for bound, count in sample.buckets:
                le = "+Inf" if bound == math.inf else str(float(bound))
                family.add_sample(f"{name}_bucket", {**labels, "le": le}, count)
            if sample.kind == "histogram":
                family.add_sample(f"{name}_count", labels, sample.buckets[-1][1])
            suffix = {"counter": "_total", "gauge": "", "histogram": "_sum"}[sample.kind]
            family.add_sample(name + suffix, labels, sample.value)
        yield from families.values()
        yield from _PROCESS.collect()


# Memory, processor time, descriptors, start time: process_*, under the names every dashboard knows.
_PROCESS = prometheus_client.ProcessCollector(registry=CollectorRegistry())
