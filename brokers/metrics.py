"""Makes Prometheus text from `Sample`s, which are read from plain ints at each scrape."""

import math
from collections.abc import Iterable, Iterator, Sequence
from time import thread_time

import prometheus_client
import trio
from prometheus_client.core import Metric
from prometheus_client.registry import Collector, CollectorRegistry

from shared.metrics import Sample
from shared.storage.store import StoreStatistics

CONTENT_TYPE = prometheus_client.CONTENT_TYPE_LATEST
TURN_SECONDS = 0.002


async def worked_out(samples: Iterable[Sample]) -> list[Sample]:
    """The same with their values, in turns: some add up what 50,000 queues have, which takes milliseconds."""
    found: list[Sample] = []
    began = thread_time()
    for each in samples:
        found.append(each.worked_out())
        if thread_time() - began > TURN_SECONDS:
            await trio.sleep(0)  # noqa: ASYNC115 - trio.lowlevel is the drivers' alone
            began = thread_time()
    return found


def render(samples: Sequence[Sample]) -> bytes:
    """Return the text of all samples, which are worked out, and of what the system knows of the process.

    It may run in any thread: 60,000 series take over a second.
    """
    return prometheus_client.generate_latest(_Read(samples))


_STORE_COUNTERS = {
    "commits": "Batches committed.",
    "inline_commits": "Of these, made without a thread.",
    "records": "Records appended.",
    "bytes": "Bytes appended.",
    "journal_batches": "Batches written to the journal.",
    "journal_syncs": "Syncs of the journal.",
    "checkpoints": "Checkpoints made.",
    "cold_reads": "Reads that had to wait for the disk.",
    "scrubbed_bytes": "Bytes read by the scrub.",
    "retained_away_bytes": "Bytes that retention gave back.",
}
_STORE_GAUGES = {
    "logs": "Logs that exist.",
    "journal_bytes": "Size of the journal on disk.",
    "pending_bytes": "Bytes that wait for the disk.",
    "unapplied_logs": "Logs whose own file could not be written; they are served from memory.",
    "open_files": "Handles of logs kept open.",
    "free_bytes": "Free on the file system of the data folder.",
    "full": "1: publishing has stopped for want of space.",
    "read_only": "1: a sync failed, nothing more is written.",
    "damaged_ranges": "Places found damaged since the start.",
    "sync_seconds_mean": "Mean time of a sync.",
    "sync_seconds_median": "Median time of the last 1000 syncs.",
    "sync_seconds_p99": "99 of 100 of these took no longer.",
    "sync_seconds_last": "Time of the last sync.",
    "retention_paused": "1: the wall clock jumped, retention by age waits.",
    "recovery_seconds": "Time that the start took to recover.",
}


def store_samples(statistics: StoreStatistics) -> Iterator[Sample]:
    """Yield the store's statistics as series `store_*`."""
    for name, text in _STORE_COUNTERS.items():
        yield Sample(f"store_{name}", getattr(statistics, name), text)
    for name, text in _STORE_GAUGES.items():
        yield Sample(f"store_{name}", float(getattr(statistics, name)), text, "gauge")


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
