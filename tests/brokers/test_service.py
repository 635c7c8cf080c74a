"""A protocol's supervisor: crashes are counted and mended, on virtual time."""

import itertools
import socket
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import attrs
import pytest
import trio
import trustme
from trio.testing import MockClock

from brokers.host.service import BACKOFF_SECONDS_MAX, WELL_SECONDS, SupervisedService
from brokers.settings.config import Config, load
from shared.access import Access
from shared.errors import ConfigError
from shared.metrics import Sample
from shared.net.connection import Session
from shared.net.datagram_sink import Frames, Layout
from shared.net.network import Network
from shared.net.settings import NetSettings
from shared.plugin import Context, Plugin, Service, TcpEndpoint, UdpEndpoint
from shared.storage.store import Store
from tests.support.installed import Idle, plugin, quiet_log


class NoStore:
    def commit_pending(self) -> None: ...


@attrs.define(eq=False)
class Troubled(Idle):
    """Runs for as many seconds as its plugin says, then crashes; the times at which it was started."""

    lives: list[float]
    started: list[float]

    async def run(self) -> None:
        self.started.append(trio.current_time())
        await trio.sleep(self.lives.pop(0) if self.lives else float("inf"))
        raise ZeroDivisionError("a bug")


def service_of(
    plugin_: Plugin, told: list[Mapping[str, Any]] | None = None, **environ: str
) -> SupervisedService:
    config: Config = load([plugin_], file=None, environ=environ)
    context = Context(cast(Store, NoStore()), quiet_log(told))
    return SupervisedService(plugin_, config, context, Network(NetSettings()), Access())


def troubled(lives: list[float], started: list[float], opens: list[BaseException | None]) -> Plugin:
    async def open_it(_: Context, __: Any) -> Service:
        if opens and (error := opens.pop(0)) is not None:
            raise error
        return Troubled(lives, started)

    return plugin("troubled", open=open_it)


async def served(
    lives: list[float], seconds: float, opens: list[BaseException | None] | None = None
) -> tuple[SupervisedService, list[float]]:
    """Serve for so long; the supervised service, and when its service was started."""
    started: list[float] = []
    it = service_of(troubled(lives, started, opens or []))
    began = trio.current_time()
    await it.open()
    with trio.move_on_after(seconds):
        await it.run()
    return it, [round(time - began, 3) for time in started]


async def test_a_crash_is_followed_by_starts_ever_later(autojump_clock: MockClock) -> None:
    it, started = await served([0] * 5, 10)
    assert started == [0, 0.1, 0.3, 0.7, 1.5, 3.1]
    assert (it.restarts, it.state) == (5, "serving")


async def test_the_wait_between_starts_has_a_bound(autojump_clock: MockClock) -> None:
    _, started = await served([0] * 30, 600)
    waits = [round(later - earlier, 3) for earlier, later in itertools.pairwise(started)]
    assert max(waits) == waits[-1] == BACKOFF_SECONDS_MAX


async def test_a_protocol_that_was_well_for_long_is_back_at_once(autojump_clock: MockClock) -> None:
    _, started = await served([0, 0, 0, WELL_SECONDS + 1, 0], 120)
    assert round(started[4] - started[3] - (WELL_SECONDS + 1), 3) == 0.1


async def test_one_that_cannot_even_be_opened_again_is_tried_on(autojump_clock: MockClock) -> None:
    it, started = await served([0], 10, [None, OSError(98, "Address already in use"), ValueError("a bug")])
    assert started == [0, 0.7]
    assert (it.restarts, it.state) == (3, "serving")


async def test_between_a_crash_and_the_next_start_it_is_said_to_be_restarting(
    autojump_clock: MockClock,
) -> None:
    it = service_of(troubled([5], [], []))
    await it.open()
    async with trio.open_nursery() as nursery:
        await nursery.start(it.run)
        states = [it.state]
        for seconds in (5.05, 0.1):
            await trio.sleep(seconds)
            states.append(it.state)
        assert states == ["serving", "restarting", "serving"]
        nursery.cancel_scope.cancel()


async def test_a_protocol_without_background_work_is_served_on(autojump_clock: MockClock) -> None:
    it = service_of(plugin("idle"))
    await it.open()
    with trio.move_on_after(1000):
        await it.run()
    assert (it.restarts, it.state) == (0, "serving")


@pytest.mark.parametrize(("seconds", "state"), [(0, "serving"), (5.05, "restarting")])
async def test_a_crash_before_or_during_the_drain_starts_nothing_anew(
    seconds: float, state: str, autojump_clock: MockClock
) -> None:
    started: list[float] = []
    it = service_of(troubled([5], started, []))
    await it.open()
    async with trio.open_nursery() as nursery:
        await nursery.start(it.run)
        await trio.sleep(seconds)
        assert it.state == state
        it.stop_accepting()
        await trio.sleep(100)
        nursery.cancel_scope.cancel()
    assert len(started) == 1
    assert it.state == "draining"


