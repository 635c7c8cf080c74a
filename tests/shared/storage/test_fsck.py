"""The offline tools: what they see, what they say of damage, what they repair, and that they lose nothing."""

import errno
import os
import shutil
from pathlib import Path

import pytest
import trio

from shared.errors import LogMissing, StoreFormat, StoreInUse
from shared.storage import catalog, format
from shared.storage.index import entry_position
from shared.storage.os_disk import OsDisk
from shared.storage.recovery import MISSING
from shared.storage.settings import Durability
from shared.storage.tools.fsck import FindingKind, FsckReport, Severity, check
from shared.storage.tools.logs import DamagedRow, RecordRow, log_dump, log_ls
from shared.storage.tools.repair import repair
from shared.storage.tools.view import Trust, ranges, viewing
from tests.support.folders import ALWAYS, add, checked, contents, fill, flip, open_folder, tree

# 30 records of 5,000 bytes, in three index entries.
LONG = [b"%02d" % number * 2500 for number in range(30)]
WORDS = {("logmq", "orders"): LONG, ("logmq", "few"): [b"one", b"two"], ("dms", "q%2f1"): [b"job"]}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for part in (LONG[:10], LONG[10:20], LONG[20:]):
        fill(tmp_path / "data", {("logmq", "orders"): part})
    fill(tmp_path / "data", {key: words for key, words in WORDS.items() if key != ("logmq", "orders")})
    return tmp_path / "data"


def payloads(folder: Path, namespace: str, name: str, start: int = 0, stop: int | None = None) -> list[bytes]:
    rows = list(log_dump(folder, namespace, name, start, stop))
    assert all(isinstance(row, RecordRow) for row in rows)
    return [row.payload for row in rows if isinstance(row, RecordRow)]


def damage(report: FsckReport) -> list[tuple[FindingKind, str]]:
    return [(f.kind, f.path) for f in report.findings if f.severity is Severity.DAMAGE]


# -- looking


def test_a_healthy_folder_has_nothing_to_say_and_stays_as_it_is(folder: Path) -> None:
    before = tree(folder)
    report = check(folder)
    assert report.ok
    assert report.findings == ()
    assert (report.logs, report.records) == (3, 33)
    assert report.bytes_read == sum(
        (folder / path).stat().st_size for path in before if path.endswith(".log")
    )
    after = tree(folder)
    assert {**before, "LOCK": b""} == {**after, "LOCK": b""}


def test_ls_tells_what_there_is(folder: Path) -> None:
    rows = {(row.namespace, row.name): row for row in log_ls(folder)}
    assert rows.keys() == WORDS.keys()
    row = rows["logmq", "orders"]
    assert (row.first, row.end, row.records, row.mode) == (0, 30 * 5004, 30, "always")
    assert row.disk_bytes >= row.end


@pytest.mark.parametrize("clean", [True, False])
def test_records_behind_all_that_the_journal_tells_are_told(folder: Path, clean: bool) -> None:
    fill(folder, {("logmq", "orders"): [b"newest"]}, clean=clean)
    end = next(row.end for row in log_ls(folder) if row.name == "orders")
    with (folder / "logmq/orders.log").open("r+b") as file:
        file.seek(end)
        file.write(LONG[0])
    told = [(f.path, f.offset, f.length) for f in check(folder).findings if f.kind is FindingKind.LOG]
    assert told == [("logmq/orders.log", end, len(LONG[0]))]


@pytest.mark.parametrize("clean", [True, False])
def test_the_tools_see_what_a_broker_would_serve(folder: Path, clean: bool) -> None:
    new = {("logmq", "orders"): [b"newest"], ("logmq", "young"): [b"a", b"", b"c"]}
    fill(folder, new, clean=clean)
    seen = {(row.namespace, row.name): payloads(folder, row.namespace, row.name) for row in log_ls(folder)}
    assert check(folder).ok
    assert seen == contents(folder)
    assert seen["logmq", "orders"] == [*LONG, b"newest"]


def test_logs_that_the_journal_deletes_are_gone(folder: Path) -> None:
    async def run() -> None:
        store = await open_folder(folder)
        store.namespace("logmq", ALWAYS).delete("few")
        store.namespace("logmq", ALWAYS).logs["orders"].drop_below(5 * 5004)
        store.commit_pending()
        store.abandon()

    trio.run(run)
    rows = {row.name: row for row in log_ls(folder)}
    assert rows.keys() == {"orders", "q%2f1"}
    assert rows["orders"].first == 5 * 5004
    assert payloads(folder, "logmq", "orders") == LONG[5:]
    with pytest.raises(LogMissing, match="no log few"):
        list(log_dump(folder, "logmq", "few"))
    assert check(folder).ok


