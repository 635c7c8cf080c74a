"""Who has not logged in has a share of the loop, in small slices; what is over waits in the kernel."""

import math

import pytest
import trio
import trio.testing
from trio.testing import MockClock

from shared.access import Access
from shared.net import strangers
from shared.net.connection import Connection
from shared.net.session import SessionBase
from shared.net.strangers import (
    ADDRESSES_MAX,
    FAILING_MAX,
    FAILURES_MAX,
    FAILURES_SECONDS,
    FLOOD_FAILURES,
    FLOOD_SHARE,
    SHARE,
    SLICE_SECONDS,
    Strangers,
)
from tests.shared.net.served import Serve, read_all, unencrypted


class Worker:
    """Strangers that have always something to do, in steps of a tenth of a slice."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.spent = 0.0
        self.slices: list[float] = []
        monkeypatch.setattr(strangers, "thread_time", lambda: self.spent)

    async def work(self, pace: Strangers, seconds: float, *, others: bool) -> float:
        """The share of so many seconds that they got."""
        begun, before = trio.current_time(), self.spent
        while trio.current_time() < begun + seconds:
            if others:
                pace.served_at = trio.current_time()
            async with pace:
                at = self.spent
                while not pace.is_over():
                    self.spent += SLICE_SECONDS / 10
                self.slices.append(self.spent - at)
            if not others:
                await trio.sleep(self.slices[-1])  # what is done takes its time
        return (self.spent - before) / seconds


def flooded() -> Strangers:
    """As many have failed just now as make a flood."""
    pace = Strangers()
    for _ in range(FLOOD_FAILURES):
        pace.count_failure()
    return pace


async def test_while_others_are_served_strangers_have_a_share_in_pieces(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: MockClock
) -> None:
    worker, pace = Worker(monkeypatch), Strangers()
    assert 0 < await worker.work(pace, 2, others=True) < SHARE
    assert max(worker.slices) <= 1.2 * SLICE_SECONDS


async def test_a_flood_of_failures_makes_it_a_small_share_in_shorter_slices(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: MockClock
) -> None:
    worker, pace = Worker(monkeypatch), flooded()
    assert 0 < await worker.work(pace, 2, others=True) < 1.1 * FLOOD_SHARE
    await trio.sleep(10)
    shorter = max(worker.slices)
    assert await worker.work(pace, 2, others=True) > 2 * FLOOD_SHARE, "it is over"
    assert shorter < max(worker.slices)


async def test_strangers_alone_have_all_of_the_loop(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: MockClock
) -> None:
    worker, pace = Worker(monkeypatch), flooded()
    assert await worker.work(pace, 1, others=False) == pytest.approx(1, abs=0.01)


async def test_what_is_paid_before_is_waited_for_after(autojump_clock: MockClock) -> None:
    pace = Strangers()
    pace.served_at = math.inf
    await pace.turn(1.0)
    before = trio.current_time()
    await pace.turn(0)
    assert trio.current_time() - before > 1.9


async def test_an_address_that_fails_often_has_few_strangers_at_a_time(autojump_clock: MockClock) -> None:
    pace = Strangers()
    for _ in range(FAILING_MAX):
        pace.add("192.0.2.1")
        pace.add("192.0.2.2")
    assert not pace.refuses("192.0.2.1")
    for _ in range(FAILURES_MAX):
        pace.count_failed_login("192.0.2.1")
    assert pace.refuses("192.0.2.1")
    assert not pace.refuses("192.0.2.2")
    pace.remove("192.0.2.1")
    assert not pace.refuses("192.0.2.1")
    pace.add("192.0.2.1")
    await trio.sleep(FAILURES_SECONDS)
    assert not pace.refuses("192.0.2.1")


async def test_addresses_whose_failures_are_kept_have_a_bound() -> None:
    pace = Strangers()
    for number in range(ADDRESSES_MAX + 1):
        for _ in range(FAILURES_MAX):
            pace.count_failed_login(f"192.0.2.1-{number}")
    assert not pace.fails_often("192.0.2.1-0")
    assert pace.fails_often("192.0.2.1-1")


class LogsIn(SessionBase):
    """What comes is a password each, until one fits; then it is sent back."""

    __slots__ = ()

    def __init__(self, connection: Connection, access: Access) -> None:
        super().__init__(connection)
        self.identity.admit(access.guard("test", "always"))
        self.identity.await_first_request()

    def apply(self, data: bytes, at: int) -> int:
        while at < len(data) and not self.stopped:
            end = data.index(b"\n", at) + 1
            if self.user or data[at:end] == b"who?\n":
                self.reply(data[at:end])
            else:
                self.identity.log_in("ann", data[at : end - 1], self._answer)
            at = end
        return at

    def _answer(self, fits: bool) -> None:
        self.connection.first_request_done()
        self.reply(b"in\n" if fits else b"no\n")

    def input_ended(self) -> None:
        self.finish_when_answered()

    def release(self) -> None:
        pass


@unencrypted
async def test_strangers_wait_for_their_turn_and_who_has_logged_in_does_not(serve: Serve) -> None:
    access = Access({})
    access.check_password = lambda user, password, peer, done: done(password == b"right")
    async with serve(lambda connection: LogsIn(connection, access)) as served:
        pace = served.network.strangers
        known = await served.connect()
        await known.send_all(b"wrong\nright\nfirst\n")  # what is behind a login goes on
        assert await read_all(known, 12) == b"no\nin\nfirst\n"
        stranger = await served.connect()
        await stranger.send_all(b"wrong\n")
        assert await read_all(stranger, 3) == b"no\n"
        await stranger.send_all(b"who?\n")
        assert await read_all(stranger, 5) == b"who?\n"
        pace.served_at = math.inf
        await pace.turn(1000)  # they are in debt for an hour
        await stranger.send_all(b"right\n")
        for _ in range(20):
            await known.send_all(b"hello\n")
            assert await read_all(known, 6) == b"hello\n"
        with trio.move_on_after(0.01):
            assert not await read_all(stranger, 1), "it waits"
        assert access.guards["test"].logins_failed == 2


@unencrypted
async def test_who_leaves_without_a_login_is_no_stranger_any_more(serve: Serve) -> None:
    access = Access({})
    access.check_password = lambda user, password, peer, done: done(password == b"right")
    async with serve(lambda connection: LogsIn(connection, access)) as served:
        pace = served.network.strangers
        for _ in range(FAILURES_MAX):
            pace.count_failed_login("127.0.0.1")
        for _ in range(FAILING_MAX - 1):
            pace.add("127.0.0.1")
        for said in (b"", b"wrong\n", b"right\n"):
            stream = await served.connect()
            await stream.send_all(said or b"wrong\n")
            await read_all(stream, 3)
            assert pace.refuses("127.0.0.1") == (said != b"right\n")
            await stream.aclose()
            await served.group.wait_no_connections()
            assert not pace.refuses("127.0.0.1")
