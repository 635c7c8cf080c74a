"""What a round is to do, decided from values alone."""

from collections.abc import Sequence

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from brokers.pipeline.archiving import plan
from brokers.pipeline.archiving.manifest import (
    ArchivedSpan,
    ByteRange,
    LogState,
    Manifest,
    NotContinuous,
    Part,
    unpack,
)
from brokers.pipeline.archiving.parquet import Written
from brokers.pipeline.archiving.plan import Overtaken, RoundTarget
from brokers.pipeline.source.ranges import LogRange

HALF = LogState("orders@x#1", "orders@x", "orders", "7", 0, 100, records=10)


def found_log(first: int, end: int, id_: int = 7) -> LogRange:
    return LogRange("x", "orders", id_, first, end)


def targets(
    there: LogRange, known: LogState | None = HALF, *, name: str = HALF.name, allow_loss: bool = False
) -> list[RoundTarget]:
    now = Manifest(logs={known.key: known} if known is not None else {})
    return plan.targets(
        now, [(name, there)], lambda log, other: int(log.seen) != other.log_id, allow_loss=allow_loss
    )


def anywhere(whole: LogRange, offset: int) -> int:
    return offset


def test_a_new_log_is_archived_from_its_first_record_on() -> None:
    (target,) = targets(found_log(30, 50), known=None)
    assert (target.identity, target.range, target.gap) == ("orders@x#1", ByteRange(30, 50), None)
    assert targets(found_log(0, 0), known=None) == []


def test_a_known_log_is_archived_from_where_it_was_left() -> None:
    (target,) = targets(found_log(0, 150))
    assert (target.identity, target.range, target.event) == (HALF.identity, ByteRange(100, 150), "")
    assert targets(found_log(0, 100)) == []
    (target,) = targets(found_log(100, 150))  # retention has taken just what is archived
    assert (target.range, target.gap, target.loss) == (ByteRange(100, 150), None, False)


def test_a_log_made_again_is_another_one_even_where_it_is_longer() -> None:
    (target,) = targets(found_log(0, 150, 8))
    assert (target.identity, target.range, target.loss) == ("orders@x#2", ByteRange(0, 150), False)
    assert "made again" in target.event
    odd = attrs.evolve(HALF, identity="a#b@x#1", name="a#b@x")
    (target,) = targets(found_log(0, 150, 8), odd, name=odd.name)
    assert target.identity == "a#b@x#2"


@pytest.mark.parametrize("there", [found_log(120, 150), found_log(0, 90)], ids=["overtaken", "shorter"])
def test_a_loss_ends_it_unless_it_is_allowed(there: LogRange) -> None:
    with pytest.raises(Overtaken, match=r"orders: .*--allow-loss"):
        targets(there)
    (target,) = targets(there, allow_loss=True)
    assert target.loss


def test_what_was_lost_is_a_gap_before_what_is_there_or_another_log() -> None:
    (overtaken,) = targets(found_log(120, 150), allow_loss=True)
    assert (overtaken.gap, overtaken.range) == (ByteRange(100, 120), ByteRange(120, 150))
    (shorter,) = targets(found_log(0, 90), allow_loss=True)
    assert (shorter.identity, shorter.range) == ("orders@x#2", ByteRange(90, 90))


def test_gaps_of_a_log_are_all_kept_and_one_behind_the_other_is_one() -> None:
    known = attrs.evolve(HALF, gaps=(ByteRange(10, 20),), seen="6")
    (target,) = targets(found_log(120, 150), attrs.evolve(known, seen="7"), allow_loss=True)
    made = Written([part(130, 150)], [ByteRange(120, 130)])
    (found,) = plan.spans([target], [(target.identity, made)])
    assert found.range == ByteRange(100, 150)
    after = Manifest(logs={known.key: known}).advance([found], 0).logs[known.key]
    assert (after.gaps, after.end, after.seen) == ((ByteRange(10, 20), ByteRange(100, 130)), 150, "7")


