"""Memory that is not there: a commit is refused or ends as it must, and the store goes on."""

import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import attrs
import pytest
import trio
from crc32c import crc32c
from structlog.testing import capture_logs
from trio.testing import MockClock

from shared.errors import CorruptRecord, StoreError
from shared.storage import committer, format, log, log_writer, reading
from shared.storage.settings import Durability
from shared.storage.threads import Threads
from tests.support.commits import outcome
from tests.support.stores import (
    ALWAYS,
    INTERVAL,
    NONE,
    SMALL,
    append,
    ask,
    fresh_store,
    open_store,
    read_all,
    records,
    reopen,
    running,
)

ROOMY = attrs.evolve(SMALL, segment_bytes=1 << 20)


def without_memory(work: Callable[..., Any], times: int = 1) -> Callable[..., Any]:
    """`work`, for which there is none at first."""
    left = times

    def tried(*arguments: Any, **options: Any) -> Any:
        nonlocal left
        left -= 1
        if left >= 0:
            raise MemoryError
        return work(*arguments, **options)

    return tried


@pytest.mark.parametrize("mode", [ALWAYS, INTERVAL, NONE], ids=str)
@pytest.mark.parametrize(
    ("owner", "name"),
    [
        (format, "pack_batch"),
        (committer.Committer, "_take_log"),
        (log.CommitBatch, "seal"),
        (committer.Commit, "run"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
async def test_what_finds_no_memory_is_refused_and_taken_back(
    monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, mode: Durability
) -> None:
    disk, store = await fresh_store(ROOMY)
    topic, ticket = store.namespace("logmq", ALWAYS).create("topic", mode)
    await store.wait(ticket)
    await append(store, topic, b"before")
    tried = without_memory(getattr(owner, name))
    monkeypatch.setattr(owner, name, lambda *each, **options: tried(*each, **options))
    refused = []
    for size in (20, 40_000, 500_000):
        with capture_logs() as said:
            error = outcome(topic.append(records(b"x" * size), 1)[1])
            store.commit_pending()
        if error != [None]:
            assert str(error[0]) == "not written: out of memory"
            assert [line["log_level"] for line in said] == ["error"], "told to the operator, too"
            refused.append(size)
    assert store.read_only is None
    assert len(refused) <= 1
    whole = [b"before", *(b"x" * size for size in (20, 40_000, 500_000) if size not in refused)]
    assert await read_all(topic) == whole
    killed = disk.kill()
    await store.close()
    for left in (killed, disk):
        again = await open_store(left, ROOMY)
        assert await read_all(again.namespace("logmq", ALWAYS).logs["topic"]) == whole
        again.abandon()


@pytest.mark.parametrize(
    ("owner", "name"), [(committer, "extend"), (log, "bytes"), (committer.Commit, "_apply_append")]
)
@pytest.mark.parametrize("size", [5000, 40_000])
async def test_what_the_journal_has_is_acknowledged_and_served(
    monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, size: int
) -> None:
    disk, store = await fresh_store(attrs.evolve(ROOMY, tail_log_bytes=200_000))
    topic, ticket = store.namespace("logmq", ALWAYS).create("topic", INTERVAL)
    await store.wait(ticket)
    tried = without_memory(getattr(owner, name, bytes))
    monkeypatch.setattr(owner, name, lambda *each, **options: tried(*each, **options), raising=False)
    topic.append(records(b"x" * size), 1)
    topic.append(records(b"y" * 20_000), 1)
    store.commit_pending()
    assert store.read_only is None
    whole = [b"x" * size, b"y" * 20_000]
    assert await read_all(topic) == whole
    assert await store.flush()
    assert await read_all(topic) == whole
    store, _ = await reopen(store, disk, ROOMY)
    assert await read_all(store.namespace("logmq", ALWAYS).logs["topic"]) == whole


@pytest.mark.parametrize("name", ["_write", "_take"])
async def test_tails_are_written_when_there_is_memory_again(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: MockClock, name: str
) -> None:
    _, store = await fresh_store(ROOMY)
    topic, _ = store.namespace("logmq", ALWAYS).create("topic")
    sound = getattr(log_writer.LogWriter, name)
    tried = without_memory(sound, times=3)
    monkeypatch.setattr(log_writer.LogWriter, name, lambda *each: tried(*each))
    async with running(store):
        await append(store, topic, b"x")
        await trio.sleep(5)
        assert not topic.tail_bytes
        assert await store.checkpoint()
    assert await read_all(topic) == [b"x"]


async def test_a_checkpoint_that_finds_no_memory_is_made_later(monkeypatch: pytest.MonkeyPatch) -> None:
    _, store = await fresh_store(ROOMY)
    topic, _ = store.namespace("logmq", ALWAYS).create("topic")
    await append(store, topic, b"x")
    tried = without_memory(log_writer.LogWriter.flush)
    monkeypatch.setattr(log_writer.LogWriter, "flush", lambda self: tried(self))
    assert [await store.checkpoint() for _ in range(2)] == [False, True]
    assert store.read_only is None


async def test_a_read_that_finds_no_memory_is_an_error_of_that_read(monkeypatch: pytest.MonkeyPatch) -> None:
    _, store = await fresh_store(ROOMY)
    topic, _ = store.namespace("logmq", ALWAYS).create("topic")
    await append(store, topic, b"x")
    await store.flush()
    monkeypatch.setattr(reading, "crc32c", without_memory(crc32c))
    error = await ask(topic.read, 0, 100)
    assert isinstance(error, StoreError)
    assert not isinstance(error, CorruptRecord)
    assert str(error) == "logmq/topic.log cannot be read: out of memory"
    assert await read_all(topic) == [b"x"]


async def test_where_a_thread_finds_no_memory_to_begin_the_loop_does_its_work(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(trio.to_thread, "run_sync", without_memory(trio.to_thread.run_sync))
    assert await Threads()(lambda: 5) == 5


def test_what_is_kept_for_a_commit_takes_no_memory_and_once_given_up_it_is_kept_again() -> None:
    before = resident_bytes()
    kept = [SimpleNamespace(spare=committer.address_space(64 << 20)) for _ in range(4)]
    assert resident_bytes() - before < 64 << 20
    kept[0].spare.close()
    committer.Committer.look_at_memory(kept[0])
    assert not kept[0].spare.closed


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
