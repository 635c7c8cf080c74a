"""A folder from a bucket: as of any instant, whole or in part; what is missing is named, never guessed."""

import errno
from collections import Counter
from pathlib import Path

import pytest

from brokers.errors import Failure
from brokers.ship.assembling import ALL, Broken, Cut, clear
from brokers.ship.bucket import Unusable
from brokers.ship.formats import PARTS_PREFIX, SHIP_PATH, unpack_directory, unpack_mark, wal_key
from brokers.ship.names import UNFINISHED
from brokers.ship.restore import Restore, Restored
from shared.errors import StoreFormat, UsageError
from shared.storage import catalog
from shared.storage.os_disk import OsDisk
from tests.brokers.ship.apart import TIME_MS, Apart, batch_lsn, restored
from tests.brokers.ship.fake_bucket import Crash, FakeStore, bucket_of


@pytest.fixture
async def store(apart: Apart) -> FakeStore:
    found = FakeStore()
    await apart.fill(bucket_of(found), every=3)
    return found


async def restore(store: FakeStore, folder: Path, cut: Cut = ALL, only: tuple[str, ...] = ()) -> Restored:
    return await Restore(bucket_of(store), folder, cut=cut, only=only).run(verify_full=True)


def journal_id(folder: Path) -> int:
    with OsDisk(folder, read_only=True) as disk:
        found = catalog.read(disk)
        assert found is not None
        return found.journal_id


