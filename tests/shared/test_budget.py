"""What may be taken from an account, and who refuses it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.budget import Account, OverBudget


def test_what_is_taken_counts_in_every_account_that_it_is_part_of() -> None:
    process = Account("process", 100)
    names = process.account("pubsub").account("names")
    names.take(60)
    assert (names.used_bytes, process.account("pubsub").used_bytes, process.used_bytes) == (60, 60, 60)
    names.give(20)
    assert process.used_bytes == 40


def test_the_account_that_is_full_refuses_and_nothing_is_taken() -> None:
    process = Account("process", 100)
    one, other = process.account("one"), process.account("other", 30)
    one.take(80)
    with pytest.raises(OverBudget, match="other may hold 30 bytes, and 31 more do not fit"):
        other.take(31)
    with pytest.raises(OverBudget, match="process may hold 100 bytes"):
        other.take(25)
    assert other.used_bytes == 0
    assert process.used_bytes == 80
    assert (process.refused, one.refused, other.refused) == (1, 0, 1)
    assert not other.over
    other.charge(31)
    assert other.over
    other.give(31)
    assert other.fits(20)
    assert not other.fits(21)


def test_a_protocol_that_begins_anew_has_a_new_account() -> None:
    process = Account("process", 100)
    names = process.account("pubsub").account("names")
    names.take(60)
    process.account("pubsub").close()
    assert process.used_bytes == process.account("pubsub").used_bytes == 0
    names.give(60)  # late, by something that did not know
    assert process.used_bytes == 0


def test_what_is_durable_fits_whatever_else_is_there_and_then_nothing_else_does() -> None:
    process = Account("process", 10)
    process.account("queues").charge(25)
    assert process.used_bytes == 25
    assert not process.account("names").fits(1)


def test_each_account_with_a_name_is_in_the_metrics() -> None:
    process = Account("process", 100)
    process.account("names", 40).account("long").take(7)
    values = {(sample.name, dict(sample.labels)["account"]): sample.value for sample in process.samples()}
    assert values == {
        ("budget_bytes", "process"): 7,
        ("budget_bytes_max", "process"): 100,
        ("budget_refused_total", "process"): 0,
        ("budget_bytes", "names"): 7,
        ("budget_bytes_max", "names"): 40,
        ("budget_refused_total", "names"): 0,
        ("budget_bytes", "names/long"): 7,
        ("budget_bytes_max", "names/long"): 40,
        ("budget_refused_total", "names/long"): 0,
    }


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 40), st.booleans())))
def test_no_account_takes_more_than_its_limit_and_all_adds_up(
    steps: list[tuple[int, int, bool]],
) -> None:
    process = Account("process", 100)
    accounts = [process.account("a", 60), process.account("b", 60)]
    accounts += [account.account("client", 30) for account in accounts]
    held = [0] * 4
    for which, size, gives in steps:
        if gives:
            size = min(size, held[which])
            accounts[which].give(size)
            held[which] -= size
        else:
            fits = accounts[which].fits(size)
            try:
                accounts[which].take(size)
            except OverBudget:
                assert not fits
            else:
                assert fits
                held[which] += size
        assert process.used_bytes == sum(held) <= 100
        assert [account.used_bytes for account in accounts] == [
            held[0] + held[2],
            held[1] + held[3],
            held[2],
            held[3],
        ]
        assert all(account.used_bytes <= account.limit_bytes for account in accounts)
