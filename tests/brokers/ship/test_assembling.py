"""A live folder that was taken apart is put together again, as of every instant."""

from pathlib import Path

import pytest

from brokers.ship.assembling import ALL, Assembler, Broken, Cut, clear, is_empty, say_finished
from brokers.ship.names import UNFINISHED
from shared.errors import StoreFormat
from shared.storage import index
from shared.storage.catalog import Catalog, LogLine
from shared.storage.os_disk import OsDisk
from shared.storage.settings import Durability
from shared.storage.tools.fsck import check
from tests.brokers.ship.apart import Apart, batch_lsn, restored
from tests.support.stores import ask, open_store, payloads, records


async def test_each_instant_is_there_again(apart: Apart, tmp_path: Path) -> None:
    for number, (lsn, there) in enumerate(apart.instants):
        target = tmp_path / f"at{number}"
        apart.put_together(target, Cut(lsn=lsn))
        assert await restored(target) == there
        assert check(target).ok


async def test_all_that_was_shipped_is_there(apart: Apart, tmp_path: Path) -> None:
    assert apart.put_together(tmp_path / "all") == apart.lsn
    assert await restored(tmp_path / "all") == apart.instants[-1][1]


async def test_a_batch_that_is_missing_ends_it_before(apart: Apart, tmp_path: Path) -> None:
    with pytest.raises(Broken, match="missing"):
        apart.put_together(tmp_path / "hole", without=(4,))
    before = max(
        (each for each in apart.instants if each[0] <= batch_lsn(apart.batches[4])), key=lambda x: x[0]
    )
    assert await restored(tmp_path / "hole") == before[1]


async def test_a_part_of_it_has_those_logs_alone(apart: Apart, tmp_path: Path) -> None:
    apart.put_together(tmp_path / "part", only="b")
    whole = apart.instants[-1][1]
    assert await restored(tmp_path / "part") == {"two/b": whole["two/b"]}
    apart.put_together(tmp_path / "made", only="made")
    assert await restored(tmp_path / "made") == {"one/made": whole["one/made"]}


async def test_bytes_that_are_missing_are_an_error_to_read(tmp_path: Path) -> None:
    line = LogLine(7, "one", "a", "a", "always", 1, 0, 2048)
    snapshot = Catalog(5, 512, 9, 1, False, [line])
    data = records(b"x" * 1020) * 2
    entries, _ = index.rebuild(lambda length, at: data[at : at + length], 0, 2048, 1, piece_bytes=1024)
    with OsDisk(tmp_path / "lost") as disk:
        made = Assembler(disk, snapshot, ALL)
        made.begin()
        made.place(7, 0, data[:1024])
        assert made.complete(7, entries[:1]) == [(1024, 2048)]
        made.finish(1)
        say_finished(disk)
    store = await open_store(folder=tmp_path / "lost")
    log = store.namespace("one", Durability("always")).logs["a"]
    assert payloads(await ask(log.read, 0, 1024)) == [b"x" * 1020]
    assert [(each.offset, each.length) for each in [log.lost_at(1024)]] == [(1024, 1024)]
    await store.close()
    assert not check(tmp_path / "lost").ok


async def test_what_was_cut_short_is_not_served_and_may_go(apart: Apart, tmp_path: Path) -> None:
    target = tmp_path / "cut"
    with OsDisk(target) as disk:
        made = Assembler(disk, apart.snapshot, ALL)
        made.begin()
        made.abandon()
    with pytest.raises(StoreFormat):
        await open_store(folder=target)
    assert is_empty(target)
    clear(target)
    assert list(target.iterdir()) == []
    apart.put_together(target)
    assert not (target / UNFINISHED).exists()
    assert not is_empty(target)
    with pytest.raises(StoreFormat):
        clear(target)
