"""The fake disk is worth what its legal states are: no fewer than real ones, and none that no disk has."""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.explore import TooManyStatesError, every_state, sampled_states
from tests.support.fake_disk import FakeDisk, Operation
from tests.support.medium import SECTOR

A, B, C = (bytes([letter]) * SECTOR for letter in b"abc")
Picture = tuple[tuple[str, bytes], ...]


def synced(disk: FakeDisk, path: str, data: bytes) -> int:
    fd = disk.open(path, create=True)
    disk.write(fd, data, 0)
    disk.sync_data(fd)
    disk.sync_folder(path.rpartition("/")[0])
    return fd


def picture(disk: FakeDisk, folder: str = "") -> Picture:
    """Everything that a program can see."""
    seen: list[tuple[str, bytes]] = []
    for name in disk.names(folder):
        path = f"{folder}/{name}" if folder else name
        try:
            fd = disk.open(path)
        except IsADirectoryError:
            seen.extend([(path, b"<folder>"), *picture(disk, path)])
        else:
            seen.append((path, disk.read(fd, disk.size(fd), 0)))
            disk.close(fd)
    return tuple(seen)


def pictures(disk: FakeDisk, look: Callable[[FakeDisk], Picture] = picture) -> set[Picture]:
    """What may be seen after a power cut now; the count of states must agree with a full walk."""
    crash = disk.power_cut()
    seen: list[Picture] = []
    states = 0
    for booted in every_state(crash, 10_000):
        seen.append(look(booted))
        states += booted.states()
    assert states == crash.states(), "the states of all runs together are all states"
    if look is picture:
        assert len(set(seen)) == len(seen) == states, "each run saw something else"
    return set(seen)


def test_unsynced_sectors_are_there_or_not_each_by_itself() -> None:
    disk = FakeDisk()
    fd = synced(disk, "f", A + A)
    disk.write(fd, B + B, 0)
    assert pictures(disk) == {(("f", x + y),) for x in (A, B) for y in (A, B)}


def test_a_sector_is_whole_and_may_be_any_version_since_the_sync() -> None:
    disk = FakeDisk()
    fd = synced(disk, "f", A)
    disk.write(fd, B, 0)
    disk.write(fd, C[:1], 0)
    assert pictures(disk) == {(("f", A),), (("f", B),), (("f", C[:1] + B[1:]),)}


def test_a_grown_file_has_any_size_since_its_sync_and_zeros_where_data_is_missing() -> None:
    disk = FakeDisk()
    fd = synced(disk, "f", A)
    disk.write(fd, b"tail", SECTOR)
    assert pictures(disk) == {(("f", A),), (("f", A + b"tail"),), (("f", A + bytes(4)),)}


def test_a_file_cut_and_written_again_is_somewhere_in_between() -> None:
    disk = FakeDisk()
    fd = synced(disk, "f", A + B)
    disk.truncate(fd, 0)
    disk.write(fd, C, 0)
    seen = pictures(disk)
    assert {(("f", A + B),), (("f", b""),), (("f", C),), (("f", A),)} <= seen
    assert (("f", C + C),) not in seen


def test_a_new_file_needs_its_folder_synced_and_its_data() -> None:
    disk = FakeDisk()
    fd = disk.open("f", create=True)
    disk.write(fd, A, 0)
    assert pictures(disk) == {(), (("f", b""),), (("f", bytes(SECTOR)),), (("f", A),)}
    disk.sync_data(fd)
    assert pictures(disk) == {(), (("f", A),)}
    disk.sync_folder("")
    assert pictures(disk) == {(("f", A),)}


def test_a_rename_is_whole_and_undone_until_its_folder_is_synced() -> None:
    disk = FakeDisk()
    synced(disk, "f", A)
    synced(disk, "f.new", B)
    disk.rename("f.new", "f")
    assert pictures(disk) == {(("f", A), ("f.new", B)), (("f", B),)}
    disk.sync_folder("")
    assert pictures(disk) == {(("f", B),)}


def test_changes_of_one_name_keep_their_order_those_of_others_need_not() -> None:
    disk = FakeDisk()
    synced(disk, "a", A)
    synced(disk, "b", B)
    disk.unlink("a")
    disk.unlink("b")
    assert len(pictures(disk)) == 4
    disk = FakeDisk()
    synced(disk, "a", A)
    disk.unlink("a")
    disk.sync_data(disk.open("a", create=True))
    assert pictures(disk) == {(("a", A),), (), (("a", b""),)}