@given(
    sizes=st.lists(st.integers(1, 1000), min_size=1, max_size=8),
    bytes_max=st.integers(1, 3000),
    tasks=st.integers(1, 5),
)
def test_a_round_is_limited_fair_and_cut_into_all_of_it(sizes: list[int], bytes_max: int, tasks: int) -> None:
    wanted = [
        RoundTarget(f"{number}#1", str(number), LogRange("x", str(number), 7, 0, size), ByteRange(0, size))
        for number, size in enumerate(sizes)
    ]
    limited = plan.limited(wanted, bytes_max, anywhere)
    taken = [target.range.end for target in limited]
    assert sum(taken) <= max(bytes_max, len(sizes))  # of each something
    assert all(0 < each <= size for each, size in zip(taken, sizes, strict=True))
    if sum(sizes) <= bytes_max:
        assert taken == sizes
    cut_off = [each for each, size in zip(taken, sizes, strict=True) if each < size]
    assert max(taken) - min(cut_off, default=max(taken)) <= len(sizes)  # nobody else had much more
    shares = plan.shares(limited, tasks, "t", anywhere, gaps_allowed=False, bytes_least=1)
    pieces = [work for share in shares for _, work in share]
    assert not any(work.gaps_allowed for work in pieces)
    assert len({(work.identity, work.range) for work in pieces}) == len(pieces)
    written = [(work.identity, Written([], [work.range])) for work in pieces]
    for span, target in zip(plan.spans(limited, written), limited, strict=True):
        assert span.range == target.range
        assert span.gaps[0].start == target.range.start
        assert span.gaps[-1].end == target.range.end
        assert all(one.end == two.start for one, two in zip(span.gaps, span.gaps[1:], strict=False))
    assert len(shares) <= tasks + len(sizes)


def test_a_round_ends_at_the_first_place_within_a_log_whatever_is_said_of_others() -> None:
    said = {10: 0, 20: 99, 30: 25}
    (found,) = plan.limited(targets(found_log(0, 60), known=None), 10, lambda span, offset: said[offset])
    assert found.range == ByteRange(0, 25)


def part(start: int, end: int) -> Part:
    return Part(HALF.key, "orders", "2026-01-31", start, end, (end - start) // 10, 10, "t")


def span(start: int, end: int, *parts: Part, gaps: Sequence[ByteRange] = ()) -> ArchivedSpan:
    return ArchivedSpan(HALF.identity, HALF.name, HALF.topic, "7", ByteRange(start, end), parts, gaps)


@pytest.mark.parametrize(
    "wrong",
    [
        span(100, 120, part(100, 110)),
        span(100, 120, part(110, 120)),
        span(100, 120, part(100, 110), part(100, 110), part(110, 120)),
        span(100, 130, part(100, 110), part(120, 130)),
        span(90, 110, part(90, 110)),
        span(90, 110, part(100, 110)),
        span(100, 100, part(100, 100)),
        span(110, 120, part(110, 120)),
        span(100, 110, part(100, 110), gaps=[ByteRange(100, 110)]),
        span(100, 110, attrs.evolve(part(100, 110), key="0" * 12)),
    ],
)
def test_a_commit_that_does_not_tile_the_log_is_refused(wrong: ArchivedSpan) -> None:
    with pytest.raises(NotContinuous):
        Manifest(logs={HALF.key: HALF}).advance([wrong], 0)


def test_a_manifest_comes_back_as_it_was_and_not_at_all_when_a_bit_differs() -> None:
    log = attrs.evolve(HALF, gaps=(ByteRange(3, 9),))
    now = Manifest(logs={log.key: log}, origin="servers").advance([span(100, 110, part(100, 110))], 5)
    data = now.pack()
    assert unpack(data) == now
    for at in range(0, len(data), 7):
        assert unpack(data[:at] + bytes([data[at] ^ 4]) + data[at + 1 :]) is None
        assert unpack(data[:at]) is None
