import resource

import pytest

from shared.budget import Account
from shared.net.admission import CONNECTION_BYTES, Admission
from shared.net.settings import NetSettings
from tests.support.memory import growth_bytes


def test_the_caps_count_in_all_and_by_address() -> None:
    door = Admission(NetSettings(connections_max=4, connections_per_address_max=2))
    assert [door.admit("192.0.2.1") for _ in range(3)] == [None, None, "connections_per_address_max"]
    assert [door.admit("192.0.2.2") for _ in range(3)] == [None, None, "connections_max"]
    door.leave("192.0.2.1")
    assert door.admit("192.0.2.1") is None
    assert door.connections == 4


def test_addresses_whose_connections_have_closed_are_forgotten() -> None:
    door = Admission(NetSettings())

    def come_and_go() -> None:
        for number in range(5000):
            host = f"192.0.{2 + number // 250}.{number % 250}"
            for _ in range(2):
                assert door.admit(host) is None
            for _ in range(2):
                door.leave(host)

    assert growth_bytes(come_and_go) < 10_000
    assert door.connections == 0


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.9.1", "::1", "::ffff:127.0.0.1", ""])
def test_loopback_has_no_cap_of_its_own(host: str) -> None:
    door = Admission(NetSettings(connections_max=100, connections_per_address_max=1))
    assert [door.admit(host) for _ in range(50)] == [None] * 50


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("2001:db8::1", "2001:db8::ffff:1", True),  # one customer's network
        ("2001:db8::1", "2001:db8:0:1::1", False),
        ("fe80::1%eth0", "fe80::2%eth0", True),
        ("::ffff:192.0.2.1", "192.0.2.1", True),
    ],
)
def test_an_address_is_counted_as_its_owner(one: str, other: str, same: bool) -> None:
    door = Admission(NetSettings(connections_per_address_max=1))
    assert door.admit(one) is None
    assert (door.admit(other) is not None) is same


def test_a_connection_that_there_is_no_memory_for_is_refused_and_counted() -> None:
    process = Account("process", 10_000)
    memory = process.account("connections")
    door = Admission(NetSettings(connections_per_address_max=3), memory)
    assert [door.admit("192.0.2.1") for _ in range(3)] == [None, None, "memory"]
    assert (process.refused + memory.refused, memory.used_bytes) == (1, 2 * CONNECTION_BYTES)
    door.leave("192.0.2.1")
    assert [door.admit("192.0.2.1") for _ in range(2)] == [None, "memory"]
    for _ in range(2):
        door.leave("192.0.2.1")
    assert process.used_bytes == door.connections == 0


@pytest.mark.parametrize(
    ("limit", "connections"), [(256, 128), (999, 500), (1000, 500), (1024, 524), (65536, 65036)]
)
def test_descriptors_are_kept_back_from_connections_fewer_of_a_small_limit(
    limit: int, connections: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda which: (limit, limit))
    assert Admission(NetSettings(connections_max=10**9)).connections_max == connections


def test_the_soft_limit_is_raised_to_the_hard_one(monkeypatch: pytest.MonkeyPatch) -> None:
    limits = [(1024, 4000)]
    monkeypatch.setattr(resource, "getrlimit", lambda which: limits[-1])
    monkeypatch.setattr(resource, "setrlimit", lambda which, new: limits.append(new))
    assert Admission(NetSettings(connections_max=10**9)).connections_max == 3500
