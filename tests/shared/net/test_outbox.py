"""The queue of what is to be said, its policies, and the memory that all of them share."""

import os
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.budget import Account
from shared.net import outbox as outboxes
from shared.net.outbox import (
    CHUNK_OVERHEAD_BYTES,
    Backlogs,
    FileRange,
    Outbox,
    Policy,
)
from tests.support.connections import MemoryConnection


@pytest.fixture
def letters(tmp_path: Path) -> Iterator[int]:
    """A file that holds the alphabet."""
    path = tmp_path / "letters"
    path.write_bytes(b"abcdefghijklmnopqrstuvwxyz")
    fd = os.open(path, os.O_RDONLY)
    yield fd
    os.close(fd)


@given(
    st.lists(st.binary(min_size=1, max_size=50), max_size=30),
    st.lists(st.integers(1, 40)),
    st.booleans(),
)
def test_bytes_leave_in_order_however_the_transport_takes_them(
    chunks: list[bytes], steps: list[int], slowly: bool
) -> None:
    outbox = Outbox(1 << 20)
    for chunk in chunks:
        outbox.push(chunk)
    sent = b""
    for step in (*steps, *[7] * 1500):
        if not outbox.chunks:
            break
        offered = bytes(outbox.begin()) if slowly else b"".join(outbox.gather())
        taken = min(step, len(offered))
        sent += offered[:taken]
        outbox.advance(taken)
        assert outbox.size == sum(map(len, chunks)) - len(sent)
    assert sent == b"".join(chunks)
    assert not outbox.begun


@given(st.lists(st.binary(min_size=1, max_size=50), min_size=1, max_size=30), st.integers(0, 60), st.data())
def test_dropping_takes_the_oldest_that_have_not_begun_and_never_the_newest(
    chunks: list[bytes], begun: int, data: st.DataObject
) -> None:
    outbox = Outbox(1 << 20)
    for chunk in chunks:
        outbox.push(chunk)
    total = outbox.size
    outbox.advance(min(begun, total - len(chunks[-1])))
    left = outbox.size
    target = data.draw(st.integers(0, total))
    told: list[bytes | memoryview] = []
    outbox.on_drop = told.append
    dropped = outbox.drop_oldest(target)
    rest = b"".join(outbox.gather())
    assert outbox.size == left - dropped == len(rest)
    assert outbox.dropped_bytes == dropped
    assert rest.endswith(chunks[-1])
    whole = [chunk for chunk in (outbox.chunks or ()) if not isinstance(chunk, memoryview)]
    assert [*told, *whole] == chunks[len(chunks) - len(told) - len(whole) :]
    assert outbox.waiting_bytes <= target or len(whole) == 1
    assert outbox.waiting_chunks == len(whole)


@pytest.mark.parametrize("policy", [Policy.DROP, Policy.DISCONNECT])
def test_what_comes_behind_a_large_message_that_is_being_sent_has_the_whole_bound(policy: Policy) -> None:
    connection = MemoryConnection(bound=100, policy=policy)
    connection.write(b"L" * 1000)
    connection.outbox.advance(1)
    for _ in range(4):
        connection.write(b"x" * 25)
    assert (connection.aborted, connection.outbox.dropped_chunks) == (None, 0)
    connection.write(b"last")
    if policy is Policy.DROP:
        assert connection.taken() == b"L" * 999 + b"x" * 75 + b"last"
    else:
        assert connection.aborted == "slow consumer"


def test_a_file_range_is_read_in_parts_and_released_once(letters: int) -> None:
    outbox = Outbox(1000)
    released: list[str] = []
    outbox.push(b"<")
    outbox.push_file(FileRange(letters, 2, 10, lambda: released.append("first")))
    outbox.push(b">")
    assert outbox.size == 12
    assert outbox.memory_bytes < 2 + 3 * 100, "a file range is not in memory"
    assert outbox.begin() == b"<"
    outbox.advance(1)
    part = outbox.begin()
    assert part == b"cdefghijkl"
    outbox.advance(4)
    assert outbox.begin() == b"ghijkl"
    assert not released
    outbox.advance(6)
    assert released == ["first"]
    assert outbox.begin() == b">"
    outbox.advance(1)
    assert outbox.size == outbox.file_bytes == 0


def test_files_are_let_go_when_dropped_and_when_the_connection_ends(letters: int) -> None:
    outbox = Outbox(1000)
    released: list[int] = []
    for number in range(3):
        outbox.push_file(FileRange(letters, 0, 10, partial(released.append, number)))
    assert outbox.drop_oldest(25) == 10
    assert released == [0]
    outbox.clear()
    assert released == [0, 1, 2]
    assert outbox.size == outbox.memory_bytes == 0


def test_a_session_may_learn_what_was_never_sent() -> None:
    outbox = Outbox(1000)
    left: list[tuple[object, object]] = []
    outbox.on_clear = lambda chunks, begun: left.append(([bytes(chunk) for chunk in chunks], begun))
    outbox.clear()
    assert left == [], "nothing was left"
    whole = b"abcdef"
    outbox.push(whole)
    outbox.push(b"ghi")
    outbox.advance(2)
    outbox.advance(1)
    outbox.clear()
    assert left == [([b"def", b"ghi"], whole)], "so it can be seen how far it came"


