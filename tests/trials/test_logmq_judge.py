"""The trials' own judgement: what keeps the promises passes, and whatever breaks one is found."""

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.trials.logmq_judge import Found, judge, settle
from tests.trials.logmq_ledger import Commit, Delete, Ledger, Repeat, Write, record
from tests.trials.peers import Asked
from tests.trials.tally import Verdict

ONE, TWO, THREE = (record(b"%s of the records" % word) for word in (b"first", b"second", b"third"))
AT_ONCE = 10.0


def write(
    records: bytes, at: int | None = None, *, writer: str = "w", count: int = 1, when: float = AT_ONCE
) -> Write:
    """Acknowledged at `at`, or not answered."""
    answered = None if at is None else when
    batch = writer, 1
    return Write(when - 1, answered, writer=writer, records=records, count=count, offset=at, batch=batch)


def ledger(*operations: Asked, settled: bytes | None = None, mode: str = "always") -> Ledger:
    return Ledger(
        "topic", mode, exists=settled is not None, settled=settled or b"", operations=list(operations)
    )


def found(*records: bytes) -> Found:
    return Found(0, b"".join(records))


def faults(verdict: Verdict) -> str:
    return "\n".join(verdict.faults)


def test_acknowledged_records_at_their_offsets_are_as_promised() -> None:
    verdict = judge(ledger(write(ONE, 0), write(TWO, len(ONE))), found(ONE, TWO))
    assert not verdict.faults
    assert (verdict.kept, verdict.lost, verdict.extra) == (2, 0, 0)


def test_an_acknowledged_record_that_is_gone_is_a_loss() -> None:
    for there in (found(), None):
        verdict = judge(ledger(write(ONE, 0)), there)
        assert "1 acknowledged records lost" in faults(verdict)
        assert verdict.lost == 1


def test_an_unanswered_write_is_there_or_not() -> None:
    page = ledger(write(ONE, 0), write(TWO))
    assert not judge(page, found(ONE)).faults
    verdict = judge(page, found(ONE, TWO))
    assert not verdict.faults
    assert verdict.extra == 1


@pytest.mark.parametrize(
    ("there", "what"),
    [
        (found(ONE, TWO[:-3]), "a part of a write"),
        (found(ONE, TWO[:-1] + b"?"), "a part of a write"),
        (found(ONE, THREE), "after a hole"),
        (found(ONE, THREE, TWO), "after a hole"),
        (found(ONE, ONE), "a second time"),
        (found(ONE, record(b"never sent")), "nobody wrote"),
        (found(ONE, b"\0"), "nobody wrote"),
        (found(TWO, ONE), "after a hole"),
        (Found(5, ONE), "begins at 5"),
    ],
)
def test_whatever_else_is_there_is_found(there: Found, what: str) -> None:
    page = ledger(write(ONE, 0), write(TWO), write(THREE))
    assert what in faults(judge(page, there))


def test_a_refused_batch_may_stand_where_it_was_sent_again() -> None:
    refused = write(ONE)
    refused.answered, refused.refused = AT_ONCE, "ERR STORAGE"
    again = Repeat(AT_ONCE, of=refused)
    page = ledger(refused, write(TWO, 0), again, write(THREE))
    for order in ((TWO,), (TWO, ONE), (TWO, ONE, THREE)):
        assert not judge(page, found(*order)).faults
    assert "acknowledged at 0, found at" in faults(judge(page, found(ONE, TWO)))
    again.answered = AT_ONCE
    page.written_again(again, len(TWO))
    assert "1 acknowledged records lost" in faults(judge(page, found(TWO)))
    assert not judge(page, found(TWO, ONE, THREE)).faults


def test_a_batch_that_was_refused_and_sent_again_as_the_power_went_may_stand_at_either_place() -> None:
    refused = write(ONE)
    refused.answered, refused.refused = AT_ONCE, "ERR STORAGE"
    page = ledger(refused, write(TWO), Repeat(AT_ONCE, of=refused), write(THREE))
    for order in ((ONE, TWO, THREE), (TWO, ONE, THREE), (TWO,), (ONE, TWO)):
        assert not judge(page, found(*order)).faults
    for order in ((ONE, TWO, ONE), (ONE, THREE), (TWO, THREE, ONE)):
        assert judge(page, found(*order)).faults


def test_of_two_empty_messages_the_acknowledged_one_stands_where_it_was_said_and_not_the_refused() -> None:
    empty = record(b"")
    refused = [write(empty), write(THREE)]
    for one in refused:
        one.answered, one.refused = AT_ONCE, "ERR STORAGE"
    page = ledger(*refused, write(empty, 0), write(ONE, len(empty)))
    assert not judge(page, found(empty, ONE)).faults
    page = ledger(*refused, write(empty), write(ONE))
    assert not judge(page, found(empty, ONE)).faults


