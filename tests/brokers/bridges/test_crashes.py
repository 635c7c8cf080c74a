"""With bridges under way a crash loses nothing that was acknowledged, and nothing is there twice.

A fake disk knows every state that a power cut may leave, and what a killed process leaves. In each the store
is recovered, the bridge goes on, and its target has to have all that was acknowledged, once and in order.
"""

import itertools
import struct
from pathlib import Path

import pytest
import trio
from structlog.testing import capture_logs

from brokers.bridges.bridges import NAMESPACE, TABLE
from brokers.host.host import Host
from brokers.settings.config import load
from logmq.plugin import plugin
from shared.storage.settings import Durability, StorageSettings
from shared.storage.store import Store, Ticket
from shared.storage.table import Table
from tests.brokers.bridges.world import LOG, World, bridge
from tests.support.explore import sampled_states
from tests.support.fake_disk import Crash, FakeDisk, Operation
from tests.support.stores import SMALL, open_store

ENDS = {"logmq": "in", "dms": "in", "dmp": "in"}
ROUNDS = 5
PER_ROUND = 3
STATES = 3
KILLS_EVERY = 4


class _Ledger:
    """What was sent, and how much of it was acknowledged."""

    def __init__(self) -> None:
        self.sent: list[bytes] = []
        self.acked = 0
        self.cuts: list[tuple[int, Crash]] = []
        self.kills: list[tuple[int, FakeDisk]] = []

    def watch(self, disk: FakeDisk) -> None:
        writes = itertools.count()

        def before(operation: Operation) -> None:
            if operation.kind.startswith("sync"):
                self.cuts.append((self.acked, disk.power_cut()))
            elif next(writes) % KILLS_EVERY == 0:
                self.kills.append((self.acked, disk.kill()))

        disk.before = before

    def send(self, world: World, source: str) -> None:
        bodies = [b"%04d" % number for number in range(len(self.sent), len(self.sent) + PER_ROUND)]
        self.sent += bodies
        count = len(self.sent)
        world.put(source, "in", *bodies).when_done(lambda ticket: self._done(ticket, count))

    def _done(self, ticket: Ticket, count: int) -> None:
        assert ticket.error is None
        self.acked = count


async def _recovered(disk: FakeDisk, source: str, target: str) -> list[bytes]:
    store: Store = await open_store(disk, SMALL)
    try:
        world = await World.open(store, bridge(f"{source}:in", f"{target}:out"))
        world.carry()
        world.later()
        return await world.found(target, "out")
    finally:
        store.abandon()


@pytest.mark.parametrize(("source", "target"), [*itertools.product(ENDS, ENDS)])
async def test_a_crash_anywhere_separates_nothing(source: str, target: str) -> None:
    disk = FakeDisk()
    world = await World.open(await open_store(disk, SMALL))
    for protocol, name in ((source, "in"), (target, "out")):
        world.make(protocol, name)
    if source == "logmq":
        world.send("logmq", "in", b"before")
    await world.bridges.change([bridge(f"{source}:in", f"{target}:out")])
    world.carry()
    await world.store.checkpoint()
    ledger = _Ledger()
    ledger.watch(disk)
    for number in range(ROUNDS):
        ledger.send(world, source)
        if number % 2:
            world.only.step()  # in the same commit
        world.store.commit_pending()
        world.carry()
        if number == 2:
            await world.store.checkpoint()
    disk.before = None
    assert ledger.acked == len(ledger.sent)
    crashes = [
        (acked, state)
        for seed, (acked, crash) in enumerate(ledger.cuts)
        for state in sampled_states(crash, seed, STATES)
    ]
    for acked, state in [*crashes, *ledger.kills]:
        found = await _recovered(state, source, target)
        assert found == ledger.sent[: len(found)], "once, and in order"
        assert len(found) >= acked, "all that was acknowledged"
    assert len(crashes) > ROUNDS


IN_TO_OUT = bridge("logmq:in", "logmq:out")


async def _carried(disk: FakeDisk, *bodies: bytes) -> World:
    world = await World.open(await open_store(disk, SMALL), IN_TO_OUT)
    world.carry()
    world.send("logmq", "in", *bodies)
    world.carry()
    return world


async def _restarted_past_the_end(disk: FakeDisk) -> Store:
    """The store of a killed process, in which the bridge's position is behind what its topic has.

    Versions that did not journal the records of mode `none` left that after a power cut.
    """
    store = await open_store(disk.kill(), SMALL)
    table = await Table.open(store.namespace(NAMESPACE, Durability.parse("always")), TABLE)
    log_id, offset = struct.unpack(">QQ", table[b"b\0in"])
    ticket = table.put(b"b\0in", struct.pack(">QQ", log_id, offset + 1000))
    await store.wait(ticket)
    return store


@pytest.mark.parametrize("how", ["paused", "removed"])
async def test_what_comes_after_a_power_cut_is_not_taken_for_what_it_took(how: str) -> None:
    disk = FakeDisk()
    world = await _carried(disk, b"old 1", b"old 2", b"old 3")
    assert await world.found("logmq", "out") == [b"old 1", b"old 2", b"old 3"]
    if how == "paused":
        world.only.set_paused(True)
    else:
        await world.bridges.change([])
    world.carry()
    store = await _restarted_past_the_end(disk)
    with capture_logs() as logged:
        world = await World.open(store, *([IN_TO_OUT] if how == "paused" else []))
        world.carry()
    told = [line for line in logged if "lost its newest records" in line["event"]]
    assert [(line["bridge"], line["topic"]) for line in told] == [("b", "in")]
    world.send("logmq", "in", b"new 1", b"new 2", b"new 3", b"new 4")
    if how == "paused":
        world.only.set_paused(False)
    else:
        await world.bridges.change([IN_TO_OUT])
    world.carry()
    new = [b"new 1", b"new 2", b"new 3", b"new 4"]
    assert await world.found("logmq", "out") == [b"old 1", b"old 2", b"old 3", *new]


async def test_the_server_does_so_before_it_serves(tmp_path: Path) -> None:
    disk = FakeDisk()
    world = await _carried(disk, b"old")
    await world.bridges.change([])
    world.carry()
    store = await _restarted_past_the_end(disk)

    async def opened(folder: Path, settings: StorageSettings) -> Store:
        return store

    (tmp_path / "data").mkdir()
    environ = {
        "BROKERS_SERVE_DATA_DIR": str(tmp_path / "data"),
        "BROKERS_ADMIN_ENABLED": "false",
        "BROKERS_LOGMQ_PORT": "0",
    }
    plugins = (plugin,)
    with capture_logs() as logged:
        host = Host(plugins, load(plugins, file=None, environ=environ), LOG, open_store=opened)
        async with trio.open_nursery() as nursery:
            await nursery.start(host.run)
            host.stop()
    told = [line for line in logged if "lost its newest records" in line["event"]]
    assert [(line["bridge"], line["topic"]) for line in told] == [("b", "in")]