def test_a_file_that_ends_early_is_an_error_and_not_silence(letters: int) -> None:
    outbox = Outbox(1000)
    outbox.push_file(FileRange(letters, 20, 10, lambda: None))
    assert outbox.begin() == b"uvwxyz"
    outbox.advance(6)
    with pytest.raises(EOFError):
        outbox.begin()


@attrs.define(eq=False)
class BacklogOwner:
    """Halves what it holds when asked to pay, or gives all."""

    backlogs: Backlogs
    halves: bool
    held: int = 0
    paid: int = 0
    user: str = "anonymous"

    def hold(self, held: int) -> None:
        self.held = held
        self.backlogs.hold(self, held)

    def shed(self) -> int:
        self.paid += 1
        self.held = self.held // 2 if self.halves else 0
        return self.held


def test_the_largest_pays_first_and_only_as_often_as_needed() -> None:
    backlogs = Backlogs(Account("backlogs", 1000))
    small, large = BacklogOwner(backlogs, halves=True), BacklogOwner(backlogs, halves=True)
    small.hold(300)
    large.hold(600)
    assert (small.paid, large.paid) == (0, 0)
    small.hold(450)
    assert (small.paid, large.paid, large.held) == (0, 1, 300)
    assert backlogs.held_bytes == 750
    assert backlogs.times_shed == 1


def test_above_his_share_a_user_pays_himself_with_his_largest() -> None:
    process = Account("process", 1000)
    process.percent_of = lambda user: 50
    backlogs = Backlogs(process.account("backlogs"))
    other = BacklogOwner(backlogs, halves=True, user="ann")
    small, large = (BacklogOwner(backlogs, halves=True, user="mal") for _ in range(2))
    other.hold(450)
    small.hold(150)
    large.hold(300)
    assert (other.paid, small.paid, large.paid) == (0, 0, 0)
    small.hold(240)
    assert (other.paid, small.paid, large.paid, large.held) == (0, 0, 1, 150)
    small.user = "ann"  # what he holds counts for whom it began with
    small.hold(0)
    large.hold(500)
    assert (other.paid, large.paid) == (0, 1)


def test_a_owner_that_pays_nothing_is_forgotten_rather_than_asked_for_ever() -> None:
    backlogs = Backlogs(Account("backlogs", 10))

    class Stubborn(BacklogOwner):
        def shed(self) -> int:
            return self.held

    stubborn = Stubborn(backlogs, halves=True)
    stubborn.hold(11)
    assert backlogs.times_shed == 1


@pytest.mark.parametrize(
    ("policy", "reading", "size", "aborted"),
    [
        (Policy.WAIT, False, 120, None),
        (Policy.DROP, True, 80, None),
        (Policy.DISCONNECT, True, 0, "slow consumer"),
    ],
)
def test_a_policy_applies_above_the_bound(
    policy: Policy, reading: bool, size: int, aborted: str | None
) -> None:
    connection = MemoryConnection(bound=100, policy=policy)
    for _ in range(3):
        connection.write(b"x" * 40)
    assert connection.outbox.size == size
    assert connection.aborted == aborted
    assert connection.reading is reading


@given(st.lists(st.tuples(st.sampled_from([0, 1, 9, 200, 3000]), st.integers(1, 20)), max_size=12), st.data())
def test_packing_keeps_every_byte_its_place(runs: list[tuple[int, int]], data: st.DataObject) -> None:
    pushed = sent = b""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(outboxes, "PACK_CHUNKS", 16)
        outbox = Outbox(1 << 30)
        for size, count in runs:
            for number in range(count):
                chunk = bytes([number + 1]) + bytes(size)
                pushed += chunk
                outbox.push(chunk)
                outbox.pack()
            if data.draw(st.booleans()):
                offered = bytes(outbox.begin())
                taken = data.draw(st.integers(1, len(offered)))
                sent += offered[:taken]
                outbox.advance(taken)
    assert outbox.size == len(pushed) - len(sent)
    assert sent + b"".join(map(bytes, outbox.chunks or ())) == pushed  # type: ignore[arg-type]


def test_many_small_chunks_take_little_more_memory_than_their_bytes() -> None:
    outbox = Outbox(1 << 30)
    for _ in range(200_000):
        outbox.push(b"123456789")
        outbox.pack()
    assert outbox.memory_bytes < 1.1 * outbox.size


def test_files_that_leave_with_the_last_byte_are_let_go(letters: int) -> None:
    outbox = Outbox(1 << 20)
    released: list[int] = []
    outbox.push(b"ab")
    for number in range(2):
        outbox.push_file(FileRange(letters, 0, 10, partial(released.append, number)))
    outbox.advance(22)
    assert released == [0, 1]
    assert (outbox.size, outbox.file_bytes, outbox.memory_bytes, outbox.begun) == (0, 0, 0, None)


def test_a_file_that_is_dropped_counts_no_more(letters: int) -> None:
    outbox = Outbox(1 << 20, Policy.DROP)
    outbox.push_file(FileRange(letters, 0, 10, lambda: None))
    outbox.push(b"abc")
    assert outbox.drop_oldest(5) == 10
    assert (outbox.size, outbox.file_bytes, outbox.memory_bytes) == (3, 0, 3 + CHUNK_OVERHEAD_BYTES)
