"""A replay that dies anywhere, again and again, leaves nothing out; a topic has each record once."""

import json
import random
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import trio

from brokers.pipeline.jobs import replay as job
from brokers.pipeline.jobs import verbs
from brokers.pipeline.jobs.replay import OutOfOrder, Pace, Place, Progress, Sent
from shared.errors import UsageError
from shared.storage.tools.logs import RecordRow, log_dump
from tests.pipeline.jobs.conftest import BILLS, READ
from tests.support.server import Server

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

OF = {"topic": "orders"}


class Killed(Exception):
    pass


class Broker:
    """What a server has. `once_each`: as BATCH does, the newest batch of a writer is known again."""

    def __init__(self, chance: random.Random, *, once_each: bool, deaths: float) -> None:
        self.once_each = once_each
        self.messages: list[bytes] = []
        self.sizes: list[int] = []
        self._last: tuple[str, int] | None = None
        self._chance = chance
        self._deaths = deaths

    def dies(self) -> None:
        if self._chance.random() < self._deaths:
            raise Killed

    async def send(self, name: str, writer: str, seq: int, messages: Sequence[bytes]) -> None:
        self.dies()
        if not (self.once_each and self._last == (writer, seq)):
            assert self._last is None or seq in (self._last[1], self._last[1] + 1)
            self._last = writer, seq
            self.messages += messages
            self.sizes.append(len(messages))
        self.dies()


class Mortal(Progress):
    """Dies before a note is written, or behind it."""

    dies: Callable[[], None] = staticmethod(lambda: None)

    def save(self, place: Place) -> None:
        self.dies()
        super().save(place)
        self.dies()


RECORDS = [Sent(7 * number, number / 10, b"%d" % number * (number % 9)) for number in range(5000)]


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("once_each", [True, False])
def test_nothing_is_lost_however_often_it_dies(seed: int, once_each: bool, tmp_path: Path) -> None:
    broker = Broker(random.Random(seed), once_each=once_each, deaths=0.3)
    deaths = 0
    while True:
        progress = Mortal(tmp_path / "progress", OF)
        progress.dies = broker.dies  # type: ignore[method-assign]
        try:
            trio.run(job.replay, RECORDS, "orders", broker, progress)
            break
        except Killed:
            deaths += 1
    assert deaths
    expected = [record.value for record in RECORDS]
    if once_each:
        assert broker.messages == expected
    else:
        found = iter(broker.messages)
        assert all(value in found for value in expected)  # in order, with some twice
        assert len(broker.messages) <= len(expected) + (deaths + 1) * job.BATCH_MESSAGES
    done = trio.run(job.replay, RECORDS, "orders", broker, Progress(tmp_path / "progress", OF))
    assert (done.messages, done.resumed) == (0, True)


def test_another_replays_file_is_not_used(tmp_path: Path) -> None:
    file = tmp_path / "progress"
    Progress(file, OF).save(Place(OF, "w", 1))
    with pytest.raises(UsageError, match="another replay"):
        Progress(file, {"topic": "bills"}).load()
    file.write_text("[]")
    with pytest.raises(UsageError, match="is no replay's"):
        Progress(file, OF).load()


def test_records_out_of_order_end_it(tmp_path: Path) -> None:
    broker = Broker(random.Random(), once_each=True, deaths=0)
    with pytest.raises(OutOfOrder):
        trio.run(job.replay, [RECORDS[1], RECORDS[0]], "orders", broker, Progress(tmp_path / "p", OF))


@pytest.mark.parametrize(
    ("pace", "seconds"),
    [(Pace(), 0), (Pace(rate=100), 0.99), (Pace(speed=1), 9.9), (Pace(rate=5, speed=1), 19.8)],
)
async def test_the_pace_is_kept(
    pace: Pace, seconds: float, tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    broker = Broker(random.Random(), once_each=True, deaths=0)
    begin = trio.current_time()
    await job.replay(RECORDS[:100], "orders", broker, Progress(tmp_path / "progress", OF), pace)
    assert trio.current_time() - begin == pytest.approx(seconds)
    assert broker.messages == [record.value for record in RECORDS[:100]]
    assert max(broker.sizes) <= max(pace.batch_messages, 1)


def test_a_topic_goes_again_into_a_topic_and_into_a_queue(
    spark: "SparkSession", passed: Path, tmp_path: Path
) -> None:
    with Server(tmp_path, "--enable", "logmq,dms") as server:
        for protocol, name in (("logmq", "again"), ("dms", "work")):
            host, port = server.address(protocol)
            if protocol == "dms":
                _create(host, port, name)
            for _ in range(2):  # the second finds that it is done
                with suppress(FileNotFoundError):
                    found = verbs.replay(
                        passed,
                        "bills",
                        protocol=protocol,
                        name=name,
                        host=host,
                        port=port,
                        progress=tmp_path / f"{name}.progress",
                    )
            assert (found.messages, found.resumed) == (0, True)
        assert server.stop() == 0
    rows = [row for row in log_dump(tmp_path / "data", "logmq", "again") if isinstance(row, RecordRow)]
    assert [row.payload for row in rows] == BILLS
    assert json.loads((tmp_path / "again.progress").read_text())["messages"] == len(BILLS)
    with pytest.raises(UsageError, match="no topic nothing"):
        verbs.replay(passed, "nothing", progress=tmp_path / "other")
    assert READ  # the folder is the other tests' too


def _create(host: str, port: int, name: str) -> None:
    from dms.client import connect

    async def run() -> None:
        async with connect(host, port) as client:
            await client.create(name)

    trio.run(run)
