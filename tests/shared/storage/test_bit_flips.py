"""Bits of a small data folder turned over, one at a time, in every byte: nothing wrong is served, nothing is
lost in silence, nothing is thrown away.

For each flip the real store opens the folder and everything is read; then the offline checker reads the same
flipped folder. *Noticed* means: the start is refused in words, a read is an error, the store said something
(a warning in its log), or the checker found damage.
"""

import logging
from collections.abc import Iterator, Sequence

import attrs
import pytest
import structlog
from structlog.testing import capture_logs

from shared.errors import StoreError, StoreFormat
from shared.storage import catalog, format, replay
from shared.storage.journal import segment_path
from shared.storage.settings import Durability
from shared.storage.store import Store
from shared.storage.tools.fsck import Severity, check_disk
from tests.support.crashes import open_store
from tests.support.fake_disk import FakeDisk
from tests.support.promises import read
from tests.support.workloads import ALWAYS, MODES

STEP = 7
"""Bits from one flip to the next: one or two in each byte, and others in the next."""

Truth = dict[str, dict[int, bytes]]
"""For each log its records' payloads, by offset."""


@attrs.frozen
class Outcome:
    """What one flip came to."""

    refused: bool
    wrong: tuple[str, ...]
    unreadable: dict[str, tuple[int, ...]]
    said: tuple[str, ...]
    found: tuple[str, ...]

    @property
    def noticed(self) -> bool:
        return bool(self.refused or self.unreadable or self.said or self.found)


def append(store: Store, name: str, payloads: Sequence[bytes], truth: Truth) -> None:
    space = store.namespace("logmq", ALWAYS)
    log = space.logs.get(name) or space.create(name, Durability.parse(MODES[name[0]]))[0]
    offset, _ = log.append(b"".join(map(format.record, payloads)), len(payloads))
    for payload in payloads:
        truth.setdefault(name, {})[offset] = payload
        offset += format.LENGTH_BYTES + len(payload)
    store.commit_pending()


async def closed_in_order() -> tuple[FakeDisk, Truth]:
    """Everything in the logs' own files, the index in two entries."""
    disk, truth = FakeDisk(), Truth()
    for number in range(2):
        store = await open_store(disk)
        append(store, "a", [b"record %d" % number, b""], truth)
        await store.close()
    return disk, truth


async def killed() -> tuple[FakeDisk, Truth]:
    """One checkpoint, and then two commits that the journal alone is sure to have."""
    disk, truth = FakeDisk(), Truth()
    store = await open_store(disk)
    append(store, "a", [b"checkpointed"], truth)
    await store.checkpoint()
    for number in range(2):
        append(store, "a", [b"journaled %d" % number], truth)
    store.abandon()
    return disk, truth


FOLDERS = {"closed": closed_in_order, "killed": killed}


async def flip_one(disk: FakeDisk, truth: Truth, path: str, bit: int) -> Outcome:
    flipped = disk.kill()
    flipped.flip(path, bit)
    found = what_the_checker_says(flipped.kill())
    before = flipped.contents()
    with capture_logs() as events:
        try:
            store = await open_store(flipped)
        except StoreFormat:
            return Outcome(True, (), {}, (), found)
        wrong: list[str] = []
        unreadable: dict[str, tuple[int, ...]] = {}
        logs = store.namespace("logmq", ALWAYS).logs
        wrong += [f"there is a log {name}" for name in logs.keys() - truth.keys()]
        for name, records in truth.items():
            if name not in logs:
                unreadable[name] = tuple(records)
                continue
            bad = []
            for offset, payload in records.items():
                try:
                    data = await read(store, logs[name], offset, 1)
                except StoreError:
                    bad.append(offset)
                else:
                    if not data:
                        bad.append(offset)
                    elif data != format.record(payload):
                        wrong.append(f"{name} at {offset}: {data!r}")
            if bad:
                unreadable[name] = tuple(bad)
        store.abandon()
    said = tuple(event["event"] for event in events if event["log_level"] != "info")
    wrong += thrown_away(before, flipped.contents(), path)
    return Outcome(False, tuple(wrong), unreadable, said, found)


def what_the_checker_says(disk: FakeDisk) -> tuple[str, ...]:
    try:
        findings = check_disk(disk).findings
    except StoreFormat as error:
        return (str(error),)
    return tuple(finding.text for finding in findings if finding.severity is not Severity.NOTE)


