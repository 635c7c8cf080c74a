"""Metrics: plain ints that their owners raise, and a table with their names and help texts.

A counter is declared where it is counted, as a field of a `Counts` class:

    @attrs.define(eq=False)
    class Counts:
        produced: int = counter("messages_produced_total", "Messages taken in.")
        refusals: Counter[str] = counter_by("code", "requests_refused_total", "Requests refused.")

A `Gauge` is computed when its value is read. `samples` returns both, so a protocol needs one table and no
code. Statistics that are made whole at each scrape declare a `total` or `current`, which `figures` returns.
"""

import math
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import accumulate
from operator import attrgetter
from typing import Any, Literal

import attrs


@attrs.frozen
class Sample:
    """One series at the moment of a scrape. `name` is without the `brokers_` prefix and has its unit last.

    `value`: a number, or a function that computes it. For a histogram: the sum of all observed values.
    `buckets`: (upper bound, number of values not above it); the last bound is inf.
    """

    name: str
    _value: float | Callable[[], float]
    help: str
    kind: Literal["counter", "gauge", "histogram"] = "counter"
    labels: tuple[tuple[str, str], ...] = ()
    buckets: tuple[tuple[float, int], ...] = ()

    @property
    def value(self) -> float:
        return self._value() if callable(self._value) else self._value

    def computed(self) -> "Sample":
        """This sample with its value."""
        return attrs.evolve(self, value=self.value) if callable(self._value) else self


class Histogram:
    """Counts values by upper bounds. Observing one takes 0.3 us: use it for batches and samples."""

    __slots__ = ("_bounds", "_counts", "_sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def observe(self, value: float, count: int = 1) -> None:
        """Count a value `count` times."""
        self._counts[bisect_left(self._bounds, value)] += count
        self._sum += value * count

    @property
    def mean(self) -> float:
        """The mean of all observed values; 0 before the first."""
        return self._sum / max(sum(self._counts), 1)

    def sample(self, name: str, help_: str, **labels: str) -> Sample:
        buckets = tuple(zip((*self._bounds, math.inf), accumulate(self._counts), strict=True))
        return Sample(name, self._sum, help_, "histogram", tuple(labels.items()), buckets)


def ack_sample(protocol: str, seconds: Histogram) -> Sample:
    """The histogram of how long a protocol's changes wait for the disk (`Store.ack_seconds`)."""
    text = "From the first change of a commit until it is durable and its publishers are answered."
    return seconds.sample("publish_ack_seconds", text, protocol=protocol)


def wait_sample(protocol: str, seconds: Histogram) -> Sample:
    """The histogram of how long messages wait in queues (`shared.queues.waits`)."""
    text = "From a message's arrival in its queue to its first delivery, of sampled messages."
    return seconds.sample("queue_wait_seconds", text, protocol=protocol)


@attrs.frozen
class Gauge:
    """A value that `read` computes from its owner (a broker, a service) at the scrape."""

    name: str
    help: str
    read: Callable[[Any], float]


def summed(figure: str, of: str) -> Callable[[Any], int]:
    """Reads the sum of a figure over all that a mapping of the owner has: `summed("depth", of="queues")`."""
    each = attrgetter(figure)
    return lambda owner: sum(map(each, getattr(owner, of).values()))


@attrs.frozen
class _Counter:
    """`label`: if set, the field is a dict with a series for each key, which `shown` turns into text."""

    name: str
    help: str
    label: str | None = None
    shown: Callable[[Any], str] = str


def counter(name: str, help_: str) -> Any:
    """A field of `Counts` that only grows."""
    return attrs.field(default=0, metadata={_Counter: _Counter(name, help_)})


def counter_by(label: str, name: str, help_: str, shown: Callable[[Any], str] = str) -> Any:
    """A field of `Counts` with a count for each key; keys are a few fixed words or numbers."""
    return attrs.field(factory=Counter, metadata={_Counter: _Counter(name, help_, label, shown)})


def total(help_: str) -> Any:
    """A field of statistics that only grows."""
    return attrs.field(metadata={"kind": "counter", "help": help_})


def current(help_: str) -> Any:
    """A field of statistics that may fall, too."""
    return attrs.field(metadata={"kind": "gauge", "help": help_})


def figures(of: str, statistics: Any) -> Iterator[Sample]:
    """The fields declared by `total` and `current`, by their own names, after what they are `of`."""
    for field in attrs.fields(type(statistics)):
        if "kind" in field.metadata:
            value = getattr(statistics, field.name)
            yield Sample(f"{of}_{field.name}", value, field.metadata["help"], field.metadata["kind"])


def samples(
    protocol: str,
    counts: Any,
    gauges: Iterable[Gauge],
    owner: object,
    labels: tuple[tuple[str, str], ...] = (),
) -> Iterator[Sample]:
    """The present values of the counters of `counts` and the `gauges` of `owner`, named after `protocol`.
    `labels`: of all of them."""
    for field in attrs.fields(type(counts)):
        declared: _Counter | None = field.metadata.get(_Counter)
        if declared is None:
            continue
        name, value = f"{protocol}_{declared.name}", getattr(counts, field.name)
        if declared.label is None:
            yield Sample(name, value, declared.help, labels=labels)
        else:
            for key, count in sorted(value.items()):
                own = (declared.label, declared.shown(key))
                yield Sample(name, count, declared.help, labels=(*labels, own))
    for gauge in gauges:
        yield Sample(f"{protocol}_{gauge.name}", partial(gauge.read, owner), gauge.help, "gauge", labels)
