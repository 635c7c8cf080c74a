"""What is promised to a round and given when it is sealed: as safe as what is appended."""

import pytest

from shared.errors import StoreReadOnly
from shared.storage.store import Durability, Log, LogAppend
from tests.support.commits import logs_of, outcome
from tests.support.fake_disk import FakeDisk
from tests.support.stores import ALWAYS, NONE, open_store, read_all, records, reopen


class Gatherer:
    """Gathers records of one log."""

    def __init__(self, log: Log) -> None:
        self.log = log
        self.run: LogAppend | None = None
        self.bodies: list[bytes] = []
        self.kept = 0
        self.written = 0

    def take(self, body: bytes) -> LogAppend:
        size = len(records(body))
        if self.run is None or self.run is not self.log.pending or size > self.run.batch.room:
            self.run = self.log.gather(size, self.write)
        else:
            self.run.batch.room -= size
        self.kept += size
        self.bodies.append(body)
        return self.run

    def write(self) -> None:
        run, self.run = self.run, None
        assert run is not None
        run.batch.room += self.kept
        run.add(records(*self.bodies), len(self.bodies))
        self.bodies, self.kept = [], 0
        self.written += 1


@pytest.mark.parametrize("mode", [ALWAYS, NONE], ids=str)
async def test_what_is_gathered_is_written_once_behind_what_was_appended(mode: Durability) -> None:
    disk = FakeDisk()
    store = await open_store(disk)
    (log,) = await logs_of(store, mode)
    gatherer = Gatherer(log)
    tickets = {gatherer.take(b"%d" % number).ticket for number in range(3)}
    tickets.add(log.append(records(b"appended"), 1)[1])
    (ticket,) = tickets
    outcomes = outcome(ticket)
    store.commit_pending()
    assert outcomes == [None]
    assert gatherer.written == 1
    expected = [b"appended", b"0", b"1", b"2"]
    assert await read_all(log) == expected
    assert log.end == log.visible == len(records(*expected))


async def test_a_round_that_is_full_has_what_was_gathered_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shared.storage.log.BATCH_PAYLOAD_MAX", 1000)
    disk = FakeDisk()
    store = await open_store(disk)
    (log,) = await logs_of(store, ALWAYS)
    gatherer = Gatherer(log)
    bodies = [b"%02d" % number * 50 for number in range(20)]
    rounds = {id(run.batch): run.batch for run in map(gatherer.take, bodies)}
    assert 2 < len(rounds) < 10
    assert all(round_.bytes <= 1000 for round_ in rounds.values())
    store.commit_pending()
    assert gatherer.written == len(rounds)
    store, _ = await reopen(store, disk)
    assert await read_all(store.namespace("logmq", ALWAYS).logs[log.name]) == bodies


async def test_a_promise_that_is_not_kept_acknowledges_nothing() -> None:
    store = await open_store(FakeDisk())
    log, other = await logs_of(store, ALWAYS, ALWAYS)

    def broken() -> None:
        raise RuntimeError("a bug")

    ticket = log.gather(10, broken).ticket
    outcomes = outcome(ticket)
    assert other.append(records(b"x"), 1)[1] is ticket
    store.commit_pending()
    assert [type(error) for error in outcomes] == [StoreReadOnly]
    assert isinstance(store.read_only, StoreReadOnly)
    assert other.end == other.visible == 0
