"""With bridges under way a crash loses nothing that was acknowledged, and nothing is there twice.

A fake disk knows every state that a power cut may leave, and what a killed process leaves. In each the store
is recovered, the bridge goes on, and its target has to have all that was acknowledged, once and in order.
"""

import itertools

import pytest

from shared.storage.store import Store, Ticket
from tests.brokers.bridges.world import World, bridge
from tests.support.explore import sampled_states
from tests.support.fake_disk import Crash, FakeDisk, Operation
from tests.support.stores import SMALL, open_store

ENDS = {"logmq": "in", "dms": "in", "dmp": "in"}
ROUNDS = 5
PER_ROUND = 3
STATES = 2
KILLS_EVERY = 6


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
