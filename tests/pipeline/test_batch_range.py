"""How far a batch goes in a log, by folder and by servers: it is the same, and it always moves on."""

import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from brokers.pipeline.source import stream
from brokers.pipeline.source.batch_range import BatchRange
from brokers.pipeline.source.options import SourceOptions, parse
from brokers.pipeline.source.planning import open_reader
from brokers.pipeline.source.reader import DataLoss
from brokers.pipeline.source.servers import WINDOW_BYTES_MAX
from shared.storage.settings import Retention
from shared.storage.store import Store
from tests.pipeline.folders import (
    ORDERS,
    RECORDS,
    between,
    entries_of,
    follow,
    in_store,
    offset_of,
    values,
    whole,
)
from tests.pipeline.served import where
from tests.support.folders import ALWAYS, fill, flip
from tests.support.server import Server

Given = Callable[..., SourceOptions]
"""Options of a stream over a place."""


@pytest.fixture(scope="module")
def dropped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data folder whose topic had more than a look's bytes before RECORDS, which retention has taken."""
    data = tmp_path_factory.mktemp("dropped") / "data"

    async def drop(store: Store) -> None:
        log = store.namespace("logmq", ALWAYS).logs["orders"]
        log.retention = Retention(bytes_kept=sum(len(payload) + 4 for payload in RECORDS))
        await store.retain()  # from now on it is not served
        await store.retain()  # and its space is given back

    old = [b"%d" % number + b"." * (1 << 19) for number in range((WINDOW_BYTES_MAX >> 19) + 8)]
    fill(data, {ORDERS: old + RECORDS})
    in_store(data, drop, clean=True)
    assert whole(data).start > WINDOW_BYTES_MAX
    return data


@pytest.fixture(scope="module")
def damaged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data folder with a bit turned over in the second of its topic's entries: in a record's length."""
    data = tmp_path_factory.mktemp("damaged") / "data"
    fill(data, {ORDERS: RECORDS})
    flip(data / "logmq" / "orders.log", entries_of(data)[1].offset * 8 + 1)
    return data


@pytest.fixture(scope="module")
def given(place: Callable[[Path], dict[str, str]]) -> Callable[[Path], Given]:
    """`given(folder)(failOnDataLoss="false")`: what follows `orders` from its beginning."""

    def given(folder: Path) -> Given:
        where = place(folder) | {"subscribe": "orders", "startingOffsets": "earliest"}
        return lambda **more: parse(where | more, streaming=True)

    return given


def at_the_beginning(chosen: SourceOptions) -> stream.Offset:
    """The offset of a stream that has read nothing of `orders` yet, and knows it."""
    (source,) = chosen.sources
    with open_reader(chosen, source) as reader:
        found = reader.logs(chosen.topics)["orders"]
    return {"logs": {source: {"orders": [0, found.log_id]}}}


def batches(
    chosen: SourceOptions, start: stream.Offset, limit: stream.Limit, **more: Any
) -> Iterator[list[bytes]]:
    while (end := stream.planned(chosen, start, limit, **more).end) != start:
        yield between(chosen, start, end)
        start = end


@pytest.mark.parametrize("size", [0, 7, 5000])
def test_a_batch_has_as_many_records_as_fit_and_one_at_least(
    plain: Path, given: Callable[[Path], Given], size: int
) -> None:
    ends = [offset_of(number) for number in range(len(RECORDS) + 1)]
    second, third = [ends.index(entry.offset) for entry in entries_of(plain)][1:3]
    chosen = given(plain)()
    with open_reader(chosen, *chosen.sources) as reader:
        found = reader.logs(chosen.topics)["orders"]
        asked, expected = [], []
        for start in (0, 1, second - 1, second, second + 5, len(RECORDS) - 1):
            for count in (None, 1, 2, second, third - second, third - second + 1, 10_000):
                for length in (
                    None,
                    1,
                    ends[second],
                    ends[third] - ends[second],
                    ends[third] - ends[second] + size,
                ):
                    stop = start + 1
                    while (
                        stop < len(RECORDS)
                        and (count is None or stop - start < count)
                        and (length is None or ends[stop + 1] - ends[start] <= length)
                    ):
                        stop += 1
                    asked.append(BatchRange(found, ends[start], count, length))
                    expected.append((ends[stop], stop - start))
        for batch in asked:
            batch.advance(reader)
        assert [(batch.stop, batch.records) for batch in asked] == expected


LIMITS = [stream.Limit(records=700), stream.Limit(length=100_000), stream.Limit(700, 100_000)]


@pytest.mark.parametrize("limit", LIMITS)
def test_a_stream_goes_on_behind_what_retention_has_taken(
    dropped: Path, given: Callable[[Path], Given], limit: stream.Limit, capfd: pytest.CaptureFixture[str]
) -> None:
    strict, lenient = given(dropped)(), given(dropped)(failOnDataLoss="false")
    start = at_the_beginning(strict)
    with pytest.raises(DataLoss, match=r"offsets 0 to \d+ are lost: retention dropped it"):
        between(strict, start, follow(strict, start, limit))
    for more in ({}, {"target": stream.target(lenient)}):  # as with availableNow
        found = list(batches(lenient, start, limit, **more))
        assert b"".join(value for batch in found for value in batch).endswith(b"".join(RECORDS))
        assert max(map(len, found)) <= 700
        assert len(found[0]) > 100
        assert "retention dropped it" in capfd.readouterr().err


@pytest.mark.parametrize("limit", [*LIMITS, stream.Limit(records=100), stream.Limit()])
def test_a_limit_that_ends_in_a_damaged_entry_costs_that_entry_alone(
    damaged: Path, given: Callable[[Path], Given], limit: stream.Limit, capfd: pytest.CaptureFixture[str]
) -> None:
    strict, lenient = given(damaged)(), given(damaged)(failOnDataLoss="false")
    found = [value for batch in batches(lenient, stream.INITIAL, limit) for value in batch]
    entry = entries_of(damaged)[1]
    ends = [offset_of(number) for number in range(len(RECORDS) + 1)]
    assert found == RECORDS[: ends.index(entry.offset)] + RECORDS[ends.index(entry.end) :]
    assert "are lost" in capfd.readouterr().err
    with pytest.raises(DataLoss, match="are lost"):
        list(batches(strict, stream.INITIAL, limit))


def test_many_topics_are_planned_over_one_connection(
    tmp_path: Path, new_server: Callable[..., Server], monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [f"t{number}" for number in range(50)]
    data = tmp_path / "data"
    fill(data, {("logmq", name): RECORDS[:20] for name in names})
    server = new_server("--enable", "logmq", data=data).start()
    given = {"servers": where(server), "subscribePattern": ".*", "startingOffsets": "earliest"}
    chosen = parse(given, streaming=True)
    connects: list[object] = []
    connect = socket.create_connection
    monkeypatch.setattr(socket, "create_connection", lambda *to: connects.append(to) or connect(*to))
    end = follow(chosen, stream.INITIAL, stream.Limit(records=150))
    assert len(connects) == 1
    monkeypatch.undo()
    assert sorted(values(chosen, *stream.ranges(chosen, stream.INITIAL, end))) == sorted(
        payload for payload in RECORDS[:3] for _ in names
    )
