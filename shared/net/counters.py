"""What the network counts: plain ints, added to on the way and read at scrape time."""

from collections import Counter
from collections.abc import Iterable

import attrs

from shared.metrics import Sample, counter, counter_by, samples


@attrs.define(eq=False)
class NetCounters:
    """The counters of one group of listeners (one protocol). Reasons are a few fixed words."""

    accepted: int = counter("accepted_total", "Connections accepted.")
    bytes_in: int = counter(
        "bytes_in_total", "Bytes read from connections, and of datagrams that are allowed."
    )
    bytes_out: int = counter("bytes_out_total", "Bytes the system took from outboxes.")
    crashes: int = counter(
        "crashes_total", "Sessions that failed with a bug; each closed its connection only."
    )
    deadlines: int = counter("deadlines_total", "Deadlines that passed.")
    dropped_chunks: int = counter("dropped_chunks_total", "Chunks that slow consumers lost.")
    dropped_bytes: int = counter("dropped_bytes_total", "Bytes that slow consumers lost.")
    emfile: int = counter("emfile_total", "Times that accepting paused for want of a descriptor.")
    handshakes_failed: int = counter(
        "handshakes_failed_total", "TLS handshakes that failed or took too long."
    )
    datagrams_in: int = counter("datagrams_in_total", "Datagrams received.")
    datagrams_filtered: int = counter("datagrams_filtered_total", "Datagrams from addresses not allowed.")
    kernel_drops: int = counter(
        "datagrams_kernel_drops_total", "Datagrams the system dropped, its buffer full."
    )
    closed: Counter[str] = counter_by("reason", "closed_total", "Connections closed, by reason.")
    refused: Counter[str] = counter_by("reason", "refused_total", "Connections refused.")

    def samples(self, group: str) -> Iterable[Sample]:
        """Every counter as a series with the label `protocol`."""
        return samples("net", self, (), self, (("protocol", group),))