def test_a_refused_delete_took_place_or_it_did_not() -> None:
    def refused() -> Delete:
        return Delete(AT_ONCE, AT_ONCE, "ERR STORAGE")

    for there in (found(ONE), None):
        assert not judge(ledger(write(ONE, 0), refused()), there).faults
    page = ledger(write(ONE, 0), refused(), write(TWO, len(ONE)))
    assert judge(page, found(TWO)).faults
    assert not judge(page, found(ONE, TWO)).faults
    assert not judge(ledger(write(ONE, 0), refused(), write(TWO, 0)), found(TWO)).faults


def test_half_a_batch_is_no_batch() -> None:
    page = ledger(write(ONE + TWO, count=2))
    assert not judge(page, found(ONE, TWO)).faults
    assert "a part of a write" in faults(judge(page, found(ONE)))


def test_a_record_at_another_offset_than_was_said_is_found() -> None:
    page = ledger(write(ONE, writer="v"), write(TWO, 0))
    assert "acknowledged at 0, found at" in faults(judge(page, found(ONE, TWO)))


def test_writers_may_follow_each_other_in_any_order_but_each_in_its_own() -> None:
    page = ledger(write(ONE, writer="v"), write(TWO), write(THREE, writer="v"))
    for order in ((ONE, TWO, THREE), (TWO, ONE, THREE), (ONE, THREE, TWO), (ONE, THREE), (TWO,)):
        assert not judge(page, found(*order)).faults
    assert judge(page, found(THREE, ONE)).faults


def test_what_was_verified_once_stays() -> None:
    page = ledger(write(TWO), settled=ONE)
    assert not judge(page, found(ONE, TWO)).faults
    assert "others now" in faults(judge(page, found(b"\1" + ONE[1:])))
    assert "gone" in faults(judge(page, found(ONE[:-1])))
    assert "verified before" in faults(judge(page, None))
    assert "verified before" in faults(judge(page, None, 0))
    assert judge(page, found(), 0).faults


def test_where_nothing_is_promised_what_is_left_still_begins_as_it_was() -> None:
    page = ledger(write(THREE, len(ONE + TWO)), settled=ONE + TWO)
    for kept in (found(), found(ONE), found(ONE, TWO), found(ONE, TWO, THREE)):
        assert not judge(page, kept, -math.inf).faults
    for changed in (found(TWO), found(ONE[:-1]), found(ONE, TWO[:5]), found(ONE, THREE)):
        assert judge(page, changed, -math.inf).faults


def test_a_refused_write_is_there_or_not() -> None:
    refused = write(ONE)
    refused.answered, refused.refused = AT_ONCE, "ERR STORAGE"
    page = ledger(refused, write(TWO))
    assert not judge(page, found(TWO)).faults
    assert not judge(page, found(ONE, TWO)).faults
    assert judge(page, found(TWO, ONE)).faults
    assert judge(ledger(refused, write(TWO, 0)), found(TWO)).lost == 0


def test_a_deleted_topic_stays_deleted() -> None:
    page = ledger(write(ONE, 0), Delete(9, AT_ONCE))
    assert judge(page, None).deletes == 1
    assert not judge(page, None).faults
    assert "deleted or never written" in faults(judge(page, found(ONE)))
    assert "deleted or never written" in faults(judge(page, found()))


def test_an_unanswered_delete_came_to_pass_or_did_not() -> None:
    page = ledger(write(ONE, 0), Delete(9), write(TWO))
    for there in (None, found(ONE), found(TWO)):
        assert not judge(page, there).faults
    assert judge(page, found(ONE, TWO)).faults


def test_a_topic_made_again_holds_nothing_of_the_one_before() -> None:
    page = ledger(write(ONE, 0), Delete(9, AT_ONCE), write(TWO, 0))
    assert not judge(page, found(TWO)).faults
    assert judge(page, found(ONE, TWO)).faults
    assert judge(page, found(ONE)).faults
    assert judge(page, None).faults


def test_a_topic_that_nobody_wrote_is_not_there() -> None:
    assert not judge(ledger(), None).faults
    assert judge(ledger(), found()).faults


def test_groups_offsets_are_the_last_acknowledged_or_a_later_one_and_end_with_the_topic() -> None:
    def at(*values: tuple[int, bool]) -> list[Asked]:
        return [Commit(1, 2 if done else None, group="g", value=value) for value, done in values]

    def fits(page: Ledger, value: int | None, data: bytes = ONE + TWO) -> bool:
        page.groups.add("g")
        commits = {} if value is None else {"g": value}
        return not judge(page, Found(0, data, commits)).faults

    page = ledger(*at((0, True), (len(ONE), True), (0, False)), settled=ONE + TWO)
    assert fits(page, len(ONE))
    assert fits(page, 0)
    assert not fits(page, None)
    assert not fits(page, 7)
    assert not fits(ledger(*at((0, True), (len(ONE), True)), settled=ONE + TWO), 0)
    remade = ledger(*at((0, True)), Delete(9, AT_ONCE), write(ONE, 0), settled=ONE + TWO)
    assert fits(remade, None, ONE)
    assert not fits(remade, 0, ONE)