async def test_all_of_it_is_there_and_ships_on(
    apart: Apart, store: FakeStore, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "back"
    report = await restore(store, folder)
    assert "damaged" not in capsys.readouterr().out
    there = apart.instants[-1][1]
    assert await restored(folder) == there
    assert UNFINISHED not in names(folder)
    assert (report.lsn, report.missing, report.time_ms) == (apart.lsn, [], TIME_MS)
    assert report.check is not None
    assert report.check.ok
    count = sum(len(records) for _, records in there.values())
    assert {each.protocol: each.logs for each in report.stands} == Counter(n.split("/")[0] for n in there)
    assert sum(each.records for each in report.stands) >= count  # entries at the front are kept whole
    mark = unpack_mark((folder / SHIP_PATH).read_bytes())
    assert mark is not None
    assert (mark.lsn, mark.epoch, wal_key(mark.number)) == (apart.lsn, 1, max(store.objects))
    assert mark.journal_id == f"{journal_id(folder):016x}" == report.journal_id


async def test_an_instant_is_there_and_begins_a_journal_of_its_own(
    apart: Apart, store: FakeStore, tmp_path: Path
) -> None:
    for number in range(0, len(apart.instants), 6):
        lsn, there = apart.instants[number]
        report = await restore(store, tmp_path / str(number), Cut(lsn=lsn))
        assert await restored(tmp_path / str(number)) == there
        assert (report.lsn, report.missing) == (lsn, [])
        assert not (tmp_path / str(number) / SHIP_PATH).exists()
        assert journal_id(tmp_path / str(number)) != apart.snapshot.journal_id
    whole = await restore(store, tmp_path / "at", Cut(time_ms=TIME_MS))
    assert whole.lsn == apart.lsn
    for cut in (Cut(lsn=apart.instants[0][0] - 512), Cut(time_ms=TIME_MS - 1)):
        with pytest.raises(Failure, match="nothing of that instant"):
            await restore(store, tmp_path / "before", cut)
    assert not (tmp_path / "before").exists()


async def test_a_part_is_asked_for_by_protocol_and_name(
    apart: Apart, store: FakeStore, tmp_path: Path
) -> None:
    there = apart.instants[-1][1]
    report = await restore(store, tmp_path / "some", only=("one:ma*", "two:*", "one:mad", "three:*"))
    assert report.missing == ["one:mad: nothing has such a name", "three:*: nothing has such a name"]
    assert await restored(tmp_path / "some") == {name: there[name] for name in ("one/made", "two/b")}
    assert not (tmp_path / "some" / SHIP_PATH).exists()
    await restore(store, tmp_path / "one", only=("two:*",))  # "made" came later than the snapshot
    assert await restored(tmp_path / "one") == {"two/b": there["two/b"]}
    with pytest.raises(UsageError):
        await restore(store, tmp_path / "none", only=("orders",))


async def test_a_wal_object_that_is_missing_ends_it_before(
    apart: Apart, store: FakeStore, tmp_path: Path
) -> None:
    del store.objects[wal_key(6)]
    report = await restore(store, tmp_path / "hole")
    assert "from wal/00000000000000000007 on cannot be used" in report.missing[0]
    assert await restored(tmp_path / "hole") == dict(apart.instants)[report.lsn]
    assert not (tmp_path / "hole" / SHIP_PATH).exists()


async def test_a_batch_that_is_missing_ends_it_before(apart: Apart, tmp_path: Path) -> None:
    with pytest.raises(Broken, match="missing"):
        apart.put_together(tmp_path, without=4)
    before = [there for lsn, there in apart.instants if lsn <= batch_lsn(apart.batches[4])]
    assert await restored(tmp_path) == before[-1]


async def test_damage_costs_what_it_covers_and_is_named(
    apart: Apart, store: FakeStore, tmp_path: Path
) -> None:
    key = next(key for key in store.objects if key.startswith("parts/"))
    data = bytearray(store.objects[key])
    data[-10] ^= 1  # in the newest record of the last log there
    store.objects[key] = bytes(data)
    wal = bytearray(store.objects[wal_key(9)])
    wal[700] ^= 1
    store.objects[wal_key(9)] = bytes(wal)
    report = await restore(store, tmp_path / "damaged", Cut(lsn=apart.instants[4][0]))
    assert any("CRC" in line for line in report.missing)
    assert any(line.startswith("two/b: ") for line in report.missing)
    assert report.check is not None
    assert not report.check.ok
    report = await restore(store, tmp_path / "wal")
    assert any("wal/00000000000000000009" in line for line in report.missing)
    assert await restored(tmp_path / "wal") == dict(apart.instants)[report.lsn]


@pytest.mark.parametrize(
    "error", [OSError(errno.ENOSPC, "full"), Unusable("no right")], ids=["disk", "bucket"]
)
async def test_what_ends_it_is_told_as_that(store: FakeStore, tmp_path: Path, error: Exception) -> None:
    def before(operation: str, key: str) -> None:
        if key.startswith(PARTS_PREFIX):
            raise error

    store.before = before
    with pytest.raises(type(error)) as raised:
        await restore(store, tmp_path / "back")
    assert raised.value is error


async def test_a_folder_that_is_not_empty_is_left_alone(store: FakeStore, tmp_path: Path) -> None:
    folder = tmp_path / "full"
    folder.mkdir()
    (folder / "mine").write_text("precious")
    with pytest.raises(StoreFormat, match="not empty"):
        await restore(store, folder)
    assert names(folder) == ["mine"]


def names(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir()]


async def test_a_restore_that_is_cut_short_is_made_anew(
    apart: Apart, store: FakeStore, tmp_path: Path
) -> None:
    store.faults = {len(store.asked) + 6: "crash"}
    folder = tmp_path / "cut"
    with pytest.RaisesGroup(Crash, allow_unwrapped=True, flatten_subgroups=True):
        await restore(store, folder)
    assert UNFINISHED in names(folder)
    with pytest.raises(StoreFormat):
        await restored(folder)
    store.faults = {len(store.asked) + 4: "refused"}  # which is asked again
    report = await restore(store, folder)
    assert (report.lsn, report.missing) == (apart.lsn, [])
    assert await restored(folder) == apart.instants[-1][1]


def test_of_what_was_cut_short_nothing_is_left(tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    for name in (UNFINISHED, catalog.PATH, "one/a.log"):
        (tmp_path / name).touch()
    clear(tmp_path)
    assert names(tmp_path) == []


def with_other_bytes(store: FakeStore, log_name: str) -> None:
    """A part has other bytes of a log, as where they were dropped while a snapshot was made."""
    for key in [key for key in store.objects if key.startswith("parts/")]:
        directory = unpack_directory(store.objects[key], key)
        assert not isinstance(directory, int)
        data = bytearray(store.objects[key])
        for section in directory:
            if section.name == log_name:
                data[section.at : section.at + section.length] = bytes(section.length)
        store.objects[key] = bytes(data)


@pytest.mark.parametrize(("log_name", "is_dropped"), [("b", True), ("a", False)])
async def test_what_no_part_has_is_missing_only_where_the_journal_does_not_say_that_it_is_dropped(
    apart: Apart, store: FakeStore, tmp_path: Path, log_name: str, is_dropped: bool
) -> None:
    with_other_bytes(store, log_name)
    report = await restore(store, tmp_path / "back")
    if is_dropped:
        assert report.missing == []
        assert report.check is not None
        assert report.check.ok
        assert await restored(tmp_path / "back") == apart.instants[-1][1]
        assert (tmp_path / "back" / SHIP_PATH).exists()
    else:
        named = [line.partition(":")[0] for line in report.missing]
        assert [name.partition("/")[0] for name in named] == ["parts", "one"]
        assert not (tmp_path / "back" / SHIP_PATH).exists()
    early = await restore(store, tmp_path / "early", Cut(lsn=apart.instants[0][0]))
    assert len(early.missing) == 2
