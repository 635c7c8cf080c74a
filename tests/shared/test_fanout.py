"""Every receiver gets what is for it, in order, whatever other receivers get the same."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared import fanout
from shared.fanout import Routes, limit_slow_receiver
from shared.net.outbox import Policy
from tests.support.connections import MemoryConnection

SETS = st.sets(st.sampled_from("abcd"), max_size=4).map(lambda members: tuple(sorted(members)))


@given(st.lists(st.lists(st.one_of(SETS, st.none()), max_size=10), max_size=4), st.integers(0, 9))
def test_each_gets_its_own_in_order_however_the_sets_overlap(
    passes: list[list[tuple[str, ...] | None]], members_max: int
) -> None:
    due: dict[str, bytes] = dict.fromkeys("abcd", b"")
    got = dict(due)
    routes: Routes[str] = Routes()
    number = 0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fanout, "ROUTES_MEMBERS_MAX", members_max)
        for one_pass in passes:
            for members in one_pass:
                if members is None:  # a subscription changes
                    routes.forget()
                    continue
                route = routes.of(members)
                assert (route.fan, route is routes.nowhere) == (len(members), not members)
                number += 1
                piece = b"%d," % number
                routes.put(route, piece, 1)
                for bundle in route.bundles:
                    routes.put_all(bundle, (piece, piece), 2)
                for member in members:
                    due[member] += piece * 3
            for receivers, joined, messages in routes.gathered():
                assert messages == joined.count(b",")
                for member in receivers:
                    got[member] += joined
            assert not list(routes.gathered())
    assert got == due


def test_no_more_is_remembered_than_that(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fanout, "ROUTES_MAX", 4)
    routes: Routes[str] = Routes()
    for number in range(20):
        routes.remember(b"%d" % number, routes.nowhere)
        assert len(routes.known) <= 4


def test_a_receiver_that_does_not_read_loses_its_oldest_and_somebody_is_told() -> None:
    connection = MemoryConnection()
    lost: list[bytes | memoryview] = []
    limit_slow_receiver(connection, 10, "drop", lost.append)
    for text in (b"first", b"second", b"third"):
        connection.write(text)
    assert (connection.taken(), lost) == (b"third", [b"first", b"second"])
    limit_slow_receiver(connection, 10, "disconnect", lost.append)
    assert connection.outbox.policy is Policy.DISCONNECT
