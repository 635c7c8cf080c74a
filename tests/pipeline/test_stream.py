"""How a stream goes on: its batches, their limits, and logs and folders that come, go or move."""

import os
from pathlib import Path

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxBytes, ReadMaxRows

from brokers.pipeline.source import data_source, stream
from brokers.pipeline.source.options import parse
from brokers.pipeline.source.reader import DataLoss
from shared.errors import ConfigError
from tests.pipeline.folders import (
    ORDERS,
    RECORDS,
    between,
    entries_of,
    follow,
    offset_of,
    options,
    planned,
    remake,
    rewrite_entry,
    whole,
)
from tests.support.folders import fill


def test_latest_is_resolved_once_and_kept_in_the_first_batchs_end(folder: Path) -> None:
    chosen = options(folder, streaming=True)
    first = follow(chosen, stream.INITIAL)
    fill(folder, {ORDERS: [b"later"]})
    assert between(chosen, stream.INITIAL, first) == []  # again, as when the first batch is recovered
    second = follow(chosen, first)
    assert between(chosen, first, second) == [b"later"]
    assert follow(chosen, second) == second


@pytest.mark.parametrize(
    ("limit", "taken"),
    [
        (stream.Limit(records=90), [10, 40, 40]),
        (stream.Limit(length=360), [10, 40, 40]),
        (stream.Limit(records=2), [1, 1, 1]),
        (stream.Limit(length=9), [1, 1, 1]),
        (stream.Limit(), [10, 100, 100]),
    ],
)
def test_logs_share_a_batch_and_what_the_short_leave_goes_to_the_long(
    limit: stream.Limit, taken: list[int], tmp_path: Path
) -> None:
    """Records of four bytes each."""
    counts = {"a": 100, "b": 10, "c": 100}
    fill(tmp_path / "data", {("logmq", name): [b""] * count for name, count in counts.items()})
    chosen = options(tmp_path / "data", streaming=True, startingOffsets="earliest", subscribe="a,b,c")
    (stops,) = follow(chosen, stream.INITIAL, limit)["logs"].values()
    assert [stops[name][0] // 4 for name in ("b", "a", "c")] == taken


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


def test_a_stream_does_not_go_back_where_the_newest_entry_cannot_be_read_just_now(folder: Path) -> None:
    remake(folder, RECORDS, clean=False)
    chosen = options(folder, streaming=True)
    start = follow(chosen, stream.INITIAL)
    rewrite_entry(folder, len(entries_of(folder)) - 1, lambda entry: entry[:40] + b"torn" + entry[44:])
    assert whole(folder).stop < start["logs"][str(folder)]["orders"][0]
    assert follow(chosen, start) == start


def test_a_batchs_limit_is_the_options_unless_all_is_asked_for(folder: Path) -> None:
    chosen = {"streaming": True, "startingOffsets": "earliest"}
    for given, kind, most in (
        ({"maxOffsetsPerTrigger": "7"}, ReadMaxRows, offset_of(7)),
        ({"maxBytesPerTrigger": str(offset_of(9))}, ReadMaxBytes, offset_of(9)),
        ({}, ReadAllAvailable, offset_of(3000)),
    ):
        reader = data_source.StreamReader(options(folder, **chosen, **given))  # type: ignore[arg-type]
        limit = reader.getDefaultReadLimit()
        assert type(limit) is kind
        for asked, end in ((limit, most), (ReadAllAvailable(), offset_of(3000))):
            found = reader.latestOffset(reader.initialOffset(), asked)
            assert found["logs"][str(folder)]["orders"][0] == end


def test_a_stream_with_a_target_ends_there(folder: Path) -> None:
    chosen = options(folder, streaming=True, startingOffsets="earliest")
    target = stream.target(chosen)
    fill(folder, {ORDERS: [b"later"]})
    end = stream.planned(chosen, stream.INITIAL, stream.Limit(), target).end
    assert between(chosen, stream.INITIAL, end) == RECORDS
    assert stream.planned(chosen, end, stream.Limit(), target).end == end


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


def names(folder: Path) -> list[Path]:
    """A link to a folder, and other names of it."""
    link = folder.parent / "link"
    link.symlink_to(folder.name)
    return [folder, folder / ".." / folder.name, link, Path(os.path.relpath(folder))]


def test_a_folder_that_is_given_by_several_names_is_read_once(tmp_path: Path, folder: Path) -> None:
    other = tmp_path / "other"
    fill(other, {ORDERS: [b"x"]})
    _, *more = known = names(folder)
    assert planned(*known) == planned(folder)
    assert [span.source for span in planned(*more, other)] == [str(more[0]), str(other)]
    reader = data_source.StreamReader(options(*known, other, streaming=True, startingOffsets="earliest"))
    end = reader.latestOffset(reader.initialOffset(), ReadAllAvailable())
    assert list(end["logs"]) == [str(folder), str(other)]


def test_a_stream_goes_on_where_its_folder_has_another_name(tmp_path: Path, folder: Path) -> None:
    other = tmp_path / "other"
    fill(other, {ORDERS: [b"x"]})
    first, *more = names(folder)
    both = options(first, other, streaming=True, startingOffsets="earliest")
    start = follow(both, stream.INITIAL)
    # As checkpoints are of the time when each name was a folder of its own.
    twice = {part: {**those, str(more[1]): those[str(first)]} for part, those in start.items()}
    fill(folder, {ORDERS: [b"later"]})
    for old, here in [(start, more[0]), (start, more[1]), (twice, first), (twice, more[0])]:
        chosen = options(here, other, streaming=True)
        assert len(between(chosen, stream.INITIAL, old)) == len(RECORDS) + 1  # a batch that is run again
        end = follow(chosen, old)
        assert list(end["logs"]) == [str(here), str(other)]
        assert between(chosen, old, end) == [b"later"]


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


def test_a_topic_that_is_not_there_yet_is_told_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = tmp_path / "data"
    fill(data, {ORDERS: [b"a"]})
    asked = parse({"path": str(data), "subscribe": "orders,later"}, streaming=True)
    end = stream.planned(asked, stream.INITIAL, stream.Limit()).end
    assert f"there is no later in {data} yet" in capsys.readouterr().err
    stream.planned(asked, end, stream.Limit())
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("place_of", [{"path": "/srv/data"}, {"servers": "127.0.0.1:1"}])
def test_a_checkpoint_of_a_folder_does_not_go_on_with_servers(place_of: dict[str, str]) -> None:
    asked = parse({**place_of, "subscribe": "orders"}, streaming=True)
    other = "/srv/data" if asked.servers else "127.0.0.1:8080"
    start = {"logs": {other: {"orders": [0, 1]}}}
    with pytest.raises(ConfigError, match=r"cannot go on with (servers|a data folder): it takes a new"):
        stream.planned(asked, start, stream.Limit())
