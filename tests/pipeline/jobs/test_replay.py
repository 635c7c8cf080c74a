"""A replay that dies anywhere, again and again, leaves nothing out; a topic has each record once."""

import json
import math
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import attrs
import pytest
import trio

from brokers.errors import ExitCode, Failure
from brokers.pipeline.archiving.cli import archive
from brokers.pipeline.archiving.folder import opened
from brokers.pipeline.jobs import cli
from brokers.pipeline.jobs.job_input import JobInput, ReadOptions
from brokers.pipeline.jobs.replay import FromArchive, FromLogs, topics_of
from brokers.pipeline.source.options import TopicChoice
from brokers.replaying import engine as job
from brokers.replaying.engine import (
    OtherRecords,
    OutOfOrder,
    Pace,
    Progress,
    ReplayBatch,
    SourcedRecord,
    topic_of,
)
from shared.errors import UsageError
from shared.replaying import Batch, PastMessage, by_place
from shared.storage.tools.logs import RecordRow, log_dump
from tests.pipeline.jobs.conftest import BILLS, ORDERS, READ
from tests.pipeline.jobs.replaying import OF, SIZES, logs
from tests.pipeline.served import where
from tests.support.server import Server

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class Killed(Exception):
    pass


class Broker:
    """What a server has. `once_each`: as BATCH does, a writer's newest batch to a topic is known again."""

    def __init__(self, chance: random.Random, *, once_each: bool, deaths: float) -> None:
        self.once_each = once_each
        self.messages: dict[str, list[bytes]] = {}
        self.sizes: list[int] = []
        self._last: dict[tuple[str, str], int] = {}
        self._chance = chance
        self._deaths = deaths

    def dies(self) -> None:
        if self._chance.random() < self._deaths:
            raise Killed

    def refuses(self, place: bytes, message: PastMessage) -> str | None:
        return None

    async def send(self, batch: Batch, writer: str, seq: int) -> None:
        for name, messages in by_place(batch).items():
            self.take(name.decode(), writer, seq, messages)

    def take(self, name: str, writer: str, seq: int, messages: Sequence[bytes]) -> None:
        self.dies()
        last = self._last.get((name, writer), 0)
        assert seq >= last
        if not (self.once_each and last == seq):
            self._last[name, writer] = seq
            self.messages.setdefault(name, []).extend(messages)
            self.sizes.append(len(messages))
        self.dies()


class Mortal(Progress):
    """Dies before a note is written, or behind it."""

    dies: Callable[[], None] = staticmethod(lambda: None)

    def save(self, place: ReplayBatch) -> None:
        self.dies()
        super().save(place)
        self.dies()


def begun(progress: Progress, records: Sequence[SourcedRecord]) -> ReplayBatch:
    """Where a replay of these records is."""
    extents = {record.log: (0, record.offset + 1) for record in records}
    return progress.load() or progress.begin(extents)


def run(records: Sequence[SourcedRecord], broker: Broker, progress: Progress) -> job.Replayed:
    place = begun(progress, records)
    left = [record for record in records if record.offset >= place.at[record.log]]
    return trio.run(job.replay, left, broker, place, progress)


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("sizes", [(5000,), (1500, 1, 900, 40)])
@pytest.mark.parametrize("once_each", [True, False])
def test_nothing_is_lost_however_often_it_dies(
    seed: int, once_each: bool, sizes: Sequence[int], tmp_path: Path
) -> None:
    records = logs(*sizes)
    broker = Broker(random.Random(seed), once_each=once_each, deaths=0.3)
    deaths = 0
    while True:
        progress = Mortal(tmp_path / "progress", OF)
        progress.dies = broker.dies  # type: ignore[method-assign]
        try:
            run(records, broker, progress)
            break
        except Killed:
            deaths += 1
    assert deaths
    for number, size in enumerate(sizes):
        expected = [record.value for record in records if record.topic == f"topic{number}"]
        assert len(expected) == size
        got = broker.messages[f"topic{number}"]
        if once_each:
            assert got == expected
        else:
            found = iter(got)
            assert all(value in found for value in expected)  # in order, with some twice
            assert len(got) <= size + (deaths + 1) * job.BATCH_MESSAGES
    done = run(records, broker, Progress(tmp_path / "progress", OF))
    assert (done.messages, done.resumed) == (0, True)


