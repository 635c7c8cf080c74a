"""A store that follows another has what that has, and takes nothing else."""

from pathlib import Path

import attrs
import pytest

from brokers.ship.assembling import Cut
from shared.errors import StoreReadOnly
from shared.storage.following import Diverged, Follower, Position
from shared.storage.store import Retention, Store
from tests.brokers.ship.apart import TIME_MS, Apart, batch_lsn, content
from tests.support.stores import ALWAYS, HandClock, open_store, records, running

WHY = StoreReadOnly("this server follows another one")
NOWHERE = Position(1, 0, 0, 0, 0, 0, 7)


def came(apart: Apart, at: int) -> tuple[list[tuple], dict[tuple[int, int], bytes], Position]:  # type: ignore[type-arg]
    wal = apart.unpacked(at)
    referred = {(piece.log_id, piece.offset): bytes(piece.data or b"") for piece in wal.pieces()}
    head = wal.head
    position = Position(head.journal_id, 1, at, head.next_lsn, head.next_lsn, head.last_ms, 1)
    return [*wal.batches()], referred, position


async def follow(apart: Apart, folder: Path) -> tuple[Store, Follower]:
    """From the first instant on."""
    apart.put_together(folder, Cut(lsn=apart.instants[0][0]))
    store = await open_store(folder=folder)
    return store, store.follow(WHY)


async def test_it_has_each_instant_in_turn(apart: Apart, tmp_path: Path) -> None:
    store, follower = await follow(apart, tmp_path / "follower")
    assert await follower.position(NOWHERE) == NOWHERE
    there = dict(apart.instants)
    for at in range(len(apart.batches)):
        batches, referred, position = came(apart, at)
        await store.wait(follower.apply(batches, referred, position))
        if position.lsn in there:
            assert await content(store) == there[position.lsn]
        if at % 7 == 3:  # a crash, and a new start
            store.abandon()
            store = await open_store(folder=tmp_path / "follower")
            follower = store.follow(WHY)
            assert (await follower.position(NOWHERE))._replace(next_id=1) == position
    assert await content(store) == apart.instants[-1][1]
    await store.close()


async def test_records_have_the_times_that_they_have_there(apart: Apart, tmp_path: Path) -> None:
    (await follow(apart, tmp_path / "follower"))[0].abandon()
    store = await open_store(folder=tmp_path / "follower", clock=HandClock(TIME_MS + 86_400_000))
    follower = store.follow(WHY)
    for at in range(len(apart.batches)):
        await store.wait(follower.apply(*came(apart, at)))
    assert await store.flush()
    logs = [log for name in ("one", "two") for log in store.namespace(name, ALWAYS).logs.values()]
    assert {log.last_ms for log in logs if log.end} == {TIME_MS}
    await store.close()


async def test_nobody_else_writes(apart: Apart, tmp_path: Path) -> None:
    store, follower = await follow(apart, tmp_path / "follower")
    one = store.namespace("one", ALWAYS, retention=Retention(bytes_kept=1))
    log = one.logs["a"]
    batches, referred, position = came(apart, 0)
    ticket = follower.apply(batches, referred, position)
    for refused in (
        lambda: log.append(records(b"x"), 1),
        lambda: log.drop_below(log.end),
        lambda: one.create("new"),
        lambda: one.delete("a"),
        lambda: store.append_all([(log, records(b"x"), 1)]),
    ):
        with pytest.raises(StoreReadOnly, match="follows another"):
            refused()
    await store.wait(ticket)
    assert store.read_only is WHY
    assert store.follows
    first = log.first
    async with running(store):
        await store.retain()
    assert log.first == first  # it is the other one that drops
    await store.close()


async def test_what_does_not_go_on_is_not_taken(apart: Apart, tmp_path: Path) -> None:
    store, follower = await follow(apart, tmp_path / "follower")
    before = await content(store)
    batches, referred, position = came(apart, 1)  # the first one is missing
    with pytest.raises(Diverged):
        follower.apply(batches, referred, position)
    store.commit_pending()
    assert not store.follows
    store.abandon()
    store = await open_store(folder=tmp_path / "follower")
    assert await content(store) == before
    await store.close()


async def test_it_forgets_to_follow(apart: Apart, tmp_path: Path) -> None:
    store, follower = await follow(apart, tmp_path / "follower")
    batches, referred, position = came(apart, 0)
    await store.wait(follower.apply(batches, referred, position))
    await store.wait(follower.forget())
    await store.close()
    store = await open_store(folder=tmp_path / "follower")
    assert await store.follow(WHY).position(NOWHERE) == NOWHERE
    assert attrs.asdict(store.statistics())["logs"] == len(await content(store))
    store.abandon()
    assert batch_lsn(apart.batches[0]) < position.lsn
