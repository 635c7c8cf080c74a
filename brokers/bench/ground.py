"""What every case of `brokers bench pipeline` stands on: records written twice, and ways to read them.

A server of its own writes a topic of each record size, and what it holds is also written as lines of a text
file. A `Ground` reads them in several ways, and times the same work done in each of them, in turns.
"""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from time import perf_counter, sleep
from typing import TYPE_CHECKING

import attrs

from brokers.bench import tuples
from brokers.bench.load import Row
from brokers.bench.processes import cpu_seconds
from brokers.bench.servers import serving
from brokers.errors import Failure

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from brokers.pipeline.source.options import Server

KEYS = 1000
"""Different keys in the records, which are grouped by them."""
KEY_LETTERS = 7
COLUMNS: Mapping[str, tuple[str | None, Mapping[str, int]]] = {
    "": (None, {}),
    "values": ("value BINARY", {}),
    "keys": ("value BINARY", {"maxValueBytes": KEY_LETTERS}),
    "times": ("timestamp TIMESTAMP", {}),
}
"""What is asked for: all; the payloads; what they begin with; or the least to read, which a count needs."""
PIECE_BYTES = 1 << 20
_VISIBLE_SECONDS = 60.0
WARMING_ROUNDS = 3
"""The JVM goes on compiling for some rounds, more than one after another kind of query."""


@attrs.frozen
class Ground:
    """A Spark session; a server, its data folder with a topic for each size, and the same as lines."""

    spark: "SparkSession"
    folder: Path
    server: "Server"
    records: Mapping[int, int]
    """By size: how many."""
    rounds: int

    def topic(self, size: int) -> str:
        return f"records-{size}"

    def logs(self, size: int, columns: str = "", source: str = "logmq") -> "DataFrame":
        """The folder, read by our source or another: all columns, or no more than those of `COLUMNS`."""
        schema, options = COLUMNS[columns]
        return self._read(source, size, schema, path=str(self.folder / "data"), **options)

    def served(self, size: int) -> "DataFrame":
        """Our source over TCP."""
        return self._read("logmq", size, servers=str(self.server))

    def text(self, size: int) -> "DataFrame":
        return self.spark.read.text(str(lines(self.folder, size)))

    def _read(self, source: str, size: int, schema: str | None = None, **options: str | int) -> "DataFrame":
        parts = str(self.spark.sparkContext.defaultParallelism)
        reader = self.spark.read.format(source).options(subscribe=self.topic(size), minPartitions=parts)
        reader = reader if schema is None else reader.schema(schema)
        return reader.options(**options).load()

    def compare(
        self, mode: str, size: int, work: Callable[[], int], others: Mapping[str, Callable[[], int]]
    ) -> Iterator[Row]:
        """Time the same work done in several ways, in turns. Each returns how many records it has seen.

        The ratios are the baseline's time over ours, by the clock and of the processors, so more is always
        better.
        """
        ways = {"": work, **others}
        times: dict[str, list[tuple[float, float]]] = {name: [] for name in ways}
        jvm = int(self.spark.sparkContext._jvm.java.lang.ProcessHandle.current().pid())  # type: ignore[union-attr]
        for number in range(-WARMING_ROUNDS, self.rounds):
            for name, way in ways.items():
                begun, spent = perf_counter(), cpu_seconds(jvm)
                seen = way()
                if seen != self.records[size]:
                    raise Failure(f"{mode}: {name or 'ours'} saw {seen} of {self.records[size]} records")
                if number >= 0:
                    times[name].append((perf_counter() - begun, cpu_seconds(jvm) - spent))
        middle = {name: sorted(found)[len(found) // 2] for name, found in times.items()}
        (seconds, cpu), records = middle.pop(""), self.records[size]
        for name, (others_seconds, others_cpu) in middle.items():
            yield {
                "mode": mode,
                "record_bytes": size,
                "records": records,
                "seconds": round(seconds, 3),
                "cpu_seconds": round(cpu, 2),
                "records_per_second": round(records / seconds),
                "megabytes_per_second": round(records * size / seconds / 1e6, 1),
                "baseline": name,
                "ratio": round(others_seconds / seconds, 2),
                "cpu_ratio": round(others_cpu / max(cpu, 0.01), 2),
            }


@contextmanager
def prepared(
    spark: "SparkSession", folder: Path, sizes: Sequence[int], total: int, rounds: int
) -> Iterator[Ground]:
    """Everything written, `total` bytes of payloads of each size, and the server running."""
    from brokers.pipeline.source.options import Server

    records = {size: max(total // size, 1) for size in sizes}
    with serving(folder, "logmq", {"BROKERS_LOGMQ_DURABILITY": "none"}) as bound:
        server = Server(*bound["logmq"])
        for size, count in records.items():
            _write(server, lines(folder, size), f"records-{size}", size, count)
            _wait_visible(folder / "data", f"records-{size}", count * (size + 4))
        spark.dataSource.register(tuples.source())
        yield Ground(spark, folder, server, records, rounds)


def lines(folder: Path, size: int) -> Path:
    """The text file with the payloads of that size."""
    return folder / f"records-{size}.txt"


def _write(server: "Server", file: Path, topic: str, size: int, count: int) -> None:
    """Write the same payloads into a topic and as lines: a key each, then what does not repeat soon."""
    from brokers.pipeline.source.options import Reach
    from brokers.pipeline.source.writing import PackedRecords, Writer

    header = size.to_bytes(4, "big")
    filler = os.urandom(size).hex()[: size - KEY_LETTERS].encode()
    payloads = [b"key-%03d" % key + filler[key % 64 :] + filler[: key % 64] for key in range(KEYS)]
    each_piece = max(PIECE_BYTES // (size + 4), 1)
    with file.open("wb") as out, closing(Writer(server, Reach(), 0)) as writer:
        for number, start in enumerate(range(0, count, each_piece)):
            some = [payloads[at % KEYS] for at in range(start, min(start + each_piece, count))]
            writer.write(PackedRecords(topic, header + header.join(some), len(some)), "bench", number)
            out.write(b"\n".join(some) + b"\n")
        writer.finish()


def _wait_visible(data: Path, topic: str, end: int) -> None:
    """Wait until readers of the files see all of the topic: the newest index entry is written a moment
    later."""
    from brokers.pipeline.source.options import parse
    from brokers.pipeline.source.planning import open_origin

    options = parse({"path": str(data), "subscribe": topic})
    give_up = perf_counter() + _VISIBLE_SECONDS
    while perf_counter() < give_up:
        with open_origin(options, str(data)) as origin:
            spot = origin.spots(options.topics).get(topic)
            if spot is not None and spot.end >= end:
                return
        sleep(0.05)
    raise Failure(f"{topic} was written, and is not in its index")
