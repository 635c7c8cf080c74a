"""Data folders as the source reads them, without Spark: files made by a real store, and damaged by hand."""

import json
import os
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
import trio
from pyspark.sql.types import StructType

from brokers.pipeline.source import data_source, positions, rows, spans, stream
from brokers.pipeline.source.folder import Folder
from brokers.pipeline.source.options import Options, Topics, parse
from brokers.pipeline.source.origin import DataLoss, LogSpot
from brokers.pipeline.source.spans import Span
from shared.errors import ConfigError, StoreFormat
from shared.storage import format
from shared.storage.disk import Disk
from shared.storage.format import MARK_BYTES, Flag
from shared.storage.index import mark_position
from shared.storage.settings import Retention
from shared.storage.tools.view import FolderView, look
from tests.support.folders import ALWAYS, add, fill, flip, open_folder

RECORDS = [b"%06d" % n + b"." * (n * 7 % 400) for n in range(3000)]
ORDERS = ("logmq", "orders")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A data folder with the topic `orders`: RECORDS, in several index entries."""
    data = tmp_path / "data"
    fill(data, {ORDERS: RECORDS})
    return data


def options(*folders: Path, streaming: bool | None = None, **given: str) -> Options:

    paths = json.dumps([str(folder) for folder in folders])
    return parse({"paths": paths, "subscribe": "orders"} | given, streaming=streaming)


def spot(folder: Path, name: str = "orders", namespace: str = "logmq") -> LogSpot:
    with closing(Folder(str(folder), namespace)) as place:
        return place.spots(Topics((name,)))[name]


def whole(folder: Path, name: str = "orders", namespace: str = "logmq") -> Span:
    found = spot(folder, name, namespace)
    return Span(str(folder), name, found.id, found.first, found.end)


def values(chosen: Options, *those: Span) -> list[bytes]:
    return [value for batch in rows.read(chosen, those) for value in batch["value"].to_pylist()]


def offset_of(number: int) -> int:
    return sum(format.LENGTH_BYTES + len(payload) for payload in RECORDS[:number])


def rewrite_mark(folder: Path, number: int, change: Callable[[bytes], bytes]) -> None:
    path = folder / "logmq" / "orders.idx"
    with path.open("r+b") as file:
        file.seek(mark_position(number))
        changed = change(file.read(MARK_BYTES))
        file.seek(mark_position(number))
        file.write(changed)


def marks(folder: Path) -> list[format.Mark]:
    found = spot(folder)
    with closing(Folder(str(folder), "logmq")) as place, place._index("orders") as index:
        return list(index.marks(found.first, found.end))


def test_every_record_is_read_with_its_offset(folder: Path) -> None:
    batches = list(rows.read(options(folder), [whole(folder)]))
    assert [value for batch in batches for value in batch["value"].to_pylist()] == RECORDS
    offsets = [offset for batch in batches for offset in batch["offset"].to_pylist()]
    assert offsets == [offset_of(number) for number in range(len(RECORDS))]


def test_any_part_between_two_records_can_be_read(folder: Path) -> None:
    span = whole(folder)
    for first, last in [(0, 1), (1, 2), (17, 2000), (2999, 3000), (1234, 1234)]:
        part = Span(span.source, span.topic, span.log_id, offset_of(first), offset_of(last))
        assert values(options(folder), part) == RECORDS[first:last]


def test_columns_that_the_index_has_need_no_bytes(folder: Path) -> None:
    def read(span: Span, *columns: str) -> list[dict[str, object]]:
        return [row for batch in rows.read(options(folder), [span], columns) for row in batch.to_pylist()]

    span, entries = whole(folder), marks(folder)
    for number, entry in enumerate(entries):
        packed = format.pack_mark(entry._replace(first_ms=entry.first_ms - 1000 + number), span.log_id)
        rewrite_mark(folder, number, lambda _, packed=packed: packed)  # type: ignore[misc]
    all_of_it = read(span, "topic", "timestamp", "value")
    wanted = [{name: row[name] for name in ("topic", "timestamp")} for row in all_of_it]
    assert len({row["timestamp"] for row in wanted}) == len(entries) > 2
    for first, last in [(0, 1), (17, 2000), (2999, 3000), (1234, 1234)]:
        part = Span(span.source, span.topic, span.log_id, offset_of(first), offset_of(last))
        assert read(part, "topic", "timestamp") == wanted[first:last]
    (folder / "logmq" / "orders.log").write_bytes(b"")
    assert read(span, "topic", "timestamp") == wanted
    with pytest.raises(DataLoss):
        read(span, "offset")


def test_other_namespaces_logs_have_their_own_names(tmp_path: Path) -> None:
    name = "Fürs Büro/1"
    fill(tmp_path / "data", {("dms", name): [b"job"]})
    chosen = options(tmp_path / "data", namespace="dms")
    assert values(chosen, whole(tmp_path / "data", name, "dms")) == [b"job"]


def test_a_log_that_the_catalog_does_not_have_yet_is_found(tmp_path: Path) -> None:
    data = tmp_path / "data"

    async def run() -> None:
        store = await open_folder(data)
        try:
            long = "ü" * 60  # as a file's name too long, so only the journal knows it
            for name in ("Neu!", long):
                add(store, "dms", name, [b"a", b"b"])
            await store._marking.flush()
            for name in ("Neu!", long):
                assert values(options(data, namespace="dms"), whole(data, name, "dms")) == [b"a", b"b"]
        finally:
            store.abandon()

    trio.run(run)


def test_no_lock_is_taken_and_nothing_is_written(folder: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
    values(options(folder), whole(folder))
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*")} == before
    fill(folder, {ORDERS: [b"one more"]})  # and a broker may start meanwhile


def test_what_the_index_does_not_vouch_for_is_not_read(tmp_path: Path) -> None:
    folder = tmp_path / "data"

    async def run() -> None:
        store = await open_folder(folder)
        add(store, *ORDERS, RECORDS)
        await store._marking.flush()
        store.abandon()  # before the catalog has it

    trio.run(run)
    span = whole(folder)
    with (folder / "logmq" / "orders.log").open("ab") as file:
        file.write(format.record(b"not synced yet"))
    assert whole(folder) == span
    rewrite_mark(folder, len(marks(folder)) - 1, lambda mark: mark[:40] + b"torn" + mark[44:])
    shorter = whole(folder)
    assert shorter.stop < span.stop
    assert values(options(folder), shorter) == RECORDS[: len(values(options(folder), shorter))]


def test_a_flipped_bit_is_an_error_that_says_where(folder: Path) -> None:
    second = marks(folder)[1]
    flip(folder / "logmq" / "orders.log", (second.offset + 50) * 8)
    with pytest.raises(DataLoss, match=f"orders in .*: offsets {second.offset} to {second.end} are lost"):
        values(options(folder), whole(folder))


def test_a_damaged_range_is_passed_over_and_told_where_that_is_wanted(
    folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    first, second = marks(folder)[:2]
    flip(folder / "logmq" / "orders.log", (second.offset + 50) * 8)
    got = values(options(folder, failOnDataLoss="false"), whole(folder))
    assert got == RECORDS[: first.records] + RECORDS[first.records + second.records :]
    assert f"offsets {second.offset} to {second.end} are lost" in capfd.readouterr().err


def test_a_damaged_range_is_one_loss_however_long_it_is(
    folder: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []
    monkeypatch.setattr(Folder, "first_kept", lambda self, log_id: asked.append(log_id) or 0)
    span, every = whole(folder), marks(folder)
    os.truncate(folder / "logmq" / "orders.log", every[1].offset + 50)
    text = f"offsets {every[1].offset} to {span.stop} are lost: the file is too short"
    with pytest.raises(DataLoss, match=text):
        values(options(folder), span)
    asked.clear()
    assert values(options(folder, failOnDataLoss="false"), span) == RECORDS[: every[0].records]
    assert len(every) > 3
    assert len(asked) == 1  # it is a look at all of the journal
    assert capfd.readouterr().err.count("are lost") == 1


@pytest.mark.parametrize("left", [None, 0, 10, mark_position(0), mark_position(1) + 7])
def test_an_index_that_lost_its_end_is_damage_and_not_the_logs_end(folder: Path, left: int | None) -> None:
    span, every, path = whole(folder), marks(folder), folder / "logmq" / "orders.idx"
    whole_ones = 1 if left is not None and left > mark_position(1) else 0
    if left is None:
        path.unlink()
    else:
        os.truncate(path, left)
    assert whole(folder) == span
    lost = every[whole_ones].offset
    with pytest.raises(
        DataLoss, match=rf"offsets {lost} to {span.stop} are lost: .* ind.* (missing|nothing)"
    ):
        values(options(folder), whole(folder))
    kept = values(options(folder, failOnDataLoss="false"), whole(folder))
    assert kept == RECORDS[: every[0].records * whole_ones]
    chosen = options(folder, streaming=True, startingOffsets="earliest", failOnDataLoss="false")
    end = follow(chosen, stream.INITIAL, stream.Limit(records=1_000_000))
    assert end["logs"][str(folder)]["orders"][0] == span.stop  # and does not stand still there


def test_a_topic_without_a_record_is_empty_wherever_reading_begins(tmp_path: Path) -> None:
    data = tmp_path / "data"
    fill(data, {ORDERS: []})
    for given in (
        {},
        {"startingTimestamp": "0"},
        {"startingOffsets": '{"orders": 0}'},
        {"endingTimestamp": "0"},
    ):
        strategy = {"startingOffsetsByTimestampStrategy": "latest"}
        bounds = [place(data, side, **given, **strategy) for side in ("starting", "ending")]
        assert bounds == [0, 0]
    chosen = options(data, streaming=True, startingOffsets="earliest")
    start = follow(chosen, stream.INITIAL, stream.Limit(records=1))
    fill(data, {ORDERS: [b"a"]})
    assert between(chosen, start, follow(chosen, start, stream.Limit(records=1))) == [b"a"]


def test_without_crcs_a_length_that_is_wrong_costs_its_index_entry(folder: Path) -> None:
    first, second = marks(folder)[:2]
    flip(folder / "logmq" / "orders.log", (second.offset + 2) * 8)
    chosen = {"verifyCrc": "false", "failOnDataLoss": "false"}
    got = values(options(folder, **chosen), whole(folder))
    assert got == RECORDS[: first.records] + RECORDS[first.records + second.records :]
    with pytest.raises(DataLoss, match=f"offsets {second.offset} to {second.end} are lost"):
        values(options(folder, verifyCrc="false"), whole(folder))


def test_without_crcs_bytes_are_taken_as_they_are(folder: Path) -> None:
    flip(folder / "logmq" / "orders.log", (marks(folder)[1].offset + 7) * 8)
    got = values(options(folder, verifyCrc="false"), whole(folder))
    assert len(got) == len(RECORDS)
    assert got != RECORDS


@pytest.mark.parametrize("verify", ["true", "false"])
def test_a_hole_that_retention_makes_meanwhile_is_lost_not_zeros(folder: Path, verify: str) -> None:
    span = whole(folder)
    third = marks(folder)[2]
    with (folder / "logmq" / "orders.log").open("r+b") as file:
        file.write(bytes(third.offset))
    with pytest.raises(DataLoss):
        values(options(folder, verifyCrc=verify), span)
    got = values(options(folder, verifyCrc=verify, failOnDataLoss="false"), span)
    assert got == RECORDS[-len(got) :]
    assert offset_of(len(RECORDS) - len(got)) == third.offset


def test_a_gap_in_the_index_is_damage_and_a_trimmed_front_is_not(folder: Path) -> None:
    first, second = marks(folder)[:2]
    rewrite_mark(folder, 1, lambda mark: bytes(MARK_BYTES))
    with pytest.raises(DataLoss, match=f"offsets {second.offset} to {second.end}"):
        values(options(folder), whole(folder))
    rewrite_mark(folder, 0, lambda mark: bytes(MARK_BYTES))
    found = spot(folder)
    assert found.first == second.end
    assert values(options(folder), whole(folder)) == RECORDS[first.records + second.records :]


def test_what_the_journal_lost_is_told(folder: Path) -> None:
    second = marks(folder)[1]
    changed = second._replace(flags=Flag.DAMAGED, records=0)
    rewrite_mark(folder, 1, lambda _: format.pack_mark(changed, spot(folder).id))
    with pytest.raises(DataLoss, match="the journal lost what stood here"):
        values(options(folder), whole(folder))


@pytest.mark.parametrize("unverified", ["read", "skip", "fail"])
def test_unverified_ranges_are_read_passed_over_or_refused(folder: Path, unverified: str) -> None:
    first, second = marks(folder)[:2]
    changed = second._replace(flags=Flag.UNVERIFIED)
    rewrite_mark(folder, 1, lambda _: format.pack_mark(changed, spot(folder).id))
    chosen = options(folder, unverified=unverified)
    if unverified == "fail":
        with pytest.raises(DataLoss, match="unverified"):
            values(chosen, whole(folder))
        return
    left_out = RECORDS[: first.records] + RECORDS[first.records + second.records :]
    assert values(chosen, whole(folder)) == (RECORDS if unverified == "read" else left_out)


def test_a_topic_made_again_is_never_read_for_the_old_one(folder: Path) -> None:
    old = whole(folder)
    remake(folder, [b"new"] * 9000)
    assert whole(folder).log_id != old.log_id
    with pytest.raises(DataLoss, match="deleted"):
        values(options(folder), old)
    assert values(options(folder, failOnDataLoss="false"), old) == []


def remake(folder: Path, payloads: list[bytes]) -> None:
    async def run() -> None:
        store = await open_folder(folder)
        space = store.namespace("logmq", ALWAYS)
        await store.wait(space.delete("orders"))
        add(store, *ORDERS, payloads)
        await store.close()

    trio.run(run)


def test_another_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StoreFormat):
        Folder(str(tmp_path), "logmq")


# -- places


def place(folder: Path, side: str, **given: str) -> int:
    chosen = options(folder, **given)
    bound = chosen.starting if side == "starting" else chosen.ending
    with closing(Folder(str(folder), "logmq")) as opened:
        found = opened.spots(chosen.topics)
        return positions.offsets(opened, found, bound, rows.rules(chosen))["orders"]


def test_an_offset_must_be_a_records_start(folder: Path) -> None:
    assert place(folder, "starting", startingOffsets=json.dumps({"orders": offset_of(1234)})) == offset_of(
        1234
    )
    with pytest.raises(ConfigError, match=f"the nearest below is {offset_of(1234)}"):
        place(folder, "starting", startingOffsets=json.dumps({"orders": offset_of(1234) + 1}))


def test_an_offset_that_is_not_there_is_data_loss(folder: Path) -> None:
    given = {"startingOffsets": json.dumps({"orders": offset_of(3000) + 100})}
    with pytest.raises(DataLoss, match="ends at"):
        place(folder, "starting", **given)
    assert place(folder, "starting", failOnDataLoss="false", **given) == offset_of(3000)


def planned(folder: Path, **given: str) -> list[Span]:
    chosen = options(folder, streaming=False, **given)
    shares = data_source.BatchReader(chosen).partitions()
    return [span for share in shares if isinstance(share, data_source.Share) for span in share.spans]


def test_a_read_that_is_to_end_before_it_begins_is_a_mistake(folder: Path) -> None:
    start, stop = ({"orders": offset_of(number)} for number in (7, 6))
    with pytest.raises(ConfigError, match=f"endingOffsets: orders ends there at {offset_of(6)}"):
        planned(folder, startingOffsets=json.dumps(start), endingOffsets=json.dumps(stop))
    assert planned(folder, startingOffsets=json.dumps(start), endingOffsets=json.dumps(start)) == []
    with pytest.raises(ConfigError, match="endingTimestamp: orders ends there at 0"):
        planned(folder, startingOffsets=json.dumps(start), endingTimestamp="0")


def test_an_error_names_the_option_that_was_given(tmp_path: Path, folder: Path) -> None:
    late = str(marks(folder)[-1].last_ms + 1)
    with pytest.raises(ConfigError) as error:
        place(folder, "starting", startingOffsetsByTimestamp=json.dumps({"orders": int(late)}))
    assert error.value.key == "startingOffsetsByTimestamp"
    chosen = parse({"path": str(folder), "assign": '["other"]'}, streaming=False)
    with pytest.raises(ConfigError, match="assign: there is no other"):
        data_source.BatchReader(chosen).partitions()
    with pytest.raises(FileNotFoundError, match=r"path: No such file or directory: .*nowhere"):
        Folder(str(tmp_path / "nowhere"), "logmq")
    index = folder / "logmq" / "orders.idx"
    index.unlink()
    index.mkdir()
    with pytest.raises(OSError, match=f"'{index}'"):
        planned(folder)


@pytest.mark.parametrize("columns", ["topic string not null", "offset long, offset long", "offset integer"])
def test_columns_that_cannot_be_had_are_refused(folder: Path, columns: str) -> None:
    source = data_source.LogmqDataSource({"path": str(folder), "subscribe": "orders"})
    fields = StructType()
    for column in columns.split(", "):
        name, kind, *rest = column.split()
        fields = fields.add(name, kind, nullable=not rest)
    with pytest.raises(ConfigError, match="schema: the source has these columns"):
        source.reader(fields)


def test_times_lead_to_the_entry_with_the_first_record_of_that_time(folder: Path) -> None:
    every = marks(folder)
    assert place(folder, "starting", startingTimestamp="0") == 0
    after = str(every[-1].last_ms + 1)
    assert place(folder, "ending", endingTimestamp=after) == every[-1].end
    with pytest.raises(ConfigError, match="startingOffsetsByTimestampStrategy"):
        place(folder, "starting", startingTimestamp=after)


# -- tasks


def test_a_read_is_cut_at_entries_into_as_many_tasks_as_asked(folder: Path) -> None:
    span = whole(folder)
    starts = {mark.offset for mark in marks(folder)}
    with closing(Folder(str(folder), "logmq")) as opened:
        shares = spans.shares([span], 4, opened.cut)
    pieces = [piece for share in shares for piece in share]
    assert len(shares) == 4
    assert {piece.start for piece in pieces} <= starts
    assert values(options(folder), *pieces) == RECORDS


def test_where_little_crosses_to_spark_tasks_are_fewer(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    span = whole(folder)
    length = span.length
    monkeypatch.setattr(spans, "SPLIT_BYTES", length // 4)
    monkeypatch.setattr(spans, "SPLIT_BYTES_SPARING", length + 1)

    def tasks(*columns: str, **given: str) -> int:
        return len(data_source.shares(options(folder, **given), [span], columns))

    assert tasks("topic", "offset", "timestamp", "value") > 3
    assert tasks("offset") > 3
    assert tasks("topic", "timestamp") == 1
    assert tasks("value", maxValueBytes="7") == 1
    assert tasks("timestamp", minPartitions="4") == 4


def test_small_logs_share_a_task() -> None:
    small = [Span("here", str(number), 1, 0, 1000) for number in range(500)]
    assert spans.shares(small, None, lambda span, offset: span.start) == [tuple(small)]
    assert spans.shares([], None, lambda span, offset: span.start) == []


# -- streams


def follow(chosen: Options, start: stream.Offset, limit: stream.Limit | None = None) -> stream.Offset:
    return stream.following(chosen, rows.rules(chosen), start, limit or stream.Limit())


def between(chosen: Options, start: stream.Offset, end: stream.Offset) -> list[bytes]:
    return values(chosen, *stream.spans(chosen, start, end))


def test_latest_is_resolved_once_and_kept_in_the_first_batchs_end(folder: Path) -> None:
    chosen = options(folder, streaming=True)
    first = follow(chosen, stream.INITIAL)
    fill(folder, {ORDERS: [b"later"]})
    assert between(chosen, stream.INITIAL, first) == []  # again, as when the first batch is recovered
    second = follow(chosen, first)
    assert between(chosen, first, second) == [b"later"]
    assert follow(chosen, second) == second


def test_batches_are_as_small_as_asked_and_leave_nothing_out(folder: Path) -> None:
    chosen = options(folder, streaming=True, startingOffsets="earliest")
    for limit, most in [(stream.Limit(records=700), 700), (stream.Limit(length=50_000), 1000)]:
        start, got = stream.INITIAL, []
        while (end := follow(chosen, start, limit)) != start:
            batch = between(chosen, start, end)
            assert 0 < len(batch) <= most
            assert limit.length is None or sum(len(value) + 4 for value in batch) <= limit.length
            got += batch
            start = end
        assert got == RECORDS


def test_a_record_longer_than_the_limit_is_a_batch(folder: Path) -> None:
    chosen = options(folder, streaming=True, startingOffsets="earliest")
    end = follow(chosen, stream.INITIAL, stream.Limit(length=1))
    assert between(chosen, stream.INITIAL, end) == RECORDS[:1]


def test_a_topic_that_comes_later_is_read_from_its_first_record(tmp_path: Path) -> None:
    data = tmp_path / "data"
    fill(data, {("logmq", "another"): [b"x"]})
    chosen = options(data, streaming=True)
    start = follow(chosen, stream.INITIAL)
    fill(data, {ORDERS: [b"a", b"b"]})
    assert between(chosen, start, follow(chosen, start)) == [b"a", b"b"]


def test_a_topic_that_goes_or_is_made_again_is_told_and_read_anew(folder: Path) -> None:
    start = follow(options(folder, streaming=True), stream.INITIAL)
    remake(folder, [b"new"] * 9000)
    with pytest.raises(DataLoss, match="deleted and made again"):
        follow(options(folder, streaming=True), start)
    lenient = options(folder, streaming=True, failOnDataLoss="false")
    end = follow(lenient, start)
    assert between(lenient, start, end) == [b"new"] * 9000


def test_a_stream_with_a_target_ends_there(folder: Path) -> None:
    chosen = options(folder, streaming=True, startingOffsets="earliest")
    target = stream.target(chosen)
    fill(folder, {ORDERS: [b"later"]})
    end = stream.following(chosen, rows.rules(chosen), stream.INITIAL, stream.Limit(), target)
    assert between(chosen, stream.INITIAL, end) == RECORDS
    assert stream.following(chosen, rows.rules(chosen), end, stream.Limit(), target) == end


def test_folders_are_read_together_and_share_a_limit(tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    fill(one, {ORDERS: RECORDS[:2000]})
    fill(two, {ORDERS: RECORDS[2000:2010]})
    chosen = options(one, two, streaming=True, startingOffsets="earliest")
    end = follow(chosen, stream.INITIAL, stream.Limit(records=50))
    assert between(chosen, stream.INITIAL, end) == RECORDS[:40] + RECORDS[2000:2010]


def test_a_stream_goes_on_where_its_folder_was_moved(folder: Path) -> None:
    start = follow(options(folder, streaming=True), stream.INITIAL)
    moved = folder.rename(folder.parent / "moved")
    fill(moved, {ORDERS: [b"later"]})
    chosen = options(moved, streaming=True)
    assert between(chosen, start, follow(chosen, start)) == [b"later"]


def test_a_first_batch_that_is_run_again_is_read_where_its_folder_was_moved(folder: Path) -> None:
    first = follow(options(folder, streaming=True, startingOffsets="earliest"), stream.INITIAL)
    moved = folder.rename(folder.parent / "moved")
    assert between(options(moved, streaming=True), stream.INITIAL, first) == RECORDS


def test_what_is_not_asked_for_any_more_is_told(folder: Path) -> None:
    other = folder.parent / "other"
    fill(other, {ORDERS: [b"x"], ("logmq", "bills"): [b"y"]})
    both = options(folder, other, streaming=True, subscribe="orders,bills")
    start = follow(both, stream.INITIAL)
    with pytest.raises(
        DataLoss, match=f"^{other}, which the stream has read, is not among {folder} any more"
    ):
        follow(options(folder, streaming=True, subscribe="orders,bills"), start)
    with pytest.raises(DataLoss, match=r"bills in .*, read up to 5, is not asked for any more \(subscribe\)"):
        follow(options(folder, other, streaming=True), start)


@pytest.mark.parametrize("verify", ["true", "false"])
def test_retention_that_overtakes_a_read_is_told_from_damage(tmp_path: Path, verify: str) -> None:
    data = tmp_path / "data"

    async def run() -> None:
        store = await open_folder(data)
        try:
            for start in range(0, 3000, 100):
                add(store, *ORDERS, RECORDS[start : start + 100])
            await store._marking.flush()
            planned = whole(data)
            log = store.namespace("logmq", ALWAYS).logs["orders"]
            log.retention = Retention(bytes_max=200_000)
            await store.retain()
            assert values(options(data), planned) == RECORDS  # it is still there
            await store.retain()
            assert log.first > 0
            with pytest.raises(
                DataLoss, match=rf"retention dropped it \(the first kept offset is {log.first}"
            ):
                values(options(data, verifyCrc=verify), planned)
            kept = values(options(data, verifyCrc=verify, failOnDataLoss="false"), planned)
            assert kept == RECORDS[-len(kept) :]
            assert values(options(data), whole(data)) == kept
        finally:
            store.abandon()

    trio.run(run)


def test_an_entry_that_is_bad_in_front_is_damage_unlike_one_that_was_given_back(folder: Path) -> None:
    first = marks(folder)[0]
    rewrite_mark(folder, 0, lambda mark: mark[:20] + b"bad" + mark[23:])
    assert whole(folder).start == 0
    with pytest.raises(DataLoss, match=f"offsets 0 to {first.end} are lost: the index says nothing"):
        values(options(folder), whole(folder))
    assert len(values(options(folder, failOnDataLoss="false"), whole(folder))) == len(RECORDS) - first.records


def test_the_journal_is_read_once_for_many_topics_that_retention_was_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data, names = tmp_path / "data", [f"t{number}" for number in range(5)]
    looks: list[FolderView] = []

    def counted(disk: Disk, *, live: bool) -> FolderView:
        looks.append(look(disk, live=live))
        return looks[-1]

    async def run() -> None:
        store = await open_folder(data)
        try:
            for name in names:
                for start in range(0, 3000, 100):
                    add(store, "logmq", name, RECORDS[start : start + 100])
            await store._marking.flush()
            logs = store.namespace("logmq", ALWAYS).logs
            indexes = {name: (data / "logmq" / f"{name}.idx").read_bytes() for name in names}
            for name in names:
                logs[name].retention = Retention(bytes_max=200_000)
            await store.retain()
            await store.retain()
            for name in names:  # as a reader sees it that comes before the index was trimmed
                (data / "logmq" / f"{name}.idx").write_bytes(indexes[name])
            monkeypatch.setattr("brokers.pipeline.source.folder.look", counted)
            with closing(Folder(str(data), "logmq")) as place:
                found = place.spots(Topics(pattern="t.*"))
            assert {name: spot.first for name, spot in found.items()} == {
                name: logs[name].first for name in names
            }
            assert min(spot.first for spot in found.values()) > 0
            assert len(looks) == 1
        finally:
            store.abandon()

    trio.run(run)