def test_a_mode_that_may_lose_a_suffix_may_lose_nothing_else() -> None:
    page = ledger(write(ONE, 0, when=1), write(TWO, len(ONE), when=2), write(THREE, len(ONE + TWO), when=3))
    assert not judge(page, found(ONE, TWO), 2).faults
    assert not judge(page, found(ONE), 1).faults
    assert not judge(page, None, 0).faults
    verdict = judge(page, found(ONE), 1)
    assert (verdict.kept, verdict.lost, verdict.oldest_lost, verdict.newest_kept) == (1, 2, 2, 0)
    assert "1 acknowledged records lost" in faults(judge(page, found(ONE), 2))
    assert "after a hole" in faults(judge(page, found(ONE, THREE), 1))
    assert "a part of a write" in faults(judge(page, found(ONE, TWO[:9]), 0))


def test_retention_may_drop_the_front_so_long_as_enough_is_kept() -> None:
    def page() -> Ledger:
        one = ledger(write(TWO, len(ONE)), write(THREE, len(ONE + TWO)), settled=ONE)
        one.kept_bytes = len(THREE)
        return one

    for first, left in ((0, (ONE, TWO, THREE)), (len(ONE), (TWO, THREE)), (len(ONE + TWO), (THREE,))):
        verdict = judge(page(), Found(first, b"".join(left)))
        assert not verdict.faults
        assert verdict.kept == 2
    assert "begins at" in faults(judge(page(), Found(len(ONE + TWO + THREE), b"")))
    assert judge(page(), Found(len(ONE), TWO)).faults
    assert judge(page(), Found(len(ONE), THREE)).faults
    assert (
        judge(page(), Found(4, (ONE + TWO + THREE)[4:])).faults == []
    )  # where marks end is `plain`'s to check
    again = page()
    settle(again, Found(len(ONE), TWO + THREE), 0)
    assert (again.first, again.end) == (len(ONE), len(ONE + TWO + THREE))
    assert "begins at 0" in faults(judge(again, found(ONE, TWO, THREE)))


def test_what_a_reader_was_shown_stays() -> None:
    page = ledger(write(ONE), write(TWO))
    page.read += ONE
    assert not judge(page, found(ONE)).faults
    assert "a reader was shown" in faults(judge(page, found()))
    assert not judge(page, found(), -math.inf).faults
    assert "a reader was shown" in faults(judge(ledger_read(TWO), found(ONE), -math.inf))


def ledger_read(shown: bytes) -> Ledger:
    page = ledger(write(ONE), write(TWO))
    page.read += shown
    return page


def test_only_the_surviving_topics_batches_are_sent_again() -> None:
    old, new = write(ONE, 0), write(TWO)
    for there, expected in ((found(ONE), [old]), (None, [new]), (found(TWO), [new])):
        page = ledger(old, Delete(9), new)
        verdict = judge(page, there)
        assert settle(page, there, verdict.life) == expected
        assert page.exists == (there is not None)
        assert page.settled == (there.data if there else b"")
        assert not page.operations


@given(st.integers(0, 2**32))
def test_whatever_a_right_broker_leaves_passes_and_a_bit_of_damage_does_not(seed: int) -> None:
    source = random.Random(seed)
    page = ledger(settled=ONE if source.random() < 0.5 else None)
    states: list[bytes | None] = [page.settled if page.exists else None]
    answered = 0
    for number in range(source.randrange(12)):
        state = states[-1]
        if state is not None and source.random() < 0.2:
            page.operations.append(Delete(1))
            states.append(None)
        else:
            records = record(b"%d of %d" % (number, seed))
            page.operations.append(Write(1, writer="w", records=records, offset=len(state or b"")))
            states.append((state or b"") + records)
    if page.operations:
        answered = source.randint(0, len(page.operations))
        for operation in page.operations[:answered]:
            operation.answered = 2
    for left in states[answered:]:
        assert not judge(page, None if left is None else found(left)).faults
    last = states[-1]
    if last and answered == len(page.operations):
        at = source.randrange(len(last))
        damaged = last[:at] + bytes([last[at] ^ 1 << source.randrange(8)]) + last[at + 1 :]
        assert judge(page, found(damaged)).faults
        assert judge(page, found(last[:-1])).faults
