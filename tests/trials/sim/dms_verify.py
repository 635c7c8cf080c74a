"""After each start, before anybody else is served: every queue of DMS emptied, and given back, twice.

Where time or a delivery changes what is in a queue, it is looked into by `peek` instead, which takes nothing.
"""

import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import attrs

from tests.support import dms_spec as dms
from tests.support.dms_model import DEAD, FATES, Consumer, DmsModel, Message
from tests.support.promises import BrokenPromiseError
from tests.trials.sim.dms_dialog import DmsDialog
from tests.trials.sim.machine import Machine
from tests.trials.sim.network import Network, Wire
from tests.trials.sim.probe_client import verifying
from tests.trials.sim.world import World

PEEKED_MAX = 1000


@attrs.define(eq=False)
class DmsVerifier:
    """Takes all messages of all queues over a connection of its own, with no fault on the way."""

    _world: World
    _network: Network
    _model: DmsModel
    _queues: Sequence[str]
    _chance: random.Random

    async def verify(self, accept: Callable[[Wire], None], machine: Machine) -> None:
        self._model.ages.serves(self._world.now())
        who = "verifier"
        async with verifying(DmsDialog, self._world, self._network, accept, "dms", who) as dialog:
            await dialog.shake_hands()
            await dialog.send(dms.frame(dms.LIST, 2), "LIST_QUEUES")
            _, payload = await dialog.answer(dms.LIST, 2)
            depths = dict(dms.listed(payload)[1])
            await self._look_at_mortals(machine, depths, dialog.wire)
            for queue in self._queues:
                if queue == DEAD or queue in FATES:
                    continue
                begun = self._world.tick()
                if queue not in depths:
                    self._model.saw_all(queue, None, begun, dialog.wire)
                    continue
                consumer = self._model.consumer(queue, dialog.wire)
                held = await self._take(dialog, queue, depths[queue], consumer)
                found = list(held.values())
                self._model.saw_all(queue, found, begun, dialog.wire)
                # Given back in any order they keep their places; so they do where the connection ends.
                await self._give_back(dialog, queue, held, consumer)
                again = await self._take(dialog, queue, depths[queue], consumer)
                if list(again.values()) != found:
                    raise BrokenPromiseError(f"{queue}: what was given back has not kept its place")

    async def _take(
        self, dialog: DmsDialog, queue: str, depth: int, consumer: Consumer
    ) -> dict[int, Message]:
        begun = self._model.asks(queue, depth)
        requests = [dms.frame(dms.CONSUME, number, dms.name(queue)) for number in range(1, depth + 1)]
        await dialog.send(b"".join(requests), f"CONSUME {queue} x {depth}")
        held: dict[int, Message] = {}
        for _ in range(depth):
            type_, status, delivery_id, body = await dialog.frame()
            if type_ != dms.DELIVER:
                raise BrokenPromiseError(
                    f"{queue} is {depth} deep after a start, and delivers {len(held)}: {status} {body!r}"
                )
            held[delivery_id] = self._model.delivered(queue, body, consumer, begun)
        if len(set(held.values())) < depth:
            raise BrokenPromiseError(f"{queue} delivers a message twice")
        return held

    async def _look_at_mortals(self, machine: Machine, depths: Mapping[str, int], wire: Wire) -> None:
        """Each message is in its queue or with the dead. It may move from here to there while we look."""
        begun = self._world.tick()
        mortals = [queue for queue in self._queues if queue in FATES]
        there = [DEAD, *mortals, DEAD] if mortals else [DEAD, DEAD]
        before, *looks, after = [
            await self._peek(machine, queue) if queue in depths else None for queue in there
        ]
        rows = dict(zip(mortals, looks, strict=True))
        self._model.saw_places(before or (), rows, after or (), begun, wire)
        for queue, each in rows.items():
            if each and not FATES[queue].dead_letter:
                found = [self._model.find(queue, row["text"].encode()) for row in each]
                await self._check_ready(machine, queue, found)
        if DEAD in self._queues and DEAD not in depths:
            self._model.is_missing(DEAD, begun, wire)

    async def _check_ready(self, machine: Machine, queue: str, found: Sequence[Message]) -> None:
        """What has waited for long enough may go out."""
        certain = sum(self._model.is_ready(message) for message in found) if FATES[queue].delay_ms else 0
        row = await machine.row("dms", "queues", queue)
        if row["ready"] < certain:
            raise BrokenPromiseError(
                f"{queue}: {certain} delays are over, and {row['ready']} messages are ready"
            )

    async def _peek(self, machine: Machine, queue: str) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = await machine.peek("dms", queue, PEEKED_MAX)
        if len(rows) == PEEKED_MAX:
            raise AssertionError(f"{queue} is too deep to be looked at")
        return rows

    async def _give_back(
        self, dialog: DmsDialog, queue: str, held: Mapping[int, Message], consumer: Consumer
    ) -> None:
        shuffled = self._chance.sample(list(held), len(held))
        for each in shuffled:
            self._model.gives_back(held[each], consumer, each)
        await dialog.send(b"".join(dms.frame(dms.NACK, each) for each in shuffled), f"NACK {queue}")
        for each in shuffled:
            status, payload = await dialog.answer(dms.NACK, each)
            if status:
                raise BrokenPromiseError(f"{queue}: NACK was refused: {payload!r}")
            self._model.gave_back(held[each], consumer, each)
