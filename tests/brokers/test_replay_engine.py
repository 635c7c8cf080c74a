"""A replay that dies anywhere, again and again, leaves nothing out; a topic has each record once."""

import json
import math
import os
import random
import socket
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import pytest
import trio

from brokers.replaying import engine
from brokers.replaying.engine import Named, Pace, Progress, Ranges, Replayed, ReplayPosition, SourcedRecord
from kqmsgq import wire as kqmsgq_wire
from shared.errors import LogMissing, UsageError
from shared.recording import blocks
from shared.replaying import Batch, Target, by_name
from shared.storage.tools.logs import RecordRow, log_dump
from tests.support.forked import start
from tests.support.server import Server, until

OF = {"topic": "orders"}
HALTING = Path(__file__).with_name("replay_to_kill.py")


def logs(*sizes: int) -> list[SourcedRecord]:
    """Records of several logs, `sizes` each, as they came: no two of one log share a time."""
    found = []
    for number, size in enumerate(sizes):
        offset = 0
        for at in range(size):
            value = b"%d" % at * (at % 9)
            found.append(SourcedRecord.of_log(f"there topic{number}", offset, at / 10 + number / 97, value))
            offset += 4 + len(value)
    return sorted(found, key=lambda record: record.time)


def source_of(records: Sequence[SourcedRecord]) -> Callable[[Ranges], Iterator[SourcedRecord]]:
    def source(ranges: Ranges) -> Iterator[SourcedRecord]:
        for record in records:
            start, stop = ranges.get(record.log, (0, 0))
            if start <= record.offset < stop:
                yield record

    return source


class Killed(Exception):
    pass


class Broker:
    """What a server has. `once_each`: as BATCH does, a writer's newest batch to a topic is known again."""

    def __init__(self, chance: random.Random, *, once_each: bool = True, deaths: float = 0) -> None:
        self.messages: dict[str, list[bytes]] = {}
        self.sizes: list[int] = []
        self.target = Target(lambda name, message: None, self._send)
        self._once_each = once_each
        self._last: dict[tuple[str, str], int] = {}
        self._chance = chance
        self._deaths = deaths

    def dies(self) -> None:
        if self._chance.random() < self._deaths:
            raise Killed

    async def _send(self, batch: Batch, writer: str, seq: int) -> None:
        for name, messages in by_name(batch).items():
            self._take(name.decode(), writer, seq, messages)

    def _take(self, name: str, writer: str, seq: int, messages: Sequence[bytes]) -> None:
        self.dies()
        last = self._last.get((name, writer), 0)
        assert seq >= last
        if not (self._once_each and last == seq):
            self._last[name, writer] = seq
            self.messages.setdefault(name, []).extend(messages)
            self.sizes.append(len(messages))
        self.dies()


class Mortal(Progress):
    """Dies before a note is written, or behind it."""

    dies: Callable[[], None] = staticmethod(lambda: None)

    def save(self, position: ReplayPosition) -> None:
        self.dies()
        super().save(position)
        self.dies()


def begun(progress: Progress, records: Sequence[SourcedRecord]) -> ReplayPosition:
    """Where a replay of these records is."""
    return progress.load() or progress.begin({record.log: (0, record.offset + 1) for record in records}, 0)


def run(records: Sequence[SourcedRecord], broker: Broker, progress: Progress) -> Replayed:
    place = begun(progress, records)
    return trio.run(engine.replay, source_of(records), broker.target, place, progress)


def payloads(records: Sequence[SourcedRecord], topic: str) -> list[bytes]:
    return [record.message.payload for record in records if record.message.name == topic.encode()]


@pytest.mark.parametrize("seed", range(3))
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
        expected = payloads(records, f"topic{number}")
        assert len(expected) == size
        got = broker.messages[f"topic{number}"]
        if once_each:
            assert got == expected
        else:
            found = iter(got)
            assert all(value in found for value in expected)  # in order, with some twice
            assert len(got) <= size + (deaths + 1) * engine.BATCH_MESSAGES
    done = run(records, broker, Progress(tmp_path / "progress", OF))
    assert (done.messages, done.resumed) == (0, True)


