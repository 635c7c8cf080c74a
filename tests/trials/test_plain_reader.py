"""The trials' own reader of a data folder: what it must find fault with, and what is as it should be."""

import crc32c
import pytest

from tests.trials.logmq_model import joined
from tests.trials.plain_reader import Entry, index_faults

RECORDS = [joined([b"%d" % number * 20]) for number in range(6)]
SIZE = len(RECORDS[0])
LOG = b"".join(RECORDS)


def entry(first: int, last: int) -> Entry:
    """Over the records from `first` to before `last`."""
    covered = b"".join(RECORDS[first:last])
    return Entry(first * SIZE, len(covered), last - first, crc32c.crc32c(covered))


def test_entries_that_say_what_the_file_holds_are_good() -> None:
    assert not list(index_faults([entry(0, 2), entry(2, 6)], 0, LOG, start=0))


@pytest.mark.parametrize(
    ("entries", "log", "told"),
    [
        ([entry(0, 2), entry(3, 6)], LOG, "one after the other"),
        ([entry(0, 2), entry(2, 6)], LOG[:-SIZE], "covers up to"),
        ([entry(0, 6)], LOG.replace(b"3", b"4"), "CRC differs"),
        ([Entry(0, len(LOG), 5, crc32c.crc32c(LOG))], LOG, "counts 5 records"),
    ],
)
def test_entries_that_say_otherwise_are_found_out(entries: list[Entry], log: bytes, told: str) -> None:
    (fault,) = index_faults(entries, 0, log, start=0)
    assert told in fault


def test_an_entry_across_the_first_kept_offset_needs_all_its_bytes_in_the_file() -> None:
    entries = [entry(0, 1), entry(1, 4), entry(4, 6)]
    first = 3 * SIZE
    holed = bytes(SIZE) + LOG[SIZE:]
    assert not list(index_faults(entries, first, holed, start=0))
    holed_too_far = bytes(2 * SIZE) + LOG[2 * SIZE :]
    assert list(index_faults(entries, first, holed_too_far, start=0)) == [
        f"the index's CRC differs at {SIZE}"
    ]
    assert not list(index_faults(entries, first, LOG[first:], start=first)), "nothing to check it by"