def test_dump_gives_the_records_that_begin_in_the_range(folder: Path) -> None:
    assert payloads(folder, "logmq", "orders", 5004, 3 * 5004) == LONG[1:3]
    assert payloads(folder, "logmq", "orders", 5003, 5005) == LONG[1:2]
    assert payloads(folder, "logmq", "orders", 29 * 5004) == LONG[29:]
    assert payloads(folder, "logmq", "orders", 30 * 5004) == []
    row = next(iter(log_dump(folder, "logmq", "orders")))
    assert isinstance(row, RecordRow)
    assert row.time_ms is not None
    assert "<5000 bytes>" in repr(row), "no body ends up in a message"


def test_what_is_not_there_is_not_dumped(folder: Path) -> None:
    for namespace, name in (("logmq", "nowhere"), ("nowhere", "orders")):
        with pytest.raises(LogMissing, match="nowhere"):
            list(log_dump(folder, namespace, name))


async def test_a_served_folder_is_read_as_far_as_its_index_tells(tmp_path: Path) -> None:
    store = await open_folder(tmp_path / "data")
    add(store, "logmq", "orders", [b"one"])
    await store.checkpoint()
    add(store, "logmq", "orders", [b"two"])
    add(store, "logmq", "direct", [b"x"], Durability("none"))
    await store.checkpoint()
    add(store, "logmq", "orders", [b"not indexed yet"])

    def look() -> list[bytes]:
        return payloads(tmp_path / "data", "logmq", "orders")

    assert await trio.to_thread.run_sync(look) == [b"one", b"two"]
    with pytest.raises(StoreInUse):
        check(tmp_path / "data")
    with pytest.raises(StoreInUse):
        repair(tmp_path / "data")
    store.abandon()


async def test_a_served_folder_shows_the_logs_made_since_the_last_checkpoint(tmp_path: Path) -> None:
    store = await open_folder(tmp_path)
    add(store, "logmq", "old", [b"x"])
    add(store, "logmq", "gone", [b"x"])
    assert await store.checkpoint()
    add(store, "logmq", "new", [b"x", b"y"])
    store.namespace("logmq", ALWAYS).delete("gone")
    store.commit_pending()
    assert [(row.name, row.records) for row in log_ls(tmp_path)] == [("new", 0), ("old", 1)]
    assert await store.flush()
    assert [(row.name, row.records) for row in log_ls(tmp_path)] == [("new", 2), ("old", 1)]
    store.abandon()


def test_what_is_no_data_folder_or_a_newer_one_is_refused(tmp_path: Path, folder: Path) -> None:
    (tmp_path / "other").mkdir()
    for tool in (check, repair, log_ls):
        with pytest.raises(StoreFormat, match="not a data folder"):
            tool(tmp_path / "other")
    assert os.listdir(tmp_path / "other") == []
    (folder / "FORMAT").write_bytes(b"brokers data folder, format 2\n")
    before = tree(folder)
    for tool in (check, repair, log_ls):
        with pytest.raises(StoreFormat, match="format 2"):
            tool(folder)
    assert tree(folder) == before


