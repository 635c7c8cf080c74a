"""Passwords are checked beside the loop, in turns by address, and slowly after failures."""

import math

import attrs
import pytest
import trio
import trio.lowlevel
import trio.testing
from trio.testing import MockClock

from brokers.access.logins import (
    SLOW_SECONDS,
    WAITING_ADDRESS_MAX,
    WAITING_SLOW_MAX,
    Logins,
)
from shared.access import Access, Rule, Secret, User
from shared.net import strangers
from shared.net.strangers import FAILURES_MAX, FAILURES_SECONDS, Strangers

ANN = Secret(b"ann", b"right")


@attrs.define(eq=False)
class Hashing:
    """A password fits where it is the key itself. A check takes no time, or waits for `go`."""

    checked: list[bytes] = attrs.field(factory=list)
    under_way_max: int = 0
    _under_way: int = 0
    go: trio.Event | None = None
    seconds: float = 0

    async def fits(self, secret: Secret, password: bytes) -> bool:
        self._under_way += 1
        self.under_way_max = max(self.under_way_max, self._under_way)
        if self.seconds:
            await trio.sleep(self.seconds)
        if self.go is not None:
            await self.go.wait()
        await trio.lowlevel.checkpoint()
        self.checked.append(password)
        self._under_way -= 1
        return secret.has_key(password)


@attrs.define(eq=False)
class Bench:
    access: Access
    hashing: Hashing
    strangers: Strangers
    logins: Logins

    def ask(self, user: str, password: bytes, host: str = "192.0.2.1") -> list[bool]:
        """What is answered, now or later."""
        found: list[bool] = []
        self.access.guard("logmq").log_in(user, password, f"{host}:1", found.append)
        return found

    async def answer(self, user: str, password: bytes, host: str = "192.0.2.1") -> bool:
        found: list[bool] = []
        answered = trio.Event()

        def done(fits: bool) -> None:
            found.append(fits)
            answered.set()

        self.access.guard("logmq").log_in(user, password, f"{host}:1", done)
        await answered.wait()
        return found[0]


@pytest.fixture
async def bench(nursery: trio.Nursery) -> Bench:
    access = Access({"ann": User("ann", password=ANN), "cert": User("cert", certificate=True)})
    hashing = Hashing()
    pace = Strangers()
    found = Bench(access, hashing, pace, Logins(access, pace, hashing.fits))
    await nursery.start(found.logins.run)
    return found


async def test_the_right_password_fits_and_a_wrong_one_does_not(bench: Bench) -> None:
    assert await bench.answer("ann", b"right")
    assert not await bench.answer("ann", b"wrong")
    assert bench.access.guard("logmq").logins_failed == 1


@pytest.mark.parametrize("user", ["nobody", "cert", "anonymous", ""])
async def test_an_unknown_name_costs_what_a_wrong_password_costs(bench: Bench, user: str) -> None:
    assert not await bench.answer(user, b"right")
    assert bench.hashing.checked == [b"right"]


async def test_who_logged_in_once_is_known_until_the_users_change(bench: Bench) -> None:
    assert await bench.answer("ann", b"right")
    assert bench.ask("ann", b"right") == [True]
    bench.access.replace({"ann": User("ann", password=Secret(b"ann", b"other"))})
    assert not await bench.answer("ann", b"right")
    assert await bench.answer("ann", b"other")


async def test_users_that_change_while_a_password_is_checked_count(bench: Bench) -> None:
    bench.hashing.go = trio.Event()
    found = bench.ask("ann", b"right")
    await trio.testing.wait_all_tasks_blocked()
    bench.access.replace({"ann": User("ann", password=Secret(b"ann", b"other"))})
    bench.hashing.go.set()
    await trio.testing.wait_all_tasks_blocked()
    assert found == [False]


async def test_rules_that_change_while_a_password_is_checked_refuse_nobody(bench: Bench) -> None:
    bench.hashing.go = trio.Event()
    found = bench.ask("ann", b"right")
    await trio.testing.wait_all_tasks_blocked()
    bench.access.replace({"ann": User("ann", (Rule.parse("*:read:*"),), password=ANN)})
    bench.hashing.go.set()
    await trio.testing.wait_all_tasks_blocked()
    assert found == [True]


async def test_after_failures_an_address_waits_for_each_answer_and_no_other_does(
    bench: Bench, autojump_clock: MockClock
) -> None:
    assert await bench.answer("ann", b"right")
    for _ in range(FAILURES_MAX):
        assert not await bench.answer("ann", b"wrong")
    before = trio.current_time()
    assert not await bench.answer("ann", b"wrong")
    assert await bench.answer("ann", b"right")
    assert trio.current_time() - before >= 2 * SLOW_SECONDS
    before = trio.current_time()
    assert await bench.answer("ann", b"right", "192.0.2.2")
    assert trio.current_time() - before < SLOW_SECONDS
    await trio.sleep(FAILURES_SECONDS)
    before = trio.current_time()
    assert await bench.answer("ann", b"right")
    assert trio.current_time() - before < SLOW_SECONDS


