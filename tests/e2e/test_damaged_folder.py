"""A folder of all protocols with any one file damaged starts, serves the rest, and says what is lost.

A selection of the cases of `make trial-damage`, and the real server on a folder that was hurt in many places.
"""

import os
import random
import tempfile
from collections.abc import Iterator
from itertools import cycle
from pathlib import Path

import pytest
import trio

from tests.support.server import Server
from tests.trials.damage import DAMAGES, STATES, State, case, files, hurt, judge, looked_at, make


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """Where one is to be made; in memory where that can be: a case copies it, and syncs, many times."""
    if os.access("/dev/shm", os.W_OK):
        with tempfile.TemporaryDirectory(dir="/dev/shm") as name:
            yield Path(name) / "folder"
    else:
        yield tmp_path / "folder"


ALL = {"logmq", "dms", "pubsub", "kqmsgq", "dmp"}


@pytest.mark.parametrize("state", STATES, ids=str)
def test_a_damaged_file_costs_what_stood_there_and_that_is_said(folder: Path, state: State) -> None:
    expected = make(folder, state)
    ways = cycle(DAMAGES)
    faults = []
    for path in files(folder)[STATES.index(state) % 5 :: 5]:
        how = next(ways)
        chance = random.Random(f"suite {path} {how}")
        faults += [f"{path}, {how}: {fault}" for fault in trio.run(case, folder, path, how, expected, chance)]
    assert not faults, "\n".join(faults)


def test_the_server_starts_with_every_protocol_though_many_files_are_damaged(folder: Path) -> None:
    make(folder, STATES[0])
    for path in (
        "FORMAT",
        "dmp-queues/audit.log",
        "dmp-tables/definitions.log",
        "dms/jobs.log",
        "dms-tables/queues.log",
        "logmq-tables/groups.log",
        "logmq-tables/writers.log",
        "pubsub/sessions.log",
        "pubsub/kept.log",
        "pubsub/retained.log",
    ):
        assert hurt(folder, path, DAMAGES["a bit in the middle"], random.Random(path))
    with Server(folder.parent, data=folder) as server:
        assert {each["protocol"] for each in server.ready["addresses"]} == ALL
        assert server.stop() == 0
        said = server.said
    for path in (
        "FORMAT",
        "dmp-queues/audit.log",
        "dms/jobs.log",
        "pubsub/sessions.log",
        "logmq-tables/groups.log",
    ):
        assert path in said


async def test_the_judge_finds_what_is_lost_in_silence(folder: Path) -> None:
    """Else the cases would prove nothing."""
    expected = await trio.to_thread.run_sync(make, folder, STATES[0])
    found, refused, warned = await looked_at(folder)
    path, how = "logmq/orders.log", "a bit in the middle"
    assert not warned
    assert not list(judge(path, how, expected, found, refused, []))
    place = "topic", "orders"
    found[place] = found[place] - type(found[place])(list(found[place])[:5])
    assert list(judge(path, how, expected, found, refused, ["logmq/orders.log"])) == [
        f"{place} has lost 5 of {expected[place].total()}, and answers as if it had not"
    ]
    assert list(judge(path, how, expected, found, {place}, [])) == ["5 things are lost, and nothing says so"]
    assert "nothing of it stood there" in next(
        judge("dms/jobs.log", how, expected, found, {place}, ["dms/jobs.log"])
    )
    journal = "journal/00000000000000000000.wal"
    assert list(
        judge(journal, how, expected, found, {place}, ["the journal is damaged, logmq/part0.log"])
    ) == [f"{place} has lost 5 of {expected[place].total()}, and nothing names it"]
    assert list(judge(journal, how, expected, found, refused, ["logmq/part0.log, logmq/orders.log"])) == [
        f"{place} has lost 5 of {expected[place].total()}, and answers as if it had not"
    ]
    assert not list(judge(journal, how, expected, found, {place}, ["logmq/part0.log, logmq/orders.log"]))
    assert not list(judge(journal, how, expected, found, refused, ["torn: logmq/orders.log"]))
    assert not list(judge(journal, "missing", expected, found, refused, ["the journal is not there"]))
    del found[place]
    assert list(judge(path, "missing", expected, found, {place}, ["logmq/orders.log"])) == [
        f"{place} is not there any more"
    ]