class Listening(Idle):
    """Has one endpoint of each kind."""

    def __init__(self, *endpoints: TcpEndpoint | UdpEndpoint) -> None:
        self.endpoints = endpoints  # type: ignore[assignment]


def listening(*endpoints: TcpEndpoint | UdpEndpoint) -> Plugin:
    async def open_it(_: Context, __: Any) -> Service:
        return Listening(*endpoints)

    return plugin("open", open=open_it)


class Deaf:
    """A sink that does nothing with what it takes."""

    layout = Layout(frame_bytes=40, parts=((0, 8),), sender=(8, 32))

    def receive_frames(self, frames: bytes, lengths: Sequence[int]) -> Frames | None: ...


TCP = TcpEndpoint("stream", 0, lambda connection: cast(Session, None))
UDP = UdpEndpoint("packets", 0, Deaf())


async def bound(*endpoints: TcpEndpoint | UdpEndpoint, **environ: str) -> list[str]:
    """The addresses, without ports, that the endpoints are bound to."""
    it = service_of(listening(*endpoints), **environ)
    try:
        await it.open()
        return [f"{each.transport} {each.host}" for each in it.bound]
    finally:
        it.close()


@attrs.define(eq=False)
class Faulty(Idle):
    """Its drain and its metrics have bugs."""

    async def run(self) -> None:
        await trio.sleep_forever()

    def drain(self) -> None:
        raise ZeroDivisionError("a bug")

    def samples(self) -> Iterator[Sample]:
        yield Sample("whole_total", 1, "Read before the bug.")
        raise ZeroDivisionError("a bug")


async def test_bugs_in_a_drain_and_in_metrics_are_told_and_hurt_nobody_else(
    autojump_clock: MockClock,
) -> None:
    async def open_it(_: Context, __: Any) -> Service:
        return Faulty()

    told: list[Mapping[str, Any]] = []
    it = service_of(plugin("faulty", open=open_it), told)
    await it.open()
    async with trio.open_nursery() as nursery:
        await nursery.start(it.run)
        for _ in range(3):
            names = {sample.name for sample in it.samples()}
            assert {"protocol_up", "whole_total"} < names
        it.stop_accepting()
        await it.drain()
        nursery.cancel_scope.cancel()
    assert [line["event"].partition(":")[0] for line in told] == [
        "a bug in a protocol's metrics",
        "a bug in a protocol's drain",
    ]


async def test_endpoints_are_bound_to_loopback_unless_told_otherwise() -> None:
    assert await bound(TCP, UDP) == ["tcp 127.0.0.1", "udp 127.0.0.1"]


@pytest.mark.parametrize("endpoint", [TCP, UDP], ids=["tcp", "udp"])
async def test_others_are_let_in_the_clear_only_by_who_says_so(endpoint: TcpEndpoint | UdpEndpoint) -> None:
    with pytest.raises(ConfigError, match="--insecure") as error:
        await bound(endpoint, BROKERS_SERVE_HOST="0.0.0.0")
    assert error.value.key == "serve.host"
    assert await bound(endpoint, BROKERS_SERVE_HOST="0.0.0.0", BROKERS_SERVE_INSECURE="true")


async def test_others_are_let_in_who_show_certificates_but_datagrams_have_none(tmp_path: Path) -> None:
    ca = trustme.CA()
    ca.cert_pem.write_to_path(tmp_path / "ca.pem")
    ca.issue_cert("localhost").private_key_and_cert_chain_pem.write_to_path(tmp_path / "c.pem")
    environ = {"BROKERS_SERVE_HOST": "0.0.0.0", "BROKERS_TLS_CERTIFICATE": str(tmp_path / "c.pem")}
    with pytest.raises(ConfigError, match="--insecure"):
        await bound(TCP, **environ)
    environ["BROKERS_TLS_CLIENT_CA"] = str(tmp_path / "ca.pem")
    assert await bound(TCP, **environ) == ["tcp 0.0.0.0"]
    both = service_of(listening(TCP, UDP), **environ)
    with pytest.raises(ConfigError, match="--insecure"):
        await both.open()
    with pytest.raises(ConnectionRefusedError):  # what was bound before is not left open
        socket.create_connection(("127.0.0.1", both.bound[0].port)).close()


async def test_a_port_that_the_system_picked_stays_and_is_that_of_what_goes_with_it() -> None:
    it = service_of(listening(TCP, attrs.evolve(UDP, port_of="stream")))
    try:
        await it.open()
        ports = [each.port for each in it.bound]
        assert ports == [ports[0]] * 2
        it.close()
        await it.open()
        assert [each.port for each in it.bound] == ports
    finally:
        it.close()
