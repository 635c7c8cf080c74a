"""What is read of a data folder's logs, and what of it is told as lost: nothing else is ever left out."""

import os
from pathlib import Path

import attrs
import pytest

from brokers.pipeline.source import rows, stream
from brokers.pipeline.source.folder import FolderReader
from brokers.pipeline.source.reader import DataLoss
from shared.storage import format
from shared.storage.format import INDEX_ENTRY_BYTES, EntryFlag
from shared.storage.index import entry_position
from shared.storage.settings import Retention
from shared.storage.store import Store
from tests.pipeline.folders import (
    ORDERS,
    RECORDS,
    entries_of,
    follow,
    in_store,
    offset_of,
    options,
    part,
    placed,
    planned,
    remake,
    rewrite_entry,
    values,
    whole,
)
from tests.support.folders import ALWAYS, add, fill, flip


def test_every_record_is_read_with_its_offset(folder: Path) -> None:
    read = [row for batch in rows.read(options(folder), [whole(folder)]) for row in batch.to_pylist()]
    assert [(row["offset"], row["value"]) for row in read] == placed(RECORDS)


def test_any_part_between_two_records_can_be_read(folder: Path) -> None:
    span = whole(folder)
    for first, last in [(0, 1), (1, 2), (17, 2000), (2999, 3000), (1234, 1234)]:
        assert values(options(folder), part(span, first, last)) == RECORDS[first:last]


