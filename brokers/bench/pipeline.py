"""`brokers bench pipeline`: Spark over logs through our source, beside other ways to the same payloads.

A server of its own writes a topic of each record size, and what it holds is also written as lines of a text
file. Then all ways go through the same work in turns, round after round, and the median round counts:

- `tuples`: a source that reads the same ranges of the same logs and yields a tuple for each record, as a
  Python data source is usually written;
- `text`: Spark's own source `text` over the lines;
- `folder`: our source over the data folder, where what is measured is our source over TCP.

Spark tells its own sources which columns a query needs, and a source in Python nothing, so who reads says it:
the times to count, and to group the part of the payloads that is the key; so does who reads tuples. Mode
`payloads` groups payloads that come whole, and `whole` is a count of all columns.

Beside the time stands what the JVM and its Python workers spent of the processors, which a busy machine
disturbs less. Every case of the pipeline is a function from a `Ground` to rows, and one line in `CASES`.
"""

import os
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from time import perf_counter, sleep
from typing import TYPE_CHECKING, Annotated, Any, Literal

import attrs
from cyclopts import Parameter

from brokers.bench import archiving
from brokers.bench.options import MODES as MODES_PARAMETER
from brokers.bench.options import DataDir, Rounds, each
from brokers.bench.servers import serving
from brokers.errors import ExitCode, Refusal
from shared.options import Json

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from brokers.pipeline.source.address import Server

Mode = Literal["count", "group", "payloads", "whole", "served", "archive", "follow"]
MODES: tuple[Mode, ...] = ("count", "group", "payloads", "whole", "served", "archive", "follow")
KEYS = 1000
"""Different keys in the records, which are grouped by them."""
KEY_LETTERS = 7
VALUES, TIMES = "value BINARY", "timestamp TIMESTAMP"
PIECE_BYTES = 1 << 20
_VISIBLE_SECONDS = 60.0
WARMING_ROUNDS = 3
"""The JVM goes on compiling for some rounds, more than one after another kind of query."""


@attrs.frozen
class Row:
    """One case beside one baseline.

    `ratio` and `cpu_ratio`: the baseline's time over ours, by the clock and of the processors, so more is
    always better.
    """

    mode: str
    record_bytes: int
    records: int
    seconds: float
    cpu_seconds: float
    records_per_second: int
    megabytes_per_second: float
    baseline: str
    ratio: float
    cpu_ratio: float


def bench(
    *,
    modes: Annotated[tuple[Mode, ...], MODES_PARAMETER] = MODES,
    megabytes: Annotated[
        int, Parameter(help="Of payloads, for each size of record; 1000 is the real thing.")
    ] = 64,
    sizes: Annotated[
        tuple[int, ...], Parameter(help="Bytes of a record; repeatable.", negative="", consume_multiple=True)
    ] = (100, 1024),
    rounds: Rounds = 3,
    master: Annotated[str, Parameter(help="Where Spark runs.")] = "local[*]",
    data_dir: DataDir = None,
    json: Json = False,
) -> list[Any]:
    """Measure Spark over logs on this machine.

    Counting and grouping, over a data folder and over TCP, beside a source that
    yields tuples and Spark's own text source; the archive, beside Spark's own
    Parquet writer, and how it follows a live topic. Needs the extra spark.
    """
    from brokers.pipeline.quiet import of_a_verb
    from brokers.pipeline.session import require_spark, session

    require_spark()
    if min(sizes) <= KEY_LETTERS:
        raise Refusal(
            f"--sizes: a record of this bench is longer than {KEY_LETTERS}, its key", ExitCode.USAGE
        )
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-", dir=data_dir)))
        config = of_a_verb({"spark.local.dir": str(folder)}, master)
        spark = session(master, name="brokers-bench", config=config)
        stack.callback(spark.stop)
        ground = stack.enter_context(prepared(spark, folder, sizes, megabytes * 1_000_000, rounds))
        return each(modes, lambda mode: CASES[mode](ground))