def test_a_process_that_is_killed_and_started_again_writes_each_record_once(tmp_path: Path) -> None:
    """The real thing, kill -9 and a real server, but for Spark (`make trial-replay` has that too)."""
    file, chance = tmp_path / "progress", random.Random(5)
    with Server(tmp_path, "--enable", "logmq") as server:
        command = [sys.executable, "-m", "tests.pipeline.jobs.replaying"]
        command += [*map(str, server.address("logmq")), str(file)]

        def is_done(batches: int) -> bool:
            with subprocess.Popen([*command, str(_seq(file) + batches)], stdout=subprocess.PIPE) as process:
                assert process.stdout is not None
                came_there = process.stdout.readline()
                process.kill()
            return not came_there and process.returncode == 0

        kills = 0
        while not is_done(chance.randint(2, 20)):  # of 40
            kills += 1
        assert kills == 3
        assert server.stop() == 0
    for number in range(len(SIZES)):
        topic = f"topic{number}"
        assert written(tmp_path, topic) == [record.value for record in logs(*SIZES) if record.topic == topic]


def _seq(file: Path) -> int:
    return int(json.loads(file.read_text())["seq"]) if file.exists() else 0


def test_a_batch_that_was_begun_is_the_same_or_none(tmp_path: Path) -> None:
    """Another order of the logs is no other batch; other records are, and nothing is sent then."""
    records = logs(700, 700)
    broker = Broker(random.Random(), once_each=True, deaths=0)
    progress = Progress(tmp_path / "progress", OF)
    place = begun(progress, records)
    first, second = records[: job.BATCH_MESSAGES], records[job.BATCH_MESSAGES :]
    progress.save(attrs.evolve(place, seq=1, batch=job.contents_of(first)))
    other = [
        record._replace(message=PastMessage(b"", b"other")) if record is first[5] else record
        for record in records
    ]
    with pytest.raises(OtherRecords):
        run(other, broker, progress)
    with pytest.raises(OtherRecords, match="a new --progress begins anew"):
        run(first[:-1], broker, progress)
    with pytest.raises(OtherRecords, match="a new --resume begins anew"):
        run(first[:-1], broker, Progress(tmp_path / "progress", OF, "--resume"))
    assert broker.messages == {}
    run([*sorted(first), *second], broker, progress)
    for topic, messages in broker.messages.items():
        assert messages == [record.value for record in records if record.topic == topic]


def test_a_batch_has_no_more_topics_than_a_server_remembers_writers_of(tmp_path: Path) -> None:
    broker = Broker(random.Random(), once_each=True, deaths=0)
    done = run(logs(*[2] * 450), broker, Progress(tmp_path / "progress", OF))
    assert (done.topics, done.messages) == (450, 900)
    assert json.loads((tmp_path / "progress").read_text())["seq"] >= 900 / (2 * job.BATCH_TOPICS)


def test_another_replays_file_is_not_used(tmp_path: Path) -> None:
    file = tmp_path / "progress"
    Progress(file, OF).begin({"there orders": (0, 7)})
    with pytest.raises(UsageError, match="another replay"):
        Progress(file, {"topic": "bills"}).load()
    file.write_text("[]")
    with pytest.raises(UsageError, match="is not the file of a replay"):
        Progress(file, OF).load()


def test_a_note_is_whole_synced_and_durable_with_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[int] = []
    monkeypatch.setattr(os, "fsync", lambda fd: synced.append(os.fstat(fd).st_ino))
    file = tmp_path / "progress"
    of = {"topics": ("orders",), "to": ["logmq", None]}
    place = Progress(file, of).begin({"there orders": (0, 7), "there bills": (3, 3)})
    assert synced == [file.stat().st_ino, tmp_path.stat().st_ino]  # the file itself, not a copy of it
    assert [each.name for each in tmp_path.iterdir()] == ["progress"]
    assert Progress(file, of).load() == place
    assert place.ranges == {"there orders": (0, 7)}


def test_a_topic_may_have_another_name_at_the_target(tmp_path: Path) -> None:
    broker = Broker(random.Random(), once_each=True, deaths=0)
    records, progress = logs(2, 1), Progress(tmp_path / "progress", OF)
    place, told = begun(progress, records), []

    async def again() -> job.Replayed:
        return await job.replay(
            records,
            broker,
            place,
            progress,
            placed=lambda record: b"again-" + record.message.name,
            told=lambda *so_far: told.append(so_far),
        )

    done = trio.run(again)
    assert broker.messages == {
        f"again-topic{number}": [each.value for each in records if each.topic == f"topic{number}"]
        for number in (0, 1)
    }
    size = sum(len(each.value) for each in records)
    assert (done.topics, done.messages, done.bytes, told) == (2, 3, size, [(3, size)])
    noted = progress.load()
    assert noted is not None
    assert (noted.done, noted.batch, noted.at) == (True, {}, job.next_offsets(records))
    done = trio.run(job.replay, records, broker, noted, progress)
    assert (done.messages, sum(map(len, broker.messages.values()))) == (0, 3)


