"""The source's options: what they mean, and that a wrong one is told by its name."""

import json
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brokers.pipeline.source.options import (
    EARLIEST,
    LATEST,
    NAMES,
    At,
    PositionKind,
    SourceOptions,
    parse,
)
from shared.errors import ConfigError

BASE = {"path": "data", "subscribe": "orders"}


def options(streaming: bool | None = None, **given: str) -> SourceOptions:
    return parse(BASE | given, streaming=streaming)


def test_what_is_not_said_is_as_for_kafka() -> None:
    batch, stream = options(False), options(True)
    assert batch.starting.of("orders") == EARLIEST
    assert stream.starting.of("orders") == LATEST
    assert batch.ending.of("orders") == LATEST
    assert batch.fail_on_data_loss
    assert batch.verify_crc
    assert batch.namespace == "logmq"
    assert (batch.max_offsets, batch.max_bytes, batch.min_partitions) == (None, None, None)


def test_case_of_a_name_does_not_matter() -> None:
    assert options(FAILONDATALOSS="false").fail_on_data_loss is False


def test_several_folders_come_as_spark_hands_them_over() -> None:
    assert parse({"paths": '["/a", "/b", "/a"]', "subscribe": "orders"}).sources == ("/a", "/b")


def test_a_folder_may_be_a_url_of_this_machine_or_of_a_bucket_and_no_other() -> None:
    assert parse({"path": "s3://b/data/", "subscribe": "orders"}).paths == ("s3://b/data",)
    for where in ({"path": "file:///srv/data"}, {"paths": '["file:///srv/data"]'}):
        assert parse({**where, "subscribe": "orders"}).paths == ("/srv/data",)
    for where, name in (
        ({"path": "s4://b/data"}, "path"),
        ({"paths": '["/srv/data", "s4://b/data"]'}, "paths"),
        ({"servers": "a", "tlsCa": "s3://b/ca.pem"}, "tlsCa"),
    ):
        with pytest.raises(ConfigError, match=f"^{name}: 's[34]://b/.*file:///path"):
            parse({**where, "subscribe": "orders"})


