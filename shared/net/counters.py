"""What the network counts: plain ints, added to on the way and read at scrape time."""

from collections.abc import Iterable

from shared.metrics import Sample


class NetCounters:
    """The counters of one group of listeners (one protocol).

    `closed` counts by reason; reasons are a few fixed words, so it stays small.
    """

    __slots__ = (
        "accepted",
        "bytes_in",
        "bytes_out",
        "closed",
        "crashes",
        "datagrams_filtered",
        "datagrams_in",
        "deadlines",
        "dropped_bytes",
        "dropped_chunks",
        "emfile",
        "handshakes_failed",
        "kernel_drops",
        "refused",
    )

    def __init__(self) -> None:
        self.accepted = 0
        self.refused: dict[str, int] = {}
        self.closed: dict[str, int] = {}
        self.crashes = 0
        self.deadlines = 0
        self.bytes_in = 0
        self.bytes_out = 0
        self.dropped_chunks = 0
        self.dropped_bytes = 0
        self.emfile = 0
        self.handshakes_failed = 0
        self.datagrams_in = 0
        self.datagrams_filtered = 0
        self.kernel_drops = 0

    def count_closed(self, reason: str) -> None:
        self.closed[reason] = self.closed.get(reason, 0) + 1

    def count_refused(self, reason: str, count: int = 1) -> None:
        self.refused[reason] = self.refused.get(reason, 0) + count

    def samples(self, group: str) -> Iterable[Sample]:
        """Every counter as a series with the label `protocol`."""
        labels = (("protocol", group),)
        for name, value, text in (
            ("accepted_total", self.accepted, "Connections accepted."),
            ("bytes_in_total", self.bytes_in, "Bytes read from connections."),
            ("bytes_out_total", self.bytes_out, "Bytes the system took from outboxes."),
            (
                "crashes_total",
                self.crashes,
                "Sessions that failed with a bug; each closed its connection only.",
            ),
            ("deadlines_total", self.deadlines, "Deadlines that passed."),
            ("dropped_chunks_total", self.dropped_chunks, "Chunks that slow consumers lost."),
            ("dropped_bytes_total", self.dropped_bytes, "Bytes that slow consumers lost."),
            ("emfile_total", self.emfile, "Times that accepting paused for want of a descriptor."),
            (
                "handshakes_failed_total",
                self.handshakes_failed,
                "TLS handshakes that failed or took too long.",
            ),
            ("datagrams_in_total", self.datagrams_in, "Datagrams received."),
            ("datagrams_filtered_total", self.datagrams_filtered, "Datagrams from addresses not allowed."),
            (
                "datagrams_kernel_drops_total",
                self.kernel_drops,
                "Datagrams the system dropped, its buffer full.",
            ),
        ):
            yield Sample("net_" + name, value, text, labels=labels)
        for reason, value in self.closed.items():
            yield Sample(
                "net_closed_total",
                value,
                "Connections closed, by reason.",
                labels=(*labels, ("reason", reason)),
            )
        for reason, value in self.refused.items():
            yield Sample(
                "net_refused_total", value, "Connections refused.", labels=(*labels, ("reason", reason))
            )