@pytest.mark.parametrize(("rate", "messages"), [(math.inf, 1000), (100, 5), (101, 6), (0.1, 1), (1e6, 1000)])
def test_at_a_rate_batches_are_small(rate: float, messages: int) -> None:
    assert Pace(rate=rate).batch_messages == messages


def test_records_out_of_order_end_it(tmp_path: Path) -> None:
    broker = Broker(random.Random(), once_each=True, deaths=0)
    one, other = logs(2)
    for wrong in ([other, one], [one, other, other]):
        with pytest.raises(OutOfOrder):
            run(wrong, broker, Progress(tmp_path / "p", OF))


def test_what_is_not_of_the_batch_that_was_begun_goes_out_behind_it_in_its_order() -> None:
    x, y = (
        [SourcedRecord.of_log(f"here {name}", 5 * number, 0.0, b"%d" % number) for number in range(4)]
        for name in ("x", "y")
    )
    place = ReplayBatch(OF, "w", {}, {}, 1, job.contents_of([x[0], y[0], y[1]]))
    batch, others = job.begun_batch(iter([x[0], x[1], y[0], x[2], y[1], y[2], x[3]]), place)
    assert batch == [x[0], y[0], y[1]]
    assert list(others) == [x[1], x[2], y[2], x[3]]


async def batches(records: Sequence[SourcedRecord], pace: Pace) -> list[tuple[float, list[SourcedRecord]]]:
    """Each, and the seconds after which it went out."""
    begin = trio.current_time()
    return [(trio.current_time() - begin, batch) async for batch in job.due_batches(iter(records), pace)]