def test_no_lock_is_taken_and_nothing_is_written(folder: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
    values(options(folder), whole(folder))
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*")} == before
    fill(folder, {ORDERS: [b"one more"]})  # and a broker may start meanwhile


def test_what_the_index_does_not_vouch_for_is_not_read(tmp_path: Path) -> None:
    folder = tmp_path / "data"

    async def write(store: Store) -> None:
        add(store, *ORDERS, RECORDS)
        await store.flush()

    in_store(folder, write)  # the process dies before the catalog has it
    span = whole(folder)
    with (folder / "logmq" / "orders.log").open("ab") as file:
        file.write(format.record(b"not synced yet"))
    assert whole(folder) == span
    rewrite_entry(folder, len(entries_of(folder)) - 1, lambda entry: entry[:40] + b"torn" + entry[44:])
    shorter = whole(folder)
    assert shorter.stop < span.stop
    assert values(options(folder), shorter) == RECORDS[: len(values(options(folder), shorter))]


def test_a_damaged_range_is_passed_over_and_told_where_that_is_wanted(
    folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    first, second = entries_of(folder)[:2]
    flip(folder / "logmq" / "orders.log", (second.offset + 50) * 8)
    got = values(options(folder, failOnDataLoss="false"), whole(folder))
    assert got == RECORDS[: first.records] + RECORDS[first.records + second.records :]
    assert f"offsets {second.offset} to {second.end} are lost" in capfd.readouterr().err
    with pytest.raises(DataLoss, match=f"orders in .*: offsets {second.offset} to {second.end} are lost"):
        values(options(folder), whole(folder))


def test_a_damaged_range_is_one_loss_however_long_it_is(
    folder: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []
    monkeypatch.setattr(FolderReader, "first_kept", lambda self, log_id: asked.append(log_id) or 0)
    span, every = whole(folder), entries_of(folder)
    os.truncate(folder / "logmq" / "orders.log", every[1].offset + 50)
    text = f"offsets {every[1].offset} to {span.stop} are lost: the file is too short"
    with pytest.raises(DataLoss, match=text):
        values(options(folder), span)
    asked.clear()
    assert values(options(folder, failOnDataLoss="false"), span) == RECORDS[: every[0].records]
    assert len(every) > 3
    assert len(asked) == 1  # it is a look at all of the journal
    assert capfd.readouterr().err.count("are lost") == 1


def test_an_index_that_is_missing_is_damage_and_not_the_logs_end(folder: Path) -> None:
    span = whole(folder)
    (folder / "logmq" / "orders.idx").unlink()
    assert whole(folder) == span
    with pytest.raises(DataLoss, match=rf"offsets 0 to {span.stop} are lost: .* its index is missing"):
        values(options(folder), whole(folder))
    assert values(options(folder, failOnDataLoss="false"), whole(folder)) == []
    chosen = options(folder, streaming=True, startingOffsets="earliest", failOnDataLoss="false")
    end = follow(chosen, stream.INITIAL, stream.Limit(records=1_000_000))
    assert end["logs"][str(folder)]["orders"][0] == span.stop  # and does not stand still there


def test_a_log_file_that_is_missing_is_told_by_the_reader_and_not_in_planning(
    folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """A stream goes on behind it in one batch, however few records each may have."""
    span = whole(folder)
    (folder / "logmq" / "orders.log").unlink()
    assert planned(folder) == [span]
    for read in (rows.read, rows.entries):
        with pytest.raises(DataLoss, match=rf"offsets 0 to {span.stop} are lost: its file .* is missing"):
            list(read(options(folder), [span]))
    chosen = options(folder, streaming=True, startingOffsets="earliest", failOnDataLoss="false")
    assert values(chosen, span) == []
    assert capfd.readouterr().err.count("are lost") == 1
    first = entries_of(folder)[0]
    end = follow(chosen, stream.INITIAL, stream.Limit(records=1))
    assert end["logs"][str(folder)]["orders"][0] == first.end  # what cannot be counted is taken whole


def test_a_name_that_is_gone_since_it_was_planned_is_told_as_deleted(folder: Path) -> None:
    span = whole(folder)
    with pytest.raises(DataLoss, match="the log has been deleted"):
        values(options(folder), attrs.evolve(span, topic="other", log_id=span.log_id + 1))


def test_without_crcs_a_length_that_is_wrong_costs_its_index_entry(folder: Path) -> None:
    first, second = entries_of(folder)[:2]
    flip(folder / "logmq" / "orders.log", (second.offset + 2) * 8)
    chosen = {"verifyCrc": "false", "failOnDataLoss": "false"}
    got = values(options(folder, **chosen), whole(folder))
    assert got == RECORDS[: first.records] + RECORDS[first.records + second.records :]
    with pytest.raises(DataLoss, match=f"offsets {second.offset} to {second.end} are lost"):
        values(options(folder, verifyCrc="false"), whole(folder))


def test_without_crcs_bytes_are_taken_as_they_are(folder: Path) -> None:
    flip(folder / "logmq" / "orders.log", (entries_of(folder)[1].offset + 7) * 8)
    got = values(options(folder, verifyCrc="false"), whole(folder))
    assert len(got) == len(RECORDS)
    assert got != RECORDS


@pytest.mark.parametrize("verify", ["true", "false"])
def test_a_hole_that_retention_makes_meanwhile_is_lost_not_zeros(folder: Path, verify: str) -> None:
    span = whole(folder)
    third = entries_of(folder)[2]
    with (folder / "logmq" / "orders.log").open("r+b") as file:
        file.write(bytes(third.offset))
    with pytest.raises(DataLoss):
        values(options(folder, verifyCrc=verify), span)
    got = values(options(folder, verifyCrc=verify, failOnDataLoss="false"), span)
    assert got == RECORDS[-len(got) :]
    assert offset_of(len(RECORDS) - len(got)) == third.offset


def test_what_the_journal_lost_is_told_and_unverified_ranges_are_read(folder: Path) -> None:
    second = entries_of(folder)[1]

    def flag(flags: EntryFlag, **fields: int) -> None:
        changed = second._replace(flags=flags, **fields)
        rewrite_entry(folder, 1, lambda _: format.pack_index_entry(changed, whole(folder).log_id))

    flag(EntryFlag.DAMAGED, records=0)
    with pytest.raises(DataLoss, match="the journal lost what stood here"):
        values(options(folder), whole(folder))
    flag(EntryFlag.UNVERIFIED)
    assert values(options(folder), whole(folder)) == RECORDS


def test_a_topic_that_is_made_again_while_its_files_are_opened_is_not_read(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = whole(folder)
    monkeypatch.setattr(FolderReader, "id_of", lambda self, file, log_id: old.log_id + 1)
    with pytest.raises(DataLoss, match=r"orders in .* are lost"):
        values(options(folder), old)


def test_a_topic_made_again_is_never_read_for_the_old_one(folder: Path) -> None:
    old = whole(folder)
    remake(folder, [b"new"] * 9000)
    assert whole(folder).log_id != old.log_id
    with pytest.raises(DataLoss, match="deleted"):
        values(options(folder), old)
    assert values(options(folder, failOnDataLoss="false"), old) == []


@pytest.mark.parametrize("verify", ["true", "false"])
def test_retention_that_overtakes_a_read_is_told_from_damage(tmp_path: Path, verify: str) -> None:
    data = tmp_path / "data"

    async def overtake(store: Store) -> None:
        for start in range(0, 3000, 100):
            add(store, *ORDERS, RECORDS[start : start + 100])
        await store.flush()
        planned = whole(data)
        log = store.namespace("logmq", ALWAYS).logs["orders"]
        log.retention = Retention(bytes_kept=200_000)
        assert values(options(data), planned) == RECORDS
        await store.retain()
        assert log.first > 0
        with pytest.raises(DataLoss, match=rf"retention dropped it \(the first kept offset is {log.first}"):
            values(options(data, verifyCrc=verify), planned)
        await store.retain()  # space is given back
        kept = values(options(data, verifyCrc=verify, failOnDataLoss="false"), planned)
        assert kept == RECORDS[-len(kept) :]
        assert values(options(data), whole(data)) == kept

    in_store(data, overtake)


@pytest.mark.parametrize("damage", ["zeros", "bad", "cut short"])
@pytest.mark.parametrize("number", [0, 1, -1])
def test_records_whose_index_entry_is_damaged_are_told_as_lost_and_the_others_are_read(
    folder: Path, number: int, damage: str
) -> None:
    log, entries = whole(folder), entries_of(folder)
    number %= len(entries)
    if damage == "cut short":
        os.truncate(folder / "logmq" / "orders.idx", entry_position(number) + 7)
        start, stop = entries[number].offset, log.stop
    else:
        rewrite_entry(
            folder,
            number,
            lambda entry: bytes(INDEX_ENTRY_BYTES) if damage == "zeros" else entry[:20] + b"bad" + entry[23:],
        )
        start, stop = entries[number].offset, entries[number].end
    assert whole(folder) == log
    with pytest.raises(DataLoss, match=rf"offsets {start} to {stop} are lost: the index says nothing"):
        values(options(folder), log)
    kept = [payload for offset, payload in placed(RECORDS) if not start <= offset < stop]
    assert values(options(folder, failOnDataLoss="false"), log) == kept
