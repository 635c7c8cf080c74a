"""Which logs a data folder has, and where reading them begins and ends."""

import json
import os
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path

import pytest
from pyspark.sql.types import StructType

from brokers.pipeline.source import data_source, planning, reader, stream
from brokers.pipeline.source.batch_range import BatchRange
from brokers.pipeline.source.folder import FolderReader
from brokers.pipeline.source.options import TopicChoice, parse
from brokers.pipeline.source.reader import DataLoss
from shared.errors import ConfigError, StoreFormat
from shared.storage.disk import Disk
from shared.storage.format import INDEX_ENTRY_BYTES
from shared.storage.store import Store
from shared.storage.tools.view import LogView, logs_now
from tests.pipeline.folders import (
    ORDERS,
    RECORDS,
    between,
    entries_of,
    follow,
    in_store,
    offset_of,
    options,
    planned,
    remake,
    retimed,
    rewrite_entry,
    values,
    whole,
)
from tests.support.folders import ALWAYS, add, fill, flip


def test_each_namespace_has_its_own_logs(tmp_path: Path) -> None:
    fill(tmp_path / "data", {ORDERS: [b"a"], ("dms", "orders"): [b"job"], ("dms", "jobs"): [b"b"]})
    for namespace, there in (("logmq", {"orders": 5}), ("dms", {"orders": 7, "jobs": 5})):
        with closing(FolderReader(str(tmp_path / "data"), namespace)) as opened:
            found = opened.logs(TopicChoice(pattern=".*"))
        assert {name: log.stop for name, log in found.items()} == there


def test_of_a_log_that_was_made_again_the_catalog_may_still_say_what_the_old_one_had(folder: Path) -> None:
    old = whole(folder)
    remake(folder, [b"new"] * 10, clean=False)
    assert whole(folder).log_id != old.log_id
    assert whole(folder).stop == 10 * 7 < old.stop


def test_a_small_topic_begins_where_its_server_says_as_soon_as_retention_was_there(tmp_path: Path) -> None:
    """It drops less than a block of the file, which stays as it is; only the journal knows of it."""
    data = tmp_path / "data"

    async def drop(store: Store) -> None:
        add(store, *ORDERS, RECORDS[:10])
        await store.flush()
        planned = whole(data)
        log = store.namespace("logmq", ALWAYS).logs["orders"]
        log.drop_below(offset_of(7))
        store.commit_pending()
        await store.flush()
        assert (whole(data).start, whole(data).stop) == (log.first, log.end)
        assert values(options(data), whole(data)) == RECORDS[7:10]
        assert values(options(data, failOnDataLoss="false"), planned) == RECORDS[7:10]
        with pytest.raises(DataLoss, match=rf"offsets 0 to {log.first} are lost: retention dropped it"):
            values(options(data), planned)
        log.drop_below(log.end)
        store.commit_pending()
        await store.flush()
        assert (whole(data).start, whole(data).stop) == (log.end, log.end)

    in_store(data, drop)


def test_a_log_that_the_catalog_does_not_have_yet_is_found(tmp_path: Path) -> None:
    data = tmp_path / "data"

    async def find(store: Store) -> None:
        long = "ü" * 60  # as a file's name too long, so only the journal knows it
        names = "Neu!", "Fürs Büro/1", long
        for name in names:
            add(store, "dms", name, [b"a", b"b"])
        await store.flush()
        for name in names:
            assert values(options(data, namespace="dms"), whole(data, name, "dms")) == [b"a", b"b"]

    in_store(data, find)


def dropped(folder: Path, below: int | None, *, clean: bool) -> int:
    """Retention drops what stands before a place, or all; where the log begins then.

    Not `clean`: the process dies before the catalog has it, and the index is as it was before.
    """
    path = folder / "logmq" / "orders.idx"
    index = path.read_bytes()

    async def drop(store: Store) -> int:
        log = store.namespace("logmq", ALWAYS).logs["orders"]
        log.drop_below(log.end if below is None else below)
        store.commit_pending()
        if not clean:
            await store.retain()
            await store.retain()  # space is given back
        return log.first

    first = in_store(folder, drop, clean=clean)
    if not clean:
        path.write_bytes(index)
    return first


def test_a_log_made_again_begins_at_its_own_beginning(folder: Path) -> None:
    first = dropped(folder, offset_of(1000), clean=True)
    assert first == offset_of(1000) not in [entry.offset for entry in entries_of(folder)]
    assert values(options(folder), whole(folder)) == RECORDS[1000:]
    for time in ("0", str(entries_of(folder)[0].first_ms)):
        assert place(folder, "starting", startingTimestamp=time) == first
    remake(folder, [b"new"] * 90_000, clean=False)
    found = whole(folder)
    assert 0 == found.start < first < found.stop
    assert values(options(folder), found) == [b"new"] * 90_000


def test_a_log_of_which_all_is_dropped_is_empty_whatever_its_index_says(folder: Path) -> None:
    end = whole(folder).stop
    assert dropped(folder, None, clean=False) == end
    found = whole(folder)
    assert (found.start, found.stop) == (end, end)
    rewrite_entry(folder, 0, lambda entry: entry[:40] + b"torn" + entry[44:])
    assert whole(folder) == found


