"""Metrics are plain ints that their owners count; a `Sample` is how one is read at scrape time."""

from typing import Literal

import attrs


@attrs.frozen
class Sample:
    """One series at the moment of a scrape. `name` is without the `brokers_` prefix and has its unit last."""

    name: str
    value: float
    help: str
    kind: Literal["counter", "gauge"] = "counter"
    labels: tuple[tuple[str, str], ...] = ()