def test_the_command_killed_and_given_again_writes_each_message_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The real thing, kill -9 and a real server: of recorded blocks, within which batches begin and end."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    file, chance = tmp_path / "state" / "brokers" / "replays" / "again.json", random.Random(5)
    sent = [(b"q%d" % chance.randrange(3), b"%d" % number) for number in range(1500)]
    with Server(tmp_path, "--enable", "all", "--record", "kqmsgq") as server:
        with socket.create_connection(server.address("kqmsgq")) as producer:
            producer.sendall(
                kqmsgq_wire.PRODUCE + b"".join(kqmsgq_wire.message(*message) for message in sent)
            )

        def recorded() -> int:
            with suppress(LogMissing):
                rows = log_dump(server.data, "recorded", "kqmsgq")
                return sum(blocks.unpack(row.payload).messages for row in rows if isinstance(row, RecordRow))
            return 0

        until(lambda: recorded() == len(sent))
        words = ["replay", "recorded:kqmsgq", "--to", "logmq:again-{name}", "--rate", "max"]
        words += ["--resume", "again", "--data-dir", str(server.data)]

        def is_done(batches: int) -> bool:
            halting = ("-c", HALTING.read_text(), str(_seq(file) + batches))
            with start([*halting, *words], env=os.environ, stdout=subprocess.PIPE) as process:
                assert process.stdout is not None
                came_there = process.stdout.readline() == b"there\n"
                if came_there:
                    process.kill()
            return not came_there and process.returncode == 0

        kills = 0
        while not is_done(chance.randint(7, 12)):  # of 24
            kills += 1
            assert kills < 30
        assert kills >= 2
        assert server.stop() == 0
    for queue in (b"q0", b"q1", b"q2"):
        rows = log_dump(tmp_path / "data", "logmq", f"again-{queue.decode()}")
        written = [row.payload for row in rows if isinstance(row, RecordRow)]
        assert written == [body for name, body in sent if name == queue]


def _seq(file: Path) -> int:
    return int(json.loads(file.read_text())["seq"]) if file.exists() else 0


def test_a_batch_that_was_begun_is_sent_again_with_its_number_though_its_logs_come_in_another_order(
    tmp_path: Path,
) -> None:
    """A crash of the server can change its newest times, by which logs are merged."""
    records = logs(700, 700)
    broker, progress = Broker(random.Random()), Progress(tmp_path / "progress", OF)
    position = begun(progress, records)
    batch = records[: engine.BATCH_MESSAGES]
    position = position.next(named(batch))
    progress.save(position)
    trio.run(
        broker.target.send, [(record.message.name, record.message) for record in batch], position.writer, 1
    )
    assert run(sorted(records), broker, progress).resumed
    for topic, messages in broker.messages.items():
        assert messages == payloads(records, topic)


def test_what_retention_took_from_the_batch_that_was_begun_is_left_out(tmp_path: Path) -> None:
    records = logs(1200)
    broker, progress = Broker(random.Random()), Progress(tmp_path / "progress", OF)
    progress.save(begun(progress, records).next([(b"topic0", record) for record in records[:1000]]))
    run(records[300:], broker, progress)
    assert broker.messages == {"topic0": payloads(records[300:], "topic0")}


def test_a_batch_has_no_more_names_than_a_server_remembers_writers_of(tmp_path: Path) -> None:
    broker = Broker(random.Random())
    done = run(logs(*[2] * 450), broker, Progress(tmp_path / "progress", OF))
    assert (len(broker.messages), done.messages) == (450, 900)
    assert json.loads((tmp_path / "progress").read_text())["seq"] >= 900 / (2 * engine.BATCH_NAMES)