# -- what every case stands on


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

    def ours(self, size: int) -> "DataFrame":
        """Our source over the folder."""
        return self._read("logmq", size, path=str(self.folder / "data"))

    def values(self, size: int) -> "DataFrame":
        """The same, of the payloads alone."""
        return self._read("logmq", size, VALUES, path=str(self.folder / "data"))

    def keys(self, size: int) -> "DataFrame":
        """The same, of what the payloads begin with."""
        return self._read("logmq", size, VALUES, path=str(self.folder / "data"), maxValueBytes=KEY_LETTERS)

    def times(self, size: int) -> "DataFrame":
        """The same, of the column alone that is the least to read: all that a count needs."""
        return self._read("logmq", size, TIMES, path=str(self.folder / "data"))

    def served(self, size: int) -> "DataFrame":
        """Our source over TCP."""
        return self._read("logmq", size, servers=str(self.server))

    def tuples(self, size: int) -> "DataFrame":
        return self._read(TUPLES, size, path=str(self.folder / "data"))

    def tuples_of_values(self, size: int) -> "DataFrame":
        return self._read(TUPLES, size, VALUES, path=str(self.folder / "data"))

    def tuples_of_keys(self, size: int) -> "DataFrame":
        return self._read(TUPLES, size, VALUES, path=str(self.folder / "data"), maxValueBytes=KEY_LETTERS)

    def tuples_of_times(self, size: int) -> "DataFrame":
        return self._read(TUPLES, size, TIMES, path=str(self.folder / "data"))

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
        """Time the same work done in several ways, in turns. Each returns how many records it has seen."""
        ways = {"": work, **others}
        times: dict[str, list[tuple[float, float]]] = {name: [] for name in ways}
        jvm = int(self.spark.sparkContext._jvm.java.lang.ProcessHandle.current().pid())  # type: ignore[union-attr]
        for number in range(-WARMING_ROUNDS, self.rounds):
            for name, way in ways.items():
                begun, spent = perf_counter(), cpu_seconds(jvm)
                seen = way()
                if seen != self.records[size]:
                    raise Refusal(f"{mode}: {name or 'ours'} saw {seen} of {self.records[size]} records")
                if number >= 0:
                    times[name].append((perf_counter() - begun, cpu_seconds(jvm) - spent))
        middle = {name: sorted(found)[len(found) // 2] for name, found in times.items()}
        (seconds, cpu), records = middle.pop(""), self.records[size]
        for name, (others_seconds, others_cpu) in middle.items():
            yield Row(
                mode,
                size,
                records,
                round(seconds, 3),
                round(cpu, 2),
                round(records / seconds),
                round(records * size / seconds / 1e6, 1),
                name,
                round(others_seconds / seconds, 2),
                round(others_cpu / max(cpu, 0.01), 2),
            )


def cpu_seconds(root: int) -> float:
    """What a process and all below it have used, those that have ended too; 0 where there is no /proc."""
    ticks, pids = 0, [root]
    while pids:
        pid = pids.pop()
        try:
            ticks += sum(map(int, Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:15]))
            for task in Path(f"/proc/{pid}/task").iterdir():
                pids += map(int, (task / "children").read_text().split())
        except OSError:  # it has just ended: its parent's count has it
            continue
    return ticks / os.sysconf("SC_CLK_TCK")


@contextmanager
def prepared(
    spark: "SparkSession", folder: Path, sizes: Sequence[int], total: int, rounds: int
) -> Iterator[Ground]:
    """Everything written, `total` bytes of payloads of each size, and the server running."""
    from brokers.pipeline.source.address import Server

    records = {size: max(total // size, 1) for size in sizes}
    with serving(folder, "logmq", {"BROKERS_LOGMQ_DURABILITY": "none"}) as bound:
        server = Server(*bound["logmq"])
        for size, count in records.items():
            _write(server, lines(folder, size), f"records-{size}", size, count)
            _wait_visible(folder / "data", f"records-{size}", count * (size + 4))
        spark.dataSource.register(_tuple_source())
        yield Ground(spark, folder, server, records, rounds)


def lines(folder: Path, size: int) -> Path:
    """The text file with the payloads of that size."""
    return folder / f"records-{size}.txt"


def _write(server: "Server", file: Path, topic: str, size: int, count: int) -> None:
    """The same payloads into a topic and as lines: a key each, then what does not repeat soon."""
    from brokers.pipeline.source.address import Reach
    from brokers.pipeline.source.packing import Piece
    from brokers.pipeline.source.writing import Writer

    header = size.to_bytes(4, "big")
    filler = os.urandom(size).hex()[: size - KEY_LETTERS].encode()
    payloads = [b"key-%03d" % key + filler[key % 64 :] + filler[: key % 64] for key in range(KEYS)]
    each_piece = max(PIECE_BYTES // (size + 4), 1)
    with file.open("wb") as out, closing(Writer(server, Reach(), 0)) as writer:
        for number, start in enumerate(range(0, count, each_piece)):
            some = [payloads[at % KEYS] for at in range(start, min(start + each_piece, count))]
            writer.write(Piece(topic, header + header.join(some), len(some)), "bench", number)
            out.write(b"\n".join(some) + b"\n")
        writer.finish()


def _wait_visible(data: Path, topic: str, end: int) -> None:
    """Until readers of the files see all of it: the newest index entry is written a moment later."""
    from brokers.pipeline.source.options import parse
    from brokers.pipeline.source.places import open_place

    options = parse({"path": str(data), "subscribe": topic})
    give_up = perf_counter() + _VISIBLE_SECONDS
    while perf_counter() < give_up:
        with closing(open_place(options, str(data))) as place:
            spot = place.spots(options.topics).get(topic)
            if spot is not None and spot.end >= end:
                return
        sleep(0.05)
    raise Refusal(f"{topic} was written, and is not in its index")


# -- the cases of the source


def count(ground: Ground) -> Iterator[Row]:
    """How many records there are, each source asked for as little as it can be."""
    for size in ground.records:
        others = {"tuples": ground.tuples_of_times, "text": ground.text}
        yield from _compare(ground, "count", size, counting, ground.times, **others)


def group(ground: Ground) -> Iterator[Row]:
    """How many there are of each key, with which the payloads begin: no more of them is asked for."""
    for size in ground.records:
        others = {"tuples": ground.tuples_of_keys, "text": ground.text}
        yield from _compare(ground, "group", size, grouping, ground.keys, **others)


def payloads(ground: Ground) -> Iterator[Row]:
    """The same, found in the whole payloads."""
    for size in ground.records:
        others = {"tuples": ground.tuples_of_values, "text": ground.text}
        yield from _compare(ground, "payloads", size, grouping, ground.values, **others)


def whole(ground: Ground) -> Iterator[Row]:
    """Counting what has come with all of its columns: the way of the bytes from disk to Spark."""
    for size in ground.records:
        yield from _compare(ground, "whole", size, counting, ground.ours, tuples=ground.tuples)


def served(ground: Ground) -> Iterator[Row]:
    """Counting over TCP, beside counting in the folder."""
    for size in ground.records:
        yield from _compare(ground, "served", size, counting, ground.served, folder=ground.ours)


CASES: Mapping[Mode, Callable[[Ground], Iterator[Any]]] = {
    "count": count,
    "group": group,
    "payloads": payloads,
    "whole": whole,
    "served": served,
    "archive": archiving.archive,
    "follow": archiving.follow,
}


Way = Callable[[int], "DataFrame"]
"""The records of a size, read in some way."""
Work = Callable[["DataFrame"], int]
"""What is done with them; it returns how many records it has seen."""


def _compare(ground: Ground, mode: str, size: int, work: Work, ours: Way, **others: Way) -> Iterator[Row]:
    """The same work over what several ways read. A new frame each time: Spark keeps an old one's shuffles."""
    ways = {name: partial(_anew, work, way, size) for name, way in others.items()}
    return ground.compare(mode, size, partial(_anew, work, ours, size), ways)


def _anew(work: Work, way: Way, size: int) -> int:
    return work(way(size))


def counting(frame: "DataFrame") -> int:
    return frame.count()


def grouping(frame: "DataFrame") -> int:
    keys = frame.selectExpr(f"substring(value, 1, {KEY_LETTERS}) AS key").groupBy("key").count()
    return sum(row["count"] for row in keys.collect())


# -- the baseline: a source as it is usually written

TUPLES = "bench-tuples"


def _tuple_source() -> type:
    from pyspark.sql.datasource import DataSourceReader, InputPartition
    from pyspark.sql.types import StructType

    from brokers.pipeline.source import rows
    from brokers.pipeline.source.data_source import BatchReader, LogmqDataSource, Share
    from brokers.pipeline.source.options import Options, parse
    from brokers.pipeline.source.places import open_place

    class TupleReader(DataSourceReader):
        def __init__(self, options: Options, columns: Sequence[str]) -> None:
            self._options = options
            self._columns = columns

        def partitions(self) -> Sequence[InputPartition]:
            return BatchReader(self._options).partitions()

        def read(self, partition: InputPartition) -> Iterator[tuple[Any, ...]]:
            if not isinstance(partition, Share):
                return
            rules = rows.rules(self._options)
            times, values = (self._columns == [name] for name in ("timestamp", "value"))
            most = self._options.max_value_bytes
            for span in partition.spans:
                with closing(open_place(self._options, span.source)) as place:
                    for chunk in place.chunks(span, rules):
                        data, at = chunk.data, 0
                        for mark in chunk.marks:
                            time = datetime.fromtimestamp(mark.first_ms / 1000, UTC)
                            for _ in range(mark.records):
                                begin = at + 4
                                end = begin + int.from_bytes(data[at:begin], "big")
                                offset = chunk.offset + at
                                if span.start <= offset < span.stop:
                                    if times:
                                        yield (time,)
                                    elif values:
                                        yield (data[begin : end if most is None else min(begin + most, end)],)
                                    else:
                                        yield span.topic, offset, time, data[begin:end]
                                at = end

    class TupleSource(LogmqDataSource):
        @classmethod
        def name(cls) -> str:
            return TUPLES

        def reader(self, schema: StructType) -> Any:
            return TupleReader(parse(self._given, streaming=False), schema.names)

    return TupleSource