@pytest.mark.parametrize("given", [{"path": "data"}, {"paths": '["data"]'}])
def test_a_relative_path_is_settled_where_the_read_is_planned_and_not_by_each_executor(
    given: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    options = parse({**given, "subscribe": "orders"})
    monkeypatch.chdir("/")
    assert options.sources == (str(tmp_path / "data"),)


@pytest.mark.parametrize(
    ("given", "names"),
    [
        ({"subscribe": "a, b,a"}, ("a", "b")),
        ({"assign": '["a", "b"]'}, ("a", "b")),
        ({"assign": '{"a": [0], "b": [0]}'}, ("a", "b")),
    ],
)
def test_topics_are_named_by_subscribe_and_assign_alike(
    given: dict[str, str], names: tuple[str, ...]
) -> None:
    assert parse({"path": "data"} | given).topics.names == names
    for partitions in ("[0, 1]", "[]", "[1]", "0"):
        with pytest.raises(ConfigError, match="one partition, 0"):
            parse({"path": "data", "assign": f'{{"orders": {partitions}}}'})


def test_a_pattern_is_for_the_whole_name() -> None:
    topics = parse({"path": "data", "subscribePattern": "a.c"}).topics
    assert topics.matching({"abc": 1, "abcd": 1, "a.c": 1}) == ["a.c", "abc"]


@pytest.mark.parametrize(
    "offsets", ['{"orders": 7, "b": -1, "c": -2}', '{"orders": {"0": 7}, "b": -1, "c": -2}']
)
def test_offsets_by_topic_may_be_written_with_kafka_s_partition(offsets: str) -> None:
    bound = options(subscribe="orders,b,c,another", startingOffsets=offsets).starting
    assert bound.of("orders") == At(PositionKind.OFFSET, 7)
    assert bound.of("b") == LATEST
    assert bound.of("c") == EARLIEST
    assert bound.of("another") == EARLIEST


@pytest.mark.parametrize(
    "text", ["1767225600250", "2026-01-01T00:00:00.25Z", "2026-01-01T01:00:00.250+01:00"]
)
def test_a_time_is_milliseconds_or_iso_8601_with_a_zone(text: str) -> None:
    assert options(startingTimestamp=text).starting.of("orders") == At(PositionKind.TIME, 1767225600250)


def test_a_time_for_all_counts_before_times_by_topic_and_these_before_offsets() -> None:
    given = {"startingOffsets": "latest", "startingOffsetsByTimestamp": '{"orders": 5}'}
    assert options(**given).starting.of("orders") == At(PositionKind.TIME, 5)
    assert options(**given, startingTimestamp="9").starting.of("orders") == At(PositionKind.TIME, 9)


def test_a_time_behind_the_newest_record_is_an_error_unless_said_otherwise() -> None:
    assert not options(startingTimestamp="5").starting.past_end_is_latest
    latest = options(startingTimestamp="5", startingOffsetsByTimestampStrategy="latest")
    assert latest.starting.past_end_is_latest
    assert options(endingTimestamp="5").ending.past_end_is_latest


@pytest.mark.parametrize(("text", "size"), [("1", 1), ("8k", 8 << 10), ("8KiB", 8 << 10), ("2 mb", 2 << 20)])
def test_sizes_have_units(text: str, size: int) -> None:
    assert options(maxBytesPerTrigger=text).max_bytes == size


@pytest.mark.parametrize(
    ("streaming", "given", "named"),
    [
        (None, {"subscribed": "x"}, "subscribed"),
        (None, {"subscribePattern": "x"}, "subscribePattern"),
        (None, {"servers": "localhost:1"}, "path"),
        (None, {"startingOffsets": "soon"}, "startingOffsets"),
        (None, {"startingOffsets": '{"orders": "7"}'}, "startingOffsets"),
        (None, {"startingOffsets": '{"orders": -3}'}, "startingOffsets"),
        (None, {"startingOffsets": '{"orders": {"1": 3}}'}, "startingOffsets"),
        (None, {"startingOffsets": '{"orders": true}'}, "startingOffsets"),
        (None, {"startingOffsets": "{"}, "startingOffsets"),
        (None, {"endingOffsets": "earliest"}, "endingOffsets"),
        (None, {"endingOffsets": '{"orders": -2}'}, "endingOffsets"),
        (None, {"startingOffsetsByTimestamp": "[1]"}, "startingOffsetsByTimestamp"),
        (None, {"startingOffsetsByTimestamp": '{"orders": -1}'}, "startingOffsetsByTimestamp"),
        (None, {"startingTimestamp": "2026-01-01T00:00:00"}, "startingTimestamp"),
        (None, {"startingTimestamp": "yesterday"}, "startingTimestamp"),
        (None, {"endingTimestamp": "-1"}, "endingTimestamp"),
        (None, {"startingOffsetsByTimestampStrategy": "first"}, "startingOffsetsByTimestampStrategy"),
        (None, {"minPartitions": "0"}, "minPartitions"),
        (None, {"maxOffsetsPerTrigger": "1.5"}, "maxOffsetsPerTrigger"),
        (None, {"maxBytesPerTrigger": "8 parsecs"}, "maxBytesPerTrigger"),
        (None, {"failOnDataLoss": "maybe"}, "failOnDataLoss"),
        (None, {"verifyCrc": "1"}, "verifyCrc"),
        (None, {"startingOffsets": '{"order": 7}'}, "startingOffsets"),
        (None, {"startingOffsets": '{"orders": 7, "orders": 8}'}, "startingOffsets"),
        (None, {"startingOffsets": '{"orders":' * 9999}, "startingOffsets"),
        (None, {"endingOffsets": '{"order": 7}'}, "endingOffsets"),
        (None, {"startingOffsetsByTimestamp": '{"order": 7}'}, "startingOffsetsByTimestamp"),
        (None, {"namespace": "../other"}, "namespace"),
        (None, {"namespace": ""}, "namespace"),
        (None, {"tls": "true"}, "tls"),
        (None, {"replyTimeoutMs": "5"}, "replyTimeoutMs"),
        (True, {"endingOffsets": "latest"}, "endingOffsets"),
        (True, {"endingTimestamp": "5"}, "endingTimestamp"),
        (False, {"maxOffsetsPerTrigger": "5"}, "maxOffsetsPerTrigger"),
        (False, {"maxBytesPerTrigger": "5"}, "maxBytesPerTrigger"),
    ],
)
def test_a_wrong_option_is_named(streaming: bool | None, given: dict[str, str], named: str) -> None:
    with pytest.raises(ConfigError) as error:
        options(streaming, **given)
    assert error.value.key == named


def test_a_pattern_that_matches_no_name_at_all_is_a_mistake() -> None:
    with pytest.raises(ConfigError, match="subscribePattern: is empty"):
        parse({"path": "data", "subscribePattern": ""})


def test_offsets_may_be_of_topics_that_a_pattern_does_not_match_yet() -> None:
    given = {"path": "data", "subscribePattern": "o.*", "startingOffsets": '{"orders": 7, "bills": 8}'}
    assert parse(given).starting.of("orders") == At(PositionKind.OFFSET, 7)


@pytest.mark.parametrize("given", [{"path": "data"}, {"subscribe": "orders"}])
def test_where_and_what_must_be_said(given: dict[str, str]) -> None:
    with pytest.raises(ConfigError):
        parse(given)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
)


@given(
    st.dictionaries(
        st.sampled_from(NAMES) | st.text(max_size=8), st.text(max_size=12) | JSON.map(json.dumps), max_size=4
    ),
    st.sampled_from([None, True, False]),
)
def test_nothing_that_is_given_is_more_than_a_mistake(given: dict[str, str], streaming: bool | None) -> None:
    with suppress(ConfigError):
        parse(BASE | given, streaming=streaming)


def test_a_time_before_1970_is_the_beginning_and_there_is_one_partition() -> None:
    assert options(startingTimestamp="1960-01-01T00:00:00Z").starting.default == At(PositionKind.TIME, 0)
    for wrong, says in (
        ({"startingOffsets": '{"orders": {"0": 1, "1": 2}}'}, "one partition"),
        ({"startingOffsetsByTimestamp": '{"orders": 9223372036854775808}'}, "not Unix milliseconds"),
    ):
        with pytest.raises(ConfigError, match=says):
            options(**wrong)