def test_a_log_that_is_deleted_while_its_files_are_looked_at_is_gone(folder: Path) -> None:
    """A reader's catalog is the older one, and its index was being taken away."""
    space = folder / "logmq"
    kept = {name: (space / name).read_bytes() for name in ("orders.log", "orders.idx")}

    async def delete(store: Store) -> None:
        await store.wait(store.namespace("logmq", ALWAYS).delete("orders"))

    in_store(folder, delete)
    (space / "orders.log").write_bytes(kept["orders.log"])
    (space / "orders.idx").write_bytes(kept["orders.idx"][:-INDEX_ENTRY_BYTES])
    with closing(FolderReader(str(folder), "logmq")) as opened:
        assert opened.logs(TopicChoice(("orders",))) == {}


def test_a_log_that_is_deleted_between_the_look_and_its_index_is_gone(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[Mapping[int, LogView]] = []

    def look(disk: Disk) -> Mapping[int, LogView]:
        looks.append(logs_now(disk))
        return looks[0] if len(looks) == 2 else looks[-1]

    monkeypatch.setattr("brokers.pipeline.source.folder.logs_now", look)

    async def delete(store: Store) -> None:
        await store.wait(store.namespace("logmq", ALWAYS).delete("orders"))

    with closing(FolderReader(str(folder), "logmq")) as opened:
        assert opened.logs(TopicChoice(("orders",)))["orders"].stop
        in_store(folder, delete)
        assert opened.logs(TopicChoice(("orders",))) == {}
    assert len(looks) == 3


def test_another_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StoreFormat):
        FolderReader(str(tmp_path), "logmq")


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


def place(folder: Path, side: str, **given: str) -> int:
    chosen = options(folder, **given)
    bound = chosen.starting if side == "starting" else chosen.ending
    with closing(FolderReader(str(folder), "logmq")) as opened:
        found = opened.logs(chosen.topics)
        return planning.offsets(opened, found, bound, reader.rules(chosen))["orders"]


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
    second = entries_of(folder)[1]
    dropped(folder, second.offset, clean=True)
    given = {"startingOffsets": json.dumps({"orders": 0})}
    with pytest.raises(DataLoss, match=f"begins at {second.offset}"):
        place(folder, "starting", **given)
    assert place(folder, "starting", failOnDataLoss="false", **given) == second.offset


def test_a_read_that_is_to_end_before_it_begins_is_a_mistake(folder: Path) -> None:
    start, stop = ({"orders": offset_of(number)} for number in (7, 6))
    with pytest.raises(ConfigError, match=f"endingOffsets: orders ends there at {offset_of(6)}"):
        planned(folder, startingOffsets=json.dumps(start), endingOffsets=json.dumps(stop))
    assert planned(folder, startingOffsets=json.dumps(start), endingOffsets=json.dumps(start)) == []
    with pytest.raises(ConfigError, match="endingTimestamp: orders ends there at 0"):
        planned(folder, startingOffsets=json.dumps(start), endingTimestamp="0")


def test_an_error_names_the_option_that_was_given(tmp_path: Path, folder: Path) -> None:
    late = str(entries_of(folder)[-1].last_ms + 1)
    with pytest.raises(ConfigError) as error:
        place(folder, "starting", startingOffsetsByTimestamp=json.dumps({"orders": int(late)}))
    assert error.value.key == "startingOffsetsByTimestamp"
    chosen = parse({"path": str(folder), "subscribe": "other"}, streaming=False)
    with pytest.raises(ConfigError, match=f"subscribe: there is no other in {folder}$"):
        data_source.BatchReader(chosen).partitions()
    chosen = parse({"path": str(folder), "subscribe": "orders", "namespace": "dms"}, streaming=False)
    with pytest.raises(ConfigError, match=f"there is no orders in {folder}, namespace dms$"):
        data_source.BatchReader(chosen).partitions()
    with pytest.raises(FileNotFoundError, match=r"path: No such file or directory: .*nowhere"):
        FolderReader(str(tmp_path / "nowhere"), "logmq")
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


def test_a_time_is_that_of_the_first_entry_with_a_record_of_it_or_later(folder: Path) -> None:
    first, second, *_ = retimed(folder)
    for time, there in ((1000, first), (1500, first), (1501, second), (1999, second), (2500, second)):
        assert place(folder, "starting", startingTimestamp=str(time)) == there.offset
        assert place(folder, "ending", endingTimestamp=str(time)) == there.offset


def test_what_a_file_has_lost_ends_no_look_at_its_places(folder: Path) -> None:
    second, third = entries_of(folder)[1:3]
    with closing(FolderReader(str(folder), "logmq")) as opened:
        found = opened.logs(TopicChoice(("orders",)))["orders"]
        flip(folder / "logmq" / "orders.log", second.offset * 8 + 1)  # the length of its first record
        ahead = BatchRange(found, second.offset, records_max=1)
        ahead.advance(opened)
        assert second.offset < ahead.stop <= second.end
        os.truncate(folder / "logmq" / "orders.log", third.offset + 5)
        assert third.offset <= opened.start_below(found, third.end - 1) < third.end
        rewrite_entry(folder, 0, lambda entry: entry[:40] + b"torn" + entry[44:])
        assert opened.cut(found, second.offset - 1) == 0
        assert opened.cut(found, second.offset) == second.offset