def thrown_away(before: dict[str, bytes], after: dict[str, bytes], path: str) -> Iterator[str]:
    """Bytes of logs that are in no file any more."""
    for name, data in before.items():
        if name.endswith(".log") and data not in after.values() and len(after.get(name, b"")) < len(data):
            yield f"{name} was {len(data)} bytes and is {len(after.get(name, b''))}"


async def flip_all(folder: str, path: str, bits: range | tuple[int, ...] | None = None) -> dict[int, Outcome]:
    """The outcome of each flip; what holds for every one is asserted here."""
    disk, truth = await FOLDERS[folder]()
    if bits is None:
        bits = range(0, len(disk.contents()[path]) * 8, 1 if path == "FORMAT" else STEP)
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.INFO))
    outcomes = {bit: await flip_one(disk, truth, path, bit) for bit in bits}
    assert outcomes
    for bit, outcome in outcomes.items():
        assert not outcome.wrong, f"{path} bit {bit}: {outcome}"
    return outcomes


@pytest.mark.parametrize("path", ["FORMAT", "CATALOG"])
async def test_a_flipped_format_or_catalog_costs_nothing_and_is_told(path: str) -> None:
    refused = 0
    for bit, outcome in (await flip_all("closed", path)).items():
        assert not outcome.unreadable, f"bit {bit}: {outcome}"
        assert outcome.said or outcome.refused, f"bit {bit}: the store says nothing"
        assert outcome.found, f"bit {bit}: the checker says nothing"
        refused += outcome.refused
    assert refused == (3 if path == "FORMAT" else 0), "only a format that may be a newer one's is refused"


async def test_a_flip_in_a_log_costs_the_range_it_is_in_and_no_other() -> None:
    for bit, outcome in (await flip_all("closed", "logmq/a.log")).items():
        number = bit // 8 // 16  # each index entry covers 16 bytes: two records
        assert outcome.unreadable == {"a": (16 * number, 16 * number + 12)}, f"bit {bit}: {outcome}"
        assert outcome.said, f"bit {bit}: the store says nothing"
        assert outcome.found, f"bit {bit}: the checker says nothing"


async def test_a_flip_in_an_index_costs_no_record_and_is_told() -> None:
    for bit, outcome in (await flip_all("closed", "logmq/a.idx")).items():
        assert outcome.found, f"bit {bit}: the checker says nothing"
        assert outcome.said, f"bit {bit}: the store says nothing"
        assert not outcome.unreadable, f"bit {bit}: {outcome}"


async def live_bits(folder: str) -> tuple[str, tuple[int, ...], tuple[int, ...]]:
    """The journal's segment, bits of its batches that replay needs, and a sample of all others."""
    disk, _ = await FOLDERS[folder]()
    found = catalog.read(disk)
    assert found is not None
    scanned = replay.scan(disk, found.journal_id, found.replay_lsn)
    (segment,) = {batch.segment for batch in scanned.batches}
    live: set[int] = set()
    for batch in scanned.batches:
        start = batch.position * 8
        live.update(range(start, start + (format.BATCH_HEADER_BYTES + batch.batch.payload_bytes) * 8))
    others = set(range(0, segment.size * 8, 61)) - live
    return segment_path(segment.lsn), tuple(sorted(live))[::STEP], tuple(sorted(others))


async def test_a_flip_in_the_journal_is_told_and_costs_at_most_its_batch() -> None:
    path, live, others = await live_bits("killed")
    for bit, outcome in (await flip_all("killed", path, live)).items():
        assert outcome.said, f"bit {bit}: the store says nothing"
        assert outcome.found, f"bit {bit}: the checker says nothing"
        assert len(outcome.unreadable.get("a", ())) <= 1, f"bit {bit}: {outcome}"
    for bit, outcome in (await flip_all("killed", path, others)).items():
        assert not outcome.unreadable, f"bit {bit}: {outcome}"


async def test_a_flip_in_a_log_that_the_journal_still_holds_is_healed() -> None:
    for bit, outcome in (await flip_all("killed", "logmq/a.log")).items():
        if bit // 8 < 16:  # before the checkpoint
            assert outcome.unreadable == {"a": (0,)}, f"bit {bit}: {outcome}"
            assert outcome.noticed
        else:
            assert not outcome.unreadable, f"bit {bit}: {outcome}"


async def test_a_flip_in_an_index_after_a_kill_costs_no_record() -> None:
    for bit, outcome in (await flip_all("killed", "logmq/a.idx")).items():
        assert outcome.found, f"bit {bit}: the checker says nothing"
        assert not outcome.unreadable, f"bit {bit}: {outcome}"
