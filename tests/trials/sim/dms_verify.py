"""After each start, before anybody else is served: every queue of DMS emptied, and given back, twice."""

from collections.abc import Callable, Iterator, Mapping, Sequence

from tests.trials.sim import dms_dialog as dms
from tests.trials.sim.dms_dialog import DmsDialog, named, pack
from tests.trials.sim.dms_model import Consumer, DmsModel, Message
from tests.trials.sim.network import Network, Wire
from tests.trials.sim.world import BrokenPromise, World


class DmsVerifier:
    """Takes all messages of all queues over a connection of its own, with no fault on the way."""

    def __init__(self, world: World, network: Network, model: DmsModel, queues: Sequence[str]) -> None:
        self._world = world
        self._network = network
        self._model = model
        self._queues = queues
        self._chance = world.source("dms verifier")

    async def verify(self, accept: Callable[[Wire], None]) -> None:
        wire = self._network.wire_to(accept, "dms", faulty=False)
        dialog = DmsDialog(self._world, wire, "verifier")
        await dialog.shake_hands()
        await dialog.send(pack(dms.LIST, 2), "LIST_QUEUES")
        _, payload = await dialog.answer(dms.LIST, 2)
        depths = dict(_listed(payload))
        for queue in self._queues:
            begun = self._model.asks()
            if queue not in depths:
                self._model.saw_all(queue, None, begun, wire)
                continue
            consumer = self._model.consumer(queue, wire)
            held = await self._take(dialog, queue, depths[queue], consumer)
            found = list(held.values())
            self._model.saw_all(queue, found, begun, wire)
            # Given back in any order they keep their places; the end of the connection gives them back again.
            await self._give_back(dialog, queue, held, consumer)
            again = await self._take(dialog, queue, depths[queue], consumer)
            if list(again.values()) != found:
                raise BrokenPromise(f"{queue}: what was given back has not kept its place")
        wire.client.close()
        await wire.server_done.wait()

    async def _take(
        self, dialog: DmsDialog, queue: str, depth: int, consumer: Consumer
    ) -> dict[int, Message]:
        begun = self._model.asks()
        requests = [pack(dms.CONSUME, number, named(queue)) for number in range(1, depth + 1)]
        await dialog.send(b"".join(requests), f"CONSUME {queue} x {depth}")
        held: dict[int, Message] = {}
        for _ in range(depth):
            type_, status, delivery_id, body = await dialog.frame()
            if type_ != dms.DELIVER:
                raise BrokenPromise(
                    f"{queue} is {depth} deep after a start, and delivers {len(held)}: {status} {body!r}"
                )
            held[delivery_id] = self._model.delivered(queue, body, consumer, begun)
        if len(set(held.values())) < depth:
            raise BrokenPromise(f"{queue} delivers a message twice")
        return held

    async def _give_back(
        self, dialog: DmsDialog, queue: str, held: Mapping[int, Message], consumer: Consumer
    ) -> None:
        shuffled = self._chance.sample(list(held), len(held))
        for each in shuffled:
            self._model.gives_back(held[each], consumer, each)
        await dialog.send(b"".join(pack(dms.NACK, each) for each in shuffled), f"NACK {queue}")
        for each in shuffled:
            status, payload = await dialog.answer(dms.NACK, each)
            if status:
                raise BrokenPromise(f"{queue}: NACK was refused: {payload!r}")
            self._model.gave_back(held[each], consumer, each)


def _listed(payload: bytes) -> Iterator[tuple[str, int]]:
    """The entries of LIST_QUEUES_OK."""
    at = 2
    while at < len(payload):
        end = at + 2 + int.from_bytes(payload[at : at + 2], "big")
        yield payload[at + 2 : end].decode(), int.from_bytes(payload[end : end + 4], "big")
        at = end + 4
