"""Bridges in the simulation: each topic of the clients is carried into a queue, and back into a log.

Both ways are exactly once, so after each start the log is what its topic was up to some record: all of it in
order, each record at the same offset. Given time, it is all of the topic, or what retention keeps of it.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from typing import Any

import attrs
import structlog
import trio

from brokers.bridges.bridges import Bridges
from brokers.bridges.settings import BridgeSettings
from dmp.broker import Broker
from dmp.declarations import QueueKind
from shared.bridging import BridgeEnds
from shared.errors import StoreError
from shared.storage.store import Store
from tests.support import dms_spec as dms
from tests.support.promises import BrokenPromiseError
from tests.trials.logmq_model import LENGTH_BYTES
from tests.trials.sim.dialog import Dialog, Refused
from tests.trials.sim.dms_dialog import DmsDialog
from tests.trials.sim.network import Network, Wire
from tests.trials.sim.probe_client import verifying
from tests.trials.sim.world import World

CARRIED_SECONDS = 30.0
"""Virtual: a bridge that waited for its target tries again within a second."""


def bridges_of(topics: Sequence[str], by: str) -> Iterator[BridgeSettings]:
    """By queues of that protocol."""
    for topic in topics:
        yield BridgeSettings(f"to-{topic}", f"logmq:{topic}", f"{by}:by-{topic}", start="first")
        yield BridgeSettings(f"back-{topic}", f"{by}:by-{topic}", f"logmq:copy-{topic}")


def ends(protocol: str) -> BridgeEnds | None:
    found: BridgeEnds = import_module(f"{protocol}.bridge").ENDS
    return found


async def opened(world: World, store: Store, services: Mapping[str, Any], topics: Sequence[str]) -> Bridges:
    """Those of a life."""
    log = structlog.stdlib.get_logger("simulated")
    wall: Callable[[], float] = lambda: world.wall_ms() / 1000  # noqa: E731
    found = Bridges(store, log, services.get, ends, clock=world.now, wall=wall)
    by = "dms" if "dms" in services else "dmp"
    await found.change(list(bridges_of(topics, by)))
    if topics and by == "dmp":
        declare_queues(services["dmp"].broker, topics)
    return found


def declare_queues(broker: Broker, topics: Sequence[str]) -> None:
    """As an AMQP client would; the verifier makes those of DMS over a connection."""
    for topic in topics:
        with suppress(StoreError):  # with cause: its bridges wait
            broker.topology.declare_queue(
                f"by-{topic}".encode(), QueueKind(durable=True), broker.new_application("")
            )
    broker.store.commit_pending()


@attrs.define(eq=False)
class BridgeVerifier:
    """Compares logs with the topics that they come from, over connections with no fault on the way."""

    _world: World
    _network: Network
    _topics: Sequence[str]
    _by: str
    records_checked: int = attrs.field(default=0, init=False)

    async def verify(self, accept: Callable[[Wire], None], *, over: bool) -> None:
        """`over`: nobody writes any more, and all has to arrive."""
        at = self._world, self._network, accept
        if self._by == "dms":
            async with verifying(DmsDialog, *at, "dms", "bridge verifier") as making:
                await self._make_queues(making)
        async with verifying(Dialog, *at, "logmq", "bridge verifier") as dialog:
            for topic in self._topics:
                give_up = self._world.now() + CARRIED_SECONDS
                while (  # noqa: ASYNC110  a client sees it by looking
                    missing := await self._missing(dialog, topic)
                ) and (over and self._world.now() < give_up):
                    await trio.sleep(0.05)
                if over and missing:
                    raise BrokenPromiseError(
                        f"bridges of {topic} stand still: {missing} records have not arrived"
                    )
            await dialog.finish()

    async def _missing(self, dialog: Dialog, topic: str) -> int:
        """How many records of the topic have not arrived. The copy may have dropped its oldest."""
        await dialog.send(b"OFFSETS copy-%s\n" % topic.encode())
        ends = await dialog.numbers(b"OFFSETS", 2)
        first, end = (0, 0) if isinstance(ends, Refused) else ends
        copy = await dialog.whole(f"copy-{topic}", first)
        sent = dict(await dialog.whole(topic))
        self.records_checked += len(copy)
        seen = set()
        for offset, payload in copy:
            if sent.get(offset) != payload:
                found = "twice" if payload in seen else "out of its turn"
                raise BrokenPromiseError(
                    f"bridges of {topic} carried {payload[:24]!r} {found}, to offset {offset}"
                )
            seen.add(payload)
        if copy and copy[-1][0] + LENGTH_BYTES + len(copy[-1][1]) != end:
            raise BrokenPromiseError(f"copy-{topic} ends with {copy[-1]}, and OFFSETS says {ends}")
        return sum(offset >= end for offset in sent)

    async def _make_queues(self, dialog: DmsDialog) -> None:
        await dialog.shake_hands()
        for number, topic in enumerate(self._topics, 2):
            await dialog.send(dms.frame(dms.CREATE, number, dms.name(f"by-{topic}")), f"CREATE by-{topic}")
            status, payload = await dialog.answer(dms.CREATE, number)
            if status not in (0, dms.EXISTS) and not dialog.wire.excused():
                # With cause, a queue whose log cannot be read is left alone, and its bridges wait.
                raise BrokenPromiseError(f"by-{topic} cannot be made after a start: {status} {payload!r}")
