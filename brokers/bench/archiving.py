"""The archive's cases of `brokers bench pipeline`: how fast it writes what is there, and how it follows.

`archive` is measured beside Spark's own Parquet writer fed by the same source, with the same compression.
`follow` has a server, a writer in a process of its own, and the archive behind it at its usual settings. The
writer sends so many records a second. It tells how old a record is when it is committed, whether the archive
falls behind, and what a record costs each of them.
"""

import os
import shutil
import socket
import threading
import time
from collections.abc import Iterator, Mapping
from functools import partial
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Any

from brokers.bench.load import Row
from brokers.bench.processes import cpu_by_process, server_process
from brokers.bench.servers import serving
from brokers.errors import Failure

if TYPE_CHECKING:
    from brokers.bench.ground import Ground
    from brokers.pipeline.archiving.feed import ArchiveInput
    from brokers.pipeline.archiving.job import Archiver

RATE = 200_000
"""Records a second, of 100 bytes."""
SECONDS = 20.0
_SIZE = 100
_TICKS_PER_SECOND = 20
_TOPIC = "followed"
_LATE_SECONDS = 60.0


def archive(ground: "Ground") -> Iterator[Any]:
    """All that is there, to a new folder each time."""
    for size in ground.records:
        ours, theirs = ground.folder / "archive", ground.folder / "parquet"
        others = {"parquet": partial(_theirs, ground, size, theirs)}
        yield from ground.compare("archive", size, partial(_ours, ground, size, ours), others)
        for folder in (ours, theirs):
            shutil.rmtree(folder)


def follow(ground: "Ground") -> Iterator[Row]:
    """A live topic, at a steady rate."""
    place = ground.folder / "followed"
    place.mkdir()
    with serving(place, "logmq") as bound:
        feed = _feed({"path": str(place / "data"), "subscribe": _TOPIC})
        yield _followed(ground, feed, place / "archive", server_process(place / "data"), bound["logmq"])


def _ours(ground: "Ground", size: int, folder: Path) -> int:
    from brokers.pipeline.archiving.folder import opened
    from brokers.pipeline.archiving.job import Archiver

    shutil.rmtree(folder, ignore_errors=True)
    feed = _feed({"path": str(ground.folder / "data"), "subscribe": ground.topic(size)})
    with opened(folder, feed.origin) as place:
        return sum(done.records for done in Archiver(ground.spark, feed, place, folder).once())


def _theirs(ground: "Ground", size: int, folder: Path) -> int:
    import pyarrow.parquet as pq
    from pyspark.sql import functions

    rows = ground.logs(size).withColumn("date", functions.to_date("timestamp"))
    writer = rows.write.mode("overwrite").partitionBy("topic", "date").option("compression", "zstd")
    writer.parquet(str(folder))
    return sum(pq.read_metadata(file).num_rows for file in folder.rglob("*.parquet"))


def _feed(options: dict[str, str]) -> "ArchiveInput":
    from brokers.pipeline.archiving.feed import ArchiveInput
    from brokers.pipeline.source.options import parse

    return ArchiveInput(parse(options))


def _followed(
    ground: "Ground", feed: "ArchiveInput", folder: Path, server: int, bound: tuple[str, int]
) -> Row:
    from brokers.pipeline.archiving.folder import opened
    from brokers.pipeline.archiving.job import Archiver

    context = get_context("spawn")
    ours, theirs = context.Pipe(duplex=False)
    writer = context.Process(target=_write, args=(bound, theirs, RATE, SECONDS))
    with opened(folder, feed.origin) as place:
        archiver = Archiver(ground.spark, feed, place, folder)
        writer.start()
        begun = cpu_by_process(os.getpid())
        commits: list[tuple[float, int]] = []
        sent: list[tuple[float, int]] = []
        waiting = threading.Thread(target=_collect, args=(ours, sent, archiver))
        waiting.start()
        for done in archiver.follow():
            log = next(iter(place.manifest.logs.values()), None)
            if log is not None and done.records:
                commits.append((time.time(), log.end))
        waiting.join()
        writer.join()
        spent = [_cpu_since(begun, server), _cpu_since(begun, os.getpid(), but=server) - ours.recv()]
    return _row(sent, commits, spent)


def _row(sent: list[tuple[float, int]], commits: list[tuple[float, int]], spent: list[float]) -> Row:
    """`written`, `archived`: records a second, from the first to the last of each. `median_ms`, `p99_ms`: how
    old a record was when its commit was done. `*_cpu_us`: processor time for each record."""
    ages = []
    number = 0
    for at, end in sent:
        while number < len(commits) and commits[number][1] < end:
            number += 1
        if number == len(commits):
            raise Failure(f"follow: {end - commits[-1][1]} bytes were never archived")
        ages.append(commits[number][0] - at)
    ages.sort()
    records = sent[-1][1] // (_SIZE + 4)
    return {
        "mode": "follow",
        "record_bytes": _SIZE,
        "written": round(records / (sent[-1][0] - sent[0][0])),
        "archived": round(records / (commits[-1][0] - sent[0][0])),
        "median_ms": round(ages[len(ages) // 2] * 1000),
        "p99_ms": round(ages[len(ages) * 99 // 100] * 1000),
        "server_cpu_us": round(spent[0] / records * 1e6, 2),
        "archive_cpu_us": round(spent[1] / records * 1e6, 2),
    }


def _collect(ours: Connection, sent: list[tuple[float, int]], archiver: "Archiver") -> None:
    """Take what the writer has sent, and end the archive once all of that is in it."""
    try:
        sent += ours.recv()
        give_up = time.monotonic() + _LATE_SECONDS
        while time.monotonic() < give_up:
            log = next(iter(archiver.folder.manifest.logs.values()), None)
            if log is not None and log.end >= sent[-1][1]:
                return
            time.sleep(0.1)
    finally:
        archiver.stop.set()


def _write(address: tuple[str, int], outcome: Connection, rate: int, seconds: float) -> None:
    """In a process of its own: so many records a second, and what was sent when, up to which offset."""
    count = rate // _TICKS_PER_SECOND
    record = _SIZE.to_bytes(4, "big") + os.urandom(_SIZE // 2).hex().encode()
    body = record * count
    sent = []
    with socket.create_connection(address) as sock, sock.makefile("rb") as answers:
        begun = time.time()
        for number in range(int(seconds * _TICKS_PER_SECOND)):
            time.sleep(max(begun + number / _TICKS_PER_SECOND - time.time(), 0))
            at = time.time()
            sock.sendall(b"BATCH %b bench %d %d\n" % (_TOPIC.encode(), number, len(body)) + body)
            answer = answers.readline()
            if not answer.startswith(b"OK "):
                break
            sent.append((at, int(answer[3:]) + len(body)))
    outcome.send(sent)
    outcome.send(time.process_time())


def _cpu_since(begun: Mapping[int, float], root: int, but: int | None = None) -> float:
    """Seconds of processor time since `begun` of a process and all below it, those of `but` left out."""
    left_out = () if but is None else cpu_by_process(but)
    # By process: one that ends meanwhile takes its earlier time with it.
    now = cpu_by_process(root).items()
    return sum(seconds - begun.get(pid, 0) for pid, seconds in now if pid not in left_out)