def test_a_folder_made_again_is_empty() -> None:
    disk = FakeDisk()
    disk.make_folder("d")
    synced(disk, "d/f", A)
    disk.open("d/g", create=True)

    def make_again(booted: FakeDisk) -> Picture:
        booted.make_folder("d")
        return picture(booted)

    there = (("d", b"<folder>"), ("d/f", A))
    assert pictures(disk, make_again) == {(("d", b"<folder>"),), there, (*there, ("d/g", b""))}


def test_a_killed_process_loses_nothing_but_the_next_power_cut_may() -> None:
    disk = FakeDisk()
    disk.write(disk.open("f", create=True), A, 0)
    after = disk.kill()
    assert picture(after) == (("f", A),)
    assert after.open_paths == []
    assert len(pictures(after)) == 4


def test_a_failed_sync_marks_pages_clean_so_the_next_one_saves_nothing() -> None:
    disk = FakeDisk()
    fd = synced(disk, "f", A)
    disk.write(fd, B, 0)
    disk.lose("f")
    disk.sync_data(fd)  # succeeds: there is nothing left to write
    assert disk.read(fd, SECTOR, 0) == B, "the page cache lies"
    assert pictures(disk) == {(("f", A),), (("f", B),)}
    assert pictures(disk.kill()) == {(("f", A),), (("f", B),)}
    disk.write(fd, C, 0)
    disk.sync_data(fd)
    assert pictures(disk) == {(("f", C),)}


def test_what_is_overwritten_unread_costs_no_run() -> None:
    disk = FakeDisk()
    fd = synced(disk, "f", A * 20)
    disk.write(fd, B * 20, 0)
    crash = disk.power_cut()

    def overwrite(booted: FakeDisk) -> Picture:
        fd = booted.open("f")
        booted.write(fd, C * 20, 0)
        return picture(booted)

    (only,) = every_state(crash, 9)
    assert overwrite(only) == (("f", C * 20),)
    assert only.states() == crash.states() == 2**20
    with pytest.raises(TooManyStatesError):
        list(map(picture, every_state(crash, 9)))
    assert len({picture(booted) for booted in sampled_states(crash, 1, 200)}) > 50


def test_a_fault_happens_instead_of_the_operation() -> None:
    disk = FakeDisk()
    fd = synced(disk, "f", A)
    told: list[Operation] = []

    def before(operation: Operation) -> int | None:
        told.append(operation)
        if operation.kind == "sync":
            raise OSError(5, "no")
        return 3 if operation.kind == "write" else None

    disk.before = before
    assert disk.write(fd, B, 0) == 3
    with pytest.raises(OSError, match="no"):
        disk.sync_data(fd)
    disk.before = None
    assert disk.read(fd, SECTOR, 0) == B[:3] + A[3:]
    assert [(operation.kind, operation.path) for operation in told] == [("write", "f"), ("sync", "f")]


@st.composite
def histories(draw: st.DrawFn) -> list[tuple[str, int, int]]:
    return draw(
        st.lists(
            st.tuples(
                st.sampled_from(["write", "write", "write", "sync", "truncate", "power", "lose"]),
                st.integers(0, 3 * SECTOR),
                st.integers(1, 2 * SECTOR),
            ),
            max_size=8,
        )
    )


@given(histories(), st.integers(0, 2**32))
def test_any_history_keeps_synced_bytes_and_counts_its_states(
    history: list[tuple[str, int, int]], seed: int
) -> None:
    disk = FakeDisk()
    fd = synced(disk, "f", A)
    certain = A  # what a sync covered and nothing touched since, byte by byte; None where open
    known: list[int | None] = list(certain)
    for number, (kind, offset, length) in enumerate(history):
        if kind == "write":
            disk.write(fd, bytes([number]) * length, offset)
            known += [None] * (offset + length - len(known))
            known[offset : offset + length] = [None] * length
        elif kind == "truncate":
            disk.truncate(fd, offset)
            known = known[:offset]
        elif kind == "sync":
            disk.sync_data(fd)
            size = disk.size(fd)
            known = list(disk.read(fd, size, 0))
        elif kind == "lose":
            disk.write(fd, b"?", 0)
            disk.lose("f")
            known = []
            break
        else:
            (disk,) = sampled_states(disk.power_cut(), seed, 1)
            fd = disk.open("f")
            known = list(disk.read(fd, disk.size(fd), 0))
    crash = disk.power_cut()
    if crash.states() <= 64:
        pictures(disk)
    for booted in sampled_states(crash, seed, 5):
        ((_, content),) = picture(booted)
        for position, byte in enumerate(known[: len(content)]):
            assert byte is None or content[position] == byte
