"""Commits of several batches: what they do to a log, in whichever order, is there as it was acknowledged."""

import itertools
from collections.abc import Callable, Iterator, Sequence

import attrs
import pytest

from shared.storage.log import Log
from shared.storage.settings import Durability
from shared.storage.store import Namespace, Store
from tests.support.commits import batches_of
from tests.support.stores import (
    ALWAYS,
    INTERVAL,
    NONE,
    SMALL,
    fresh_store,
    open_store,
    read_all,
    records,
)

SETTINGS = attrs.evolve(SMALL, segment_bytes=1 << 20, tail_log_bytes=16_000, reference_bytes=3000)
"""Of one log, up to 1 KB goes to its tail, more to its file, and from 3 KB on the journal refers to that."""


Given = dict[str, dict[int, bytes]]
"""By log: each record that it was given and keeps, at its offset."""


@attrs.define(eq=False)
class Worker:
    """Does operations on the log `log`, some of them on others beside it."""

    store: Store
    namespace: Namespace
    given: Given = attrs.Factory(dict)
    count: int = 0

    @property
    def log(self) -> Log:
        return self.namespace.logs["log"]

    def create(self, name: str, mode: Durability) -> None:
        self.namespace.create(name, mode)
        self.given[name] = {}

    def payload(self, size: int) -> bytes:
        self.count += 1
        return b"<%d>" % self.count + b"." * size

    def append(self, size: int, name: str = "log") -> None:
        payload = self.payload(size)
        offset, _ = self.namespace.logs[name].append(records(payload), 1)
        self.given[name][offset] = payload

    def append_with_others(self) -> None:
        payloads = {log: self.payload(20) for log in self.namespace.logs.values()}
        parts = [(log, records(payload), 1) for log, payload in payloads.items()]
        offsets, _ = self.store.append_all(parts)
        for (log, payload), offset in zip(payloads.items(), offsets, strict=True):
            self.given[log.name][offset] = payload

    def append_together(self) -> None:
        with self.store.together(1):
            self.append(20, "other")
            self.append(20)
            self.append(20, "other none")

    def drop(self) -> None:
        """All but the newest record."""
        given = self.given["log"]
        first = max(given, default=self.log.first)
        self.log.drop_below(first)
        self.given["log"] = {offset: payload for offset, payload in given.items() if offset >= first}

    def make_anew(self) -> None:
        mode = self.log.mode
        self.namespace.delete("log")
        self.create("log", mode)

    def change_mode(self, mode: Durability) -> None:
        self.namespace.change_mode("log", mode)


OPERATIONS: dict[str, Callable[[Worker], None]] = {
    "append": lambda worker: worker.append(20),
    "append to the file": lambda worker: worker.append(1500),
    "append by reference": lambda worker: worker.append(4000),
    "append with others": Worker.append_with_others,
    "append together": Worker.append_together,
    "drop": Worker.drop,
    "make anew": Worker.make_anew,
    "always": lambda worker: worker.change_mode(ALWAYS),
    "none": lambda worker: worker.change_mode(NONE),
}
BEFORE: dict[str, Callable[[Worker], None]] = {
    "a tail": lambda worker: worker.append(20),
    "a file": lambda worker: worker.append(1500),
    "a file that references lead to": lambda worker: worker.append(4000),
}


async def run(mode: Durability, before: str, operations: Sequence[str]) -> None:
    disk, store = await fresh_store(SETTINGS)
    worker = Worker(store, store.namespace("logmq", ALWAYS))
    for name, each in (("other", ALWAYS), ("other none", NONE), ("log", mode)):
        worker.create(name, each)
    for _ in range(2):
        BEFORE[before](worker)
        store.commit_pending()
    commits = store.statistics().commits
    for name in operations:
        OPERATIONS[name](worker)
    store.commit_pending()
    assert store.statistics().commits <= commits + 1
    await check(store, worker.given)
    killed = disk.kill()
    await store.flush()
    await check(store, worker.given)
    await store.close()
    for left in (killed, disk):
        again = await open_store(left, SETTINGS)
        await check(again, worker.given)
        again.abandon()


async def check(store: Store, given: Given) -> None:
    for name, payloads in given.items():
        log = store.namespace("logmq", ALWAYS).logs[name]
        assert await read_all(log) == [payloads[offset] for offset in sorted(payloads)]
        assert log.first == min(payloads, default=log.end)


@pytest.fixture(autouse=True)
def each_operation_is_a_batch() -> Iterator[None]:
    with batches_of(0):
        yield


@pytest.mark.parametrize("before", BEFORE)
@pytest.mark.parametrize("mode", [ALWAYS, INTERVAL, NONE], ids=str)
async def test_what_two_batches_of_a_commit_do_to_a_log_is_there(mode: Durability, before: str) -> None:
    """Each case has a third of the pairs: each pair is there once with each mode and each beginning."""
    case = [ALWAYS, INTERVAL, NONE].index(mode) + [*BEFORE].index(before)
    for operations in [*itertools.product(OPERATIONS, repeat=2)][case % 3 :: 3]:
        try:
            await run(mode, before, operations)
        except AssertionError as error:
            raise AssertionError(f"{mode}, {before}: {' / '.join(operations)}") from error