async def test_addresses_take_turns(bench: Bench) -> None:
    bench.hashing.go = trio.Event()
    for n in range(20):
        bench.ask("ann", b"guess %d" % n, "192.0.2.1")
    found = bench.ask("ann", b"right", "192.0.2.2")
    await trio.testing.wait_all_tasks_blocked()
    bench.hashing.go.set()
    while not found:
        await trio.lowlevel.checkpoint()
    assert found == [True]
    assert len(bench.hashing.checked) < 10


async def test_a_login_of_very_many_connections_is_checked_once(bench: Bench) -> None:
    bench.hashing.go = trio.Event()
    wrong = bench.ask("ann", b"guess")
    found = [bench.ask("ann", b"right") for _ in range(WAITING_ADDRESS_MAX + 1000)]
    bench.hashing.go.set()
    while not all([wrong, *found]):
        await trio.lowlevel.checkpoint()
    assert wrong == [False]
    assert found == [[True]] * len(found)
    assert bench.hashing.checked == [b"guess", b"right"]
    for n in range(WAITING_ADDRESS_MAX):  # none of them is counted any more
        assert bench.ask("ann", b"guess %d" % n) == []


async def test_logins_that_are_looked_at_have_a_bound_and_others_are_refused_late(
    bench: Bench, autojump_clock: MockClock
) -> None:
    bench.hashing.go = trio.Event()
    for n in range(WAITING_ADDRESS_MAX):
        bench.ask("ann", b"guess %d" % n)
    found = [bench.ask("ann", b"right") for _ in range(100)]
    elsewhere = bench.ask("ann", b"right", "192.0.2.2")
    await trio.sleep(SLOW_SECONDS - 0.01)
    assert not any(found)
    await trio.sleep(0.02)
    assert found == [[False]] * len(found)
    bench.hashing.go.set()
    await trio.testing.wait_all_tasks_blocked()
    assert elsewhere == [True]


async def test_one_thread_checks_the_passwords_of_all_addresses_that_fail_often(
    bench: Bench, autojump_clock: MockClock
) -> None:
    hosts = [f"192.0.2.{number}" for number in range(1, 9)]
    for host in hosts:
        for n in range(FAILURES_MAX):
            await bench.answer("ann", b"guess %d" % n, host)
    bench.hashing.seconds, bench.hashing.under_way_max = 0.05, 0
    found = [bench.ask("ann", b"another", host) for host in hosts]
    await trio.sleep(30)
    assert found == [[False]] * len(hosts)
    assert bench.hashing.under_way_max == 1


@pytest.mark.parametrize(("served_at", "least", "most"), [(math.inf, 8, 13), (-math.inf, 60, 100)])
async def test_addresses_that_fail_often_have_little_of_a_processor_while_others_are_served(
    bench: Bench, autojump_clock: MockClock, served_at: float, least: int, most: int
) -> None:
    for n in range(FAILURES_MAX):
        await bench.answer("ann", b"guess %d" % n)
    bench.hashing.seconds, bench.strangers.served_at = 0.05, served_at
    before = len(bench.hashing.checked)
    for n in range(WAITING_SLOW_MAX):
        bench.ask("ann", b"another %d" % n)
    await trio.sleep(SLOW_SECONDS)
    began = trio.current_time()
    assert await bench.answer("ann", b"right", "192.0.2.2")
    assert trio.current_time() - began < 0.11
    await trio.sleep(4)
    assert least <= len(bench.hashing.checked) - before <= most


async def test_addresses_whose_failures_are_kept_have_a_bound(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, autojump_clock: MockClock
) -> None:
    monkeypatch.setattr(strangers, "ADDRESSES_MAX", 2)
    for host in ("192.0.2.1", "192.0.2.2", "192.0.2.3"):
        for _ in range(FAILURES_MAX):
            await bench.answer("ann", b"wrong", host)
    before = trio.current_time()
    await bench.answer("ann", b"right", "192.0.2.1")
    assert trio.current_time() - before < SLOW_SECONDS
    await bench.answer("ann", b"right", "192.0.2.3")
    assert trio.current_time() - before >= SLOW_SECONDS


async def test_an_ipv6_network_is_one_address(bench: Bench, autojump_clock: MockClock) -> None:
    for n in range(FAILURES_MAX):
        await bench.answer("ann", b"wrong", f"[2001:db8::{n + 1}]")
    before = trio.current_time()
    await bench.answer("ann", b"right", "[2001:db8::ffff]")
    assert trio.current_time() - before >= SLOW_SECONDS


async def test_a_password_of_any_length_is_not_hashed(bench: Bench) -> None:
    assert bench.ask("ann", b"x" * 1025) == [False]
    assert bench.hashing.checked == []