def test_a_folder_that_cannot_be_written_can_be_checked(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    really = os.open

    def read_only(path: str, flags: int, *rest: int, **more: int) -> int:
        if flags & (os.O_WRONLY | os.O_RDWR):
            raise OSError(errno.EROFS, os.strerror(errno.EROFS))
        return really(path, flags, *rest, **more)

    monkeypatch.setattr(os, "open", read_only)
    assert check(folder).ok


# -- damage


def test_a_flipped_bit_in_a_log_is_found_and_the_rest_is_read(folder: Path) -> None:
    flip(folder / "logmq/orders.log", 8 * (2 * 5004 + 100))
    before = tree(folder)
    assert damage(check(folder)) == [(FindingKind.LOG, "logmq/orders.log")]
    (finding,) = check(folder).findings
    assert finding.offset is not None
    assert finding.length is not None
    assert finding.offset <= 2 * 5004 < finding.offset + finding.length
    rows = list(log_dump(folder, "logmq", "orders"))
    (bad,) = [row for row in rows if isinstance(row, DamagedRow)]
    good = [row.payload for row in rows if isinstance(row, RecordRow)]
    assert (bad.offset, bad.length) == (finding.offset, finding.length)
    assert good == LONG[(bad.offset + bad.length) // 5004 :]
    assert {**before, "LOCK": b""} == {**tree(folder), "LOCK": b""}
    assert not repair(folder).ok, "what does not match its CRC is not blessed"
    assert (folder / "logmq/orders.log").read_bytes() == before["logmq/orders.log"]


def test_a_damaged_index_entry_is_made_anew_unverified(folder: Path) -> None:
    path = folder / "logmq/orders.idx"
    original = path.read_bytes()
    assert len(original) > entry_position(2)
    flip(path, 8 * entry_position(1) + 70)
    broken = path.read_bytes()
    assert damage(check(folder)) == [(FindingKind.INDEX, "logmq/orders.idx")]
    report = repair(folder)
    assert report.ok
    assert [f.text.partition(":")[0] for f in report.findings] == ["the index was rebuilt"]
    assert len(report.repairs) == 1
    assert contents(folder) == WORDS
    (kept,) = (folder / "quarantine").rglob("orders.idx")
    assert kept.read_bytes() == broken
    _, sums = checked(folder, "logmq", "orders")
    assert sums.keys() == {Trust.GOOD, Trust.UNVERIFIED}
    assert repair(folder).repairs == (), "there is nothing left to do"


def test_a_missing_index_is_made_anew(folder: Path) -> None:
    (folder / "logmq/orders.idx").unlink()
    assert damage(check(folder)) == [(FindingKind.INDEX, "logmq/orders.idx")]
    assert payloads(folder, "logmq", "orders") == LONG, "records can be walked without it"
    assert repair(folder).ok
    assert checked(folder, "logmq", "orders") == (30, {Trust.UNVERIFIED: 30 * 5004})


def test_a_missing_or_short_log_is_damage_and_no_repair_hides_it(folder: Path) -> None:
    with (folder / "logmq/orders.log").open("r+b") as file:
        file.truncate(20 * 5004)
    (folder / "logmq/few.log").rename(folder / "elsewhere")
    report = check(folder)
    assert {path for _, path in damage(report)} == {"logmq/orders.log", "logmq/few.log"}
    assert not repair(folder).ok
    assert (folder / "elsewhere").exists()
    kept = [row.payload for row in log_dump(folder, "logmq", "orders") if isinstance(row, RecordRow)]
    assert kept == LONG[: len(kept)]
    assert len(kept) >= 10


def test_files_that_no_log_owns_are_moved_not_removed(folder: Path) -> None:
    (folder / "logmq/stranger.log").write_bytes(b"precious")
    (folder / "notes.txt").write_text("mine")
    (folder / "users.toml").write_text("the server's own")
    findings = check(folder).findings
    assert [(f.severity, f.kind, f.path) for f in findings] == [
        (Severity.WARNING, FindingKind.ORPHAN, "logmq/stranger.log"),
        (Severity.NOTE, FindingKind.ORPHAN, "notes.txt"),
    ]
    repair(folder)
    (moved,) = (folder / "quarantine").rglob("stranger.log")
    assert moved.read_bytes() == b"precious"
    assert (folder / "notes.txt").read_text() == "mine"


@pytest.mark.parametrize("how", ["flipped", "missing"])
def test_a_lost_catalog_is_rebuilt_from_the_logs(folder: Path, how: str) -> None:
    fill(folder, {("logmq", "orders"): [b"newest"], ("logmq", "young"): [b"y"]}, clean=False)
    if how == "flipped":
        flip(folder / "CATALOG", 1000)
    else:
        (folder / "CATALOG").unlink()
    assert damage(check(folder)) == [(FindingKind.CATALOG, "CATALOG")]
    wanted = {**WORDS, ("logmq", "orders"): [*LONG, b"newest"], ("logmq", "young"): [b"y"]}
    shutil.copytree(folder, folder.parent / "copy")
    assert contents(folder.parent / "copy") == wanted, "a start makes it anew by itself"
    report = repair(folder)
    assert report.ok
    assert any("CATALOG" in text for text in report.repairs)
    assert contents(folder) == wanted
    if how == "flipped":
        assert list((folder / "quarantine").rglob("CATALOG"))


def test_a_rebuilt_catalog_never_uses_an_id_again(folder: Path) -> None:
    ids = {row.id for row in log_ls(folder)}
    (folder / "CATALOG").unlink()
    repair(folder)
    assert {row.id for row in log_ls(folder)} == ids
    fill(folder, {("logmq", "later"): [b"l"]})
    (later,) = {row.id for row in log_ls(folder)} - ids
    assert later > max(ids) + 1000


@pytest.mark.parametrize("how", ["start", "repair"])
def test_a_rebuilt_catalog_takes_an_empty_log_for_damage_and_not_for_retention(
    folder: Path, how: str
) -> None:
    (folder / "CATALOG").unlink()
    (folder / "logmq/few.log").write_bytes(b"")
    for segment in (folder / "journal").iterdir():
        segment.unlink()  # else it heals the log
    if how == "start":
        fill(folder, {})
    else:
        assert (FindingKind.LOG, "logmq/few.log") in damage(repair(folder))
    assert [type(row) for row in log_dump(folder, "logmq", "few")] == [DamagedRow]


def test_a_rebuilt_catalog_finds_where_retention_stopped(tmp_path: Path) -> None:
    folder = tmp_path / "data"

    async def run() -> None:
        store = await open_folder(folder)
        for number in range(12):
            add(store, "logmq", "long", [b"%4d" % number * 16384])  # 64 KiB each: an entry of its own
        store.namespace("logmq", ALWAYS).logs["long"].drop_below(9 * (65536 + 4))
        store.commit_pending()
        await store.checkpoint()
        await store.retain()
        await store.close()

    trio.run(run)
    before = contents(folder)
    if payloads(folder, "logmq", "long") != before["logmq", "long"]:
        pytest.fail("the tools see what a broker would serve")
    (folder / "CATALOG").unlink()
    assert repair(folder).ok
    after = contents(folder)["logmq", "long"]
    assert after[-3:] == before["logmq", "long"]
    assert len(after) <= 4, "at most the record that a hole's edge goes through comes back"


@pytest.mark.parametrize("how", ["flipped", "missing"])
def test_a_lost_format_file_is_written_again(folder: Path, how: str) -> None:
    if how == "flipped":
        flip(folder / "FORMAT", 11)
    else:
        (folder / "FORMAT").unlink()
    assert damage(check(folder)) == [(FindingKind.FORMAT, "FORMAT")]
    assert repair(folder).ok
    assert contents(folder) == WORDS


def test_a_torn_journal_is_a_warning_and_a_hole_in_it_is_damage(folder: Path) -> None:
    fill(folder, {("logmq", "few"): [b"three"], ("logmq", "young"): [b"y"]}, clean=False)
    with OsDisk(folder, read_only=True) as disk:
        found = catalog.read(disk)
    assert found is not None
    segment = folder / f"journal/{found.replay_lsn:020d}.wal"
    second = format.unpack_batch(segment.read_bytes()).size * 8  # type: ignore[union-attr]
    flip(segment, second + 8 * 100)
    report = check(folder)
    assert report.ok
    assert (Severity.WARNING, FindingKind.JOURNAL) in [(f.severity, f.kind) for f in report.findings]
    flip(segment, second + 8 * 100)
    flip(segment, 8 * 100)
    lost = FindingKind.LOG, "logmq/few.log"
    assert damage(check(folder)) == [(FindingKind.JOURNAL, "journal"), lost]
    copy = segment.read_bytes()
    report = repair(folder)
    assert any("damaged" in path and data[: len(copy)] == copy for path, data in tree(folder).items())
    assert (
        "what a damaged place in the journal held is lost; it seems to be of logmq/few.log" in report.repairs
    )
    assert damage(report) == [lost]
    assert payloads(folder, "logmq", "young") == [b"y"]
    assert [type(row) for row in log_dump(folder, "logmq", "few")] == [RecordRow, RecordRow, DamagedRow]


@pytest.mark.parametrize("how", ["missing", "empty"])
def test_a_journal_that_is_not_there_after_a_kill_is_told(folder: Path, how: str) -> None:
    fill(folder, {}, clean=False)
    assert check(folder).findings == ()  # killed before it wrote anything
    fill(folder, {("logmq", "few"): [b"three"]}, clean=False)
    for segment in (folder / "journal").iterdir():
        if how == "missing":
            segment.unlink()
        else:
            segment.write_bytes(b"")
    (finding,) = check(folder).findings
    assert (finding.severity, finding.kind) == (Severity.WARNING, FindingKind.JOURNAL)
    repaired = repair(folder)
    assert repaired.repairs == (MISSING,)
    assert repaired.findings == ()
    assert contents(folder)["logmq", "few"] == [b"one", b"two"]


def test_ranges_of_the_journal_alone_are_good(folder: Path) -> None:
    fill(folder, {("logmq", "young"): [b"a", b"b"]}, clean=False)
    with viewing(folder) as view:
        log = view.find("logmq", "young")
        assert log is not None
        assert log.patches
    assert checked(folder, "logmq", "young") == (2, {Trust.GOOD: 10})


def test_a_log_that_is_deleted_while_a_live_folder_is_read_is_no_damage(folder: Path) -> None:
    async def run() -> None:
        store = await open_folder(folder)
        namespace = store.namespace("logmq", ALWAYS)
        with viewing(folder) as view:
            for name in ("few", "orders"):
                namespace.delete(name)
            add(store, "logmq", "few", [b"of another log"] * 3)
            for name in ("few", "orders"):
                log = view.find("logmq", name)
                assert log is not None
                with view.reader(log) as reader, pytest.raises(LogMissing, match=f"{name} .* was deleted"):
                    list(ranges(view, log, reader, log.first, log.end))
        await store.close()

    trio.run(run)
