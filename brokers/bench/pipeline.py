"""`brokers bench pipeline`: Spark over logs through our source, beside other ways to the same payloads.

All ways go through the same work (`ground.py`) in turns, round after round, and the median round counts:

- `tuples`: a source that reads the same logs and yields a tuple of all four columns for each record. A Python
  data source is usually written so;
- `lean`: the same source, asked as ours is for no more than the work needs;
- `text`: Spark's own source `text` over the lines;
- `folder`: our source over the data folder, where what is measured is our source over TCP.

Spark tells its own sources which columns a query needs, and a source in Python nothing. So to ours who reads
says it: the times to count, and to group the part of the payloads that is the key. Mode `payloads` groups
payloads that come whole, and `whole` is a count of all columns.

Beside the time stands what the JVM and its Python workers spent of the processors, which a busy machine
disturbs less. Every case of the pipeline is a function from a `Ground` to rows, and one line in `CASES`.
"""

import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

from brokers.bench import archiving, tuples
from brokers.bench.ground import KEY_LETTERS, Ground, prepared
from brokers.bench.load import Row
from brokers.bench.options import MODES as MODES_PARAMETER
from brokers.bench.options import SEVERAL, DataDir, Rounds, each, some
from brokers.errors import ExitCode, Failure
from shared.cli.options import Json

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

Mode = Literal["count", "group", "payloads", "whole", "served", "archive", "follow"]
MODES: tuple[Mode, ...] = ("count", "group", "payloads", "whole", "served", "archive", "follow")


def bench(
    *,
    modes: Annotated[tuple[Mode, ...], MODES_PARAMETER] = MODES,
    megabytes: Annotated[int, some("Of payloads, for each size of record; 1000 is the real thing.")] = 64,
    sizes: Annotated[tuple[int, ...], SEVERAL, Parameter(help="Bytes of a record; repeatable.")] = (
        100,
        1024,
    ),
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
    from brokers.pipeline.session import of_a_command, require_spark, session

    require_spark()
    if min(sizes) <= KEY_LETTERS:
        raise Failure(
            f"--sizes: a record of this bench is longer than {KEY_LETTERS}, its key", ExitCode.USAGE
        )
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-", dir=data_dir)))
        config = of_a_command({"spark.local.dir": str(folder)}, master)
        spark = session(master, name="brokers-bench", config=config)
        stack.callback(spark.stop)
        ground = stack.enter_context(prepared(spark, folder, sizes, megabytes * 1_000_000, rounds))
        return list(each(modes, lambda mode: CASES[mode](ground)))


Way = Callable[[int], "DataFrame"]
"""The records of a size, read in some way."""
Work = Callable[["DataFrame"], int]
"""What is done with them; it returns how many records it has seen."""


def counting(frame: "DataFrame") -> int:
    return frame.count()


def grouping(frame: "DataFrame") -> int:
    keys = frame.selectExpr(f"substring(value, 1, {KEY_LETTERS}) AS key").groupBy("key").count()
    return sum(row["count"] for row in keys.collect())


def _asked(ground: Ground, mode: Mode, work: Work, columns: str) -> Iterator[Row]:
    """Work over no more than `columns`, beside tuples of all, tuples of those, and lines."""
    others: dict[str, Way] = {
        "tuples": partial(ground.logs, source=tuples.FORMAT),
        "lean": partial(ground.logs, columns=columns, source=tuples.FORMAT),
        "text": ground.text,
    }
    return _compare(ground, mode, work, partial(ground.logs, columns=columns), others)


def _compare(ground: Ground, mode: Mode, work: Work, ours: Way, others: Mapping[str, Way]) -> Iterator[Row]:
    """Compare the same work over what several ways read. Each time has a new frame: Spark keeps an old one's
    shuffles."""

    def anew(way: Way, size: int) -> int:
        return work(way(size))

    for size in ground.records:
        ways = {name: partial(anew, way, size) for name, way in others.items()}
        yield from ground.compare(mode, size, partial(anew, ours, size), ways)


def _whole(ground: Ground) -> Iterator[Row]:
    """Counting what has come with all of its columns: the way of the bytes from disk to Spark."""
    others = {"tuples": partial(ground.logs, source=tuples.FORMAT)}
    return _compare(ground, "whole", counting, ground.logs, others)


CASES: Mapping[Mode, Callable[[Ground], Iterator[Any]]] = {
    "count": lambda ground: _asked(ground, "count", counting, "times"),
    "group": lambda ground: _asked(ground, "group", grouping, "keys"),
    "payloads": lambda ground: _asked(ground, "payloads", grouping, "values"),
    "whole": _whole,
    "served": lambda ground: _compare(ground, "served", counting, ground.served, {"folder": ground.logs}),
    "archive": archiving.archive,
    "follow": archiving.follow,
}
