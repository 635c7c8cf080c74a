"""The archive's rounds over real folders, without Spark: what executors do is done here."""

import itertools
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import attrs
import pytest

from brokers.errors import Failure
from brokers.pipeline.archive import committed, faults
from brokers.pipeline.archiving.feed import ArchiveInput, Look
from brokers.pipeline.archiving.job import Round, Settings
from brokers.pipeline.archiving.manifest import Manifest, NotContinuous
from brokers.pipeline.archiving.places import FolderPlace
from brokers.pipeline.archiving.plan import NamedLog, Overtaken
from brokers.pipeline.source.ranges import LogRange
from tests.pipeline.archive.model import AT_ONCE, Spark, archiver
from tests.pipeline.folders import ORDERS, RECORDS, entries_of, offset_of
from tests.support.folders import fill, flip


def archived(data: Path, folder: Path, *, once: bool, settings: Settings = AT_ONCE) -> list[Round]:
    """All rounds, or the first of an archive that follows, and dies then."""
    loss = {"failOnDataLoss": "false"} if settings.allow_loss else {}
    with archiver(Spark(), folder, data, settings, **loss) as job:
        return list(job.once()) if once else [next(job.follow())]


def test_all_is_archived_by_several_tasks_in_several_rounds(folder: Path, tmp_path: Path) -> None:
    small = attrs.evolve(AT_ONCE, round_bytes=offset_of(len(RECORDS)) // 3)
    rounds = archived(folder, tmp_path / "archive", once=True, settings=small)
    assert len(rounds) > 2
    assert [each.version for each in rounds] == list(range(1, len(rounds) + 1))
    assert sum(each.records for each in rounds) == len(RECORDS)
    behind = [each.behind_bytes for each in rounds]
    assert behind == sorted(behind, reverse=True)
    assert behind[-1] == 0
    assert sum(each.bytes for each in rounds) == rounds[0].bytes + behind[0] == offset_of(len(RECORDS))
    assert faults(FolderPlace(tmp_path / "archive")) == []
    assert archived(folder, tmp_path / "archive", once=True) == []


def test_a_place_that_leaves_records_out_in_silence_is_found_out(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    by_range = ArchiveInput.by_range

    def without_the_first(self: ArchiveInput, spans: Sequence[LogRange]) -> Iterable[Any]:
        for span, rows in by_range(self, spans):
            first, *others = rows
            yield span, [first.slice(1), *others]

    monkeypatch.setattr(ArchiveInput, "by_range", without_the_first)
    with pytest.raises(NotContinuous, match="orders: no records from 0 to"):
        archived(folder, tmp_path / "archive", once=True)
    with pytest.raises(Failure, match="nothing was archived"):
        committed(FolderPlace(tmp_path / "archive"))


def test_what_cannot_be_read_ends_a_round_or_is_a_gap(folder: Path, tmp_path: Path) -> None:
    second = entries_of(folder)[1]
    flip(folder / "logmq" / "orders.log", (second.offset + 50) * 8)
    with pytest.raises(Exception, match=f"offsets {second.offset} to {second.end} are lost"):
        archived(folder, tmp_path / "archive", once=True)
    archived(folder, tmp_path / "archive", once=True, settings=attrs.evolve(AT_ONCE, allow_loss=True))
    (log,) = committed(FolderPlace(tmp_path / "archive")).manifest.logs.values()
    assert log.gaps == ((second.offset, second.end),)
    assert log.records == len(RECORDS) - second.records
    assert faults(FolderPlace(tmp_path / "archive")) == []


def test_a_topic_that_comes_between_two_looks_waits_for_the_next_time(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    logs, looks = Look.logs, itertools.count(1)

    def later(self: Look, known: Manifest) -> list[NamedLog]:
        if next(looks) == 2:
            fill(folder, {("logmq", "late"): [b"x"], ORDERS: [b"later"]})
        return logs(self, known)

    monkeypatch.setattr(Look, "logs", later)
    for records in (len(RECORDS), 2):
        assert sum(each.records for each in archived(folder, tmp_path / "archive", once=True)) == records


def test_a_log_that_lost_its_end_is_refused_and_nothing_archived_twice(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archived(folder, tmp_path / "archive", once=True)
    logs = Look.logs

    def shorter(self: Look, known: Manifest) -> list[NamedLog]:
        return [(name, attrs.evolve(spot, stop=offset_of(7))) for name, spot in logs(self, known)]

    monkeypatch.setattr(Look, "logs", shorter)
    with pytest.raises(Overtaken, match=f"it ends at {offset_of(7)}, and was archived up to"):
        archived(folder, tmp_path / "archive", once=True)
    (log,) = committed(FolderPlace(tmp_path / "archive")).manifest.logs.values()
    assert (log.end, log.records) == (offset_of(len(RECORDS)), len(RECORDS))