async def test_a_batch_has_as_much_as_fits_by_number_bytes_and_logs() -> None:
    def sent(log: int, size: int) -> SourcedRecord:
        return SourcedRecord.of_log(f"here {log}", 0, 0.0, bytes(size))

    for records, sizes in (
        ([sent(0, 1)] * 2500, [1000, 1000, 500]),
        ([sent(0, job.BATCH_BYTES // 4)] * 9, [4, 4, 1]),
        ([sent(0, job.BATCH_BYTES), sent(0, 1), sent(0, job.BATCH_BYTES + 1), sent(0, 1)], [1, 1, 1, 1]),
        ([sent(log, 1) for log in [*range(250), 249]], [100, 100, 51]),
    ):
        found = await batches(records, Pace())
        assert [len(batch) for _, batch in found] == sizes
        assert [record for _, batch in found for record in batch] == records


async def test_what_is_due_does_not_wait_for_what_is_not(autojump_clock: trio.testing.MockClock) -> None:
    records = [
        SourcedRecord.of_log("here x", number, time, b"") for number, time in enumerate((5.0, 5.0, 7.0, 7.5))
    ]
    found = await batches(records, Pace(speed=1))
    assert [(at, len(batch)) for at, batch in found] == [(0.0, 2), (2.0, 1), (2.5, 1)]


async def test_the_pace_begins_with_the_first_record(autojump_clock: trio.testing.MockClock) -> None:
    def opened_slowly() -> Iterator[SourcedRecord]:
        autojump_clock.jump(5)
        yield from (SourcedRecord.of_log("here x", number, number, b"") for number in range(3))

    begin = trio.current_time()
    found = [trio.current_time() - begin async for _ in job.due_batches(opened_slowly(), Pace(speed=1))]
    assert found == [5, 6, 7]


def test_what_is_replayed_is_named_once_and_may_be_in_any_folder(tmp_path: Path) -> None:
    assert topic_of("/srv/my data orders") == "orders"
    assert topics_of(["a", "b", "a"], None).names == ("a", "b")
    for names, pattern in (([], None), (["a"], "a"), ([], "(")):
        with pytest.raises(UsageError):
            topics_of(names, pattern)
    with opened(tmp_path, "a data folder's dms") as archive:
        archive.commit(archive.manifest.advance((), 0, 0))
    with pytest.raises(Failure, match="archive of a data folder's dms"):
        FromArchive(tmp_path).extents(TopicChoice(pattern=".*"))


@pytest.mark.parametrize(
    ("pace", "seconds"),
    [(Pace(), 0), (Pace(rate=100), 0.99), (Pace(speed=1), 9.9), (Pace(rate=5, speed=1), 19.8)],
)
async def test_the_pace_is_kept(
    pace: Pace, seconds: float, tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    broker = Broker(random.Random(), once_each=True, deaths=0)
    records, progress = logs(100), Progress(tmp_path / "progress", OF)
    begin = trio.current_time()
    await job.replay(records, broker, begun(progress, records), progress, pace)
    assert trio.current_time() - begin == pytest.approx(seconds)
    assert broker.messages == {"topic0": [record.value for record in records]}
    assert max(broker.sizes) <= max(pace.batch_messages, 1)


def test_a_topic_goes_again_into_a_topic_and_into_a_queue(
    spark: "SparkSession", passed: Path, tmp_path: Path
) -> None:
    with Server(tmp_path, "--enable", "logmq,dms") as server:
        for protocol, name in (("logmq", "again"), ("dms", "work")):
            host, port = server.address(protocol)
            if protocol == "dms":
                _create(host, port, name)
            file = tmp_path / f"{name}.progress"
            to = {"protocol": protocol, "name": name, "host": host, "port": port, "progress": file}
            assert cli.replay(str(passed), "bills", **to).messages == len(BILLS)
            found = cli.replay(str(passed), "bills", **to)
            assert (found.messages, found.resumed) == (0, True)
        with pytest.raises(Failure, match="no topic nothing") as refused:
            cli.replay(str(passed), "nothing", host=host, port=port, protocol="dms", progress=tmp_path / "x")
        assert refused.value.code is ExitCode.MISSING
        assert server.stop() == 0
    assert written(tmp_path, "again") == BILLS


def test_topics_go_again_from_logs_servers_and_an_archive(
    spark: "SparkSession", passed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All topics of a folder into a server, from there into others, and from an archive of both."""
    copied = shutil.copytree(passed, tmp_path / "copied" / "data").parent
    monkeypatch.chdir(passed.parent)
    with Server(copied, "--enable", "logmq") as first, Server(tmp_path, "--enable", "logmq") as server:
        host, port = server.address("logmq")
        served = ReadOptions(servers=where(first))
        to = {"pattern": "orders|bills", "host": host, "port": port}
        runs: list[tuple[str, tuple[str, ...], ReadOptions]] = [
            ("folder-", (passed.name,), ReadOptions()),
            ("server-", (), served),
        ]
        for prefix, words, reading in runs:
            done = cli.replay(
                *words, **to, prefix=prefix, reading=reading, progress=tmp_path / f"{prefix}noted"
            )
            assert (done.topics, done.messages) == (2, len(ORDERS) + len(BILLS))
        both = f"{where(first)},{where(server)}"
        list(
            archive(
                tmp_path / "archive",
                reading=ReadOptions(servers=both),
                pattern="orders|server-.*",
                once=True,
                json=True,
            )
        )
        with pytest.raises(UsageError, match="appended to itself"):
            cli.replay("orders", host=host, port=port, reading=ReadOptions(servers=both))
        done = cli.replay(
            str(tmp_path / "archive"),
            "orders",
            "server-bills",
            prefix="archive-",
            host=host,
            port=port,
            progress=tmp_path / "archive.noted",
        )
        assert (done.topics, done.messages) == (2, len(ORDERS) + len(BILLS))
        assert server.stop() == 0
    for prefix in ("folder-", "server-", "archive-"):
        assert written(tmp_path, f"{prefix}orders") == ORDERS
    for name in ("folder-bills", "server-bills", "archive-server-bills"):
        assert written(tmp_path, name) == BILLS


def test_a_replay_says_what_it_needs(passed: Path, tmp_path: Path) -> None:
    for words, more, text in (
        ((), {}, "PATH"),
        ((str(passed),), {}, "say which topics"),
        ((str(passed), "orders"), {"pattern": "x"}, "say which topics"),
        ((str(passed),), {"pattern": "("}, "not a regular expression"),
        ((str(passed), "a", "b"), {"name": "c"}, "--name: is of one topic"),
    ):
        with pytest.raises(UsageError, match=text):
            cli.replay(*words, **more)
    with pytest.raises(UsageError, match=r"no topic in .* matches"):
        FromLogs(JobInput((passed,))).extents(TopicChoice(pattern="nothing"))
    assert READ  # the folder is the other tests' too


def written(folder: Path, topic: str) -> list[bytes]:
    rows = log_dump(folder / "data", "logmq", topic)
    return [row.payload for row in rows if isinstance(row, RecordRow)]


def _create(host: str, port: int, name: str) -> None:
    from dms.client import connect

    async def run() -> None:
        async with connect(host, port) as client:
            await client.create(name)

    trio.run(run)