def test_another_replays_file_is_not_used(tmp_path: Path) -> None:
    file = tmp_path / "progress"
    Progress(file, OF).begin({"there orders": (0, 7)}, 0)
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
    position = Progress(file, of).begin({"there orders": (0, 7), "there bills": (3, 3)}, 5)
    assert synced == [file.stat().st_ino, tmp_path.stat().st_ino]  # the file itself, not a copy of it
    assert [each.name for each in tmp_path.iterdir()] == ["progress"]
    assert Progress(file, of).load() == position
    assert position.left == {"there orders": (0, 7)}


def test_a_topic_may_have_another_name_at_the_target(tmp_path: Path) -> None:
    broker = Broker(random.Random())
    records, progress = logs(2, 1), Progress(tmp_path / "progress", OF)
    place, told = begun(progress, records), []

    async def again() -> Replayed:
        return await engine.replay(
            source_of(records),
            broker.target,
            place,
            progress,
            name_of=lambda record: b"again-" + record.message.name,
            told=lambda *so_far: told.append(so_far),
        )

    done = trio.run(again)
    assert broker.messages == {f"again-{topic}": payloads(records, topic) for topic in ("topic0", "topic1")}
    size = sum(len(record.message.payload) for record in records)
    assert (done.messages, done.bytes, told) == (3, size, [(3, size)])
    noted = progress.load()
    assert noted is not None
    assert (noted.done, noted.to, noted.at) == (True, {}, {record.log: record.end for record in records})
    assert run(records, broker, progress).messages == 0
    assert sum(map(len, broker.messages.values())) == 3


@pytest.mark.parametrize(("rate", "messages"), [(math.inf, 1000), (100, 5), (101, 6), (0.1, 1), (1e6, 1000)])
def test_at_a_rate_batches_are_small(rate: float, messages: int) -> None:
    assert Pace(rate=rate).batch_messages == messages


def named(records: Iterator[SourcedRecord] | Sequence[SourcedRecord]) -> Iterator[Named]:
    return ((record.message.name, record) for record in records)


async def batches(records: Sequence[SourcedRecord], pace: Pace) -> list[tuple[float, Sequence[Named]]]:
    """Each, and the seconds after which it went out."""
    begin = trio.current_time()
    return [(trio.current_time() - begin, batch) async for batch in engine.due_batches(named(records), pace)]


async def test_a_batch_has_as_much_as_fits_by_number_bytes_and_names() -> None:
    def sent(log: int, size: int) -> SourcedRecord:
        return SourcedRecord.of_log(f"here {log}", 0, 0.0, bytes(size))

    for records, sizes in (
        ([sent(0, 1)] * 2500, [1000, 1000, 500]),
        ([sent(0, engine.BATCH_BYTES // 4)] * 9, [4, 4, 1]),
        (
            [sent(0, engine.BATCH_BYTES), sent(0, 1), sent(0, engine.BATCH_BYTES + 1), sent(0, 1)],
            [1, 1, 1, 1],
        ),
        ([sent(log, 1) for log in [*range(250), 249]], [100, 100, 51]),
    ):
        found = await batches(records, Pace())
        assert [len(batch) for _, batch in found] == sizes
        assert [record for _, batch in found for _, record in batch] == records


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
    due = engine.due_batches(named(opened_slowly()), Pace(speed=1))
    assert [trio.current_time() - begin async for _ in due] == [5, 6, 7]


@pytest.mark.parametrize(
    ("pace", "seconds"),
    [(Pace(), 0), (Pace(rate=100), 0.99), (Pace(speed=1), 9.9), (Pace(rate=5, speed=1), 19.8)],
)
async def test_the_pace_is_kept(
    pace: Pace, seconds: float, tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    broker = Broker(random.Random())
    records, progress = logs(100), Progress(tmp_path / "progress", OF)
    begin = trio.current_time()
    await engine.replay(source_of(records), broker.target, begun(progress, records), progress, pace)
    assert trio.current_time() - begin == pytest.approx(seconds)
    assert broker.messages == {"topic0": payloads(records, "topic0")}
    assert max(broker.sizes) <= max(pace.batch_messages, 1)
