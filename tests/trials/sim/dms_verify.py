"""After each start, before anybody else is served: every queue of DMS emptied, and given back, twice.

Where time or a delivery changes what is in a queue, it is looked into by `peek` instead, which takes nothing.
"""

import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

import attrs

from tests.support import dms_spec as dms
from tests.trials.sim.dms_dialog import DmsDialog
from tests.trials.sim.dms_model import DEAD, FATES, Consumer, DmsModel, Message
from tests.trials.sim.network import Network, Wire
from tests.trials.sim.probe_client import verifying
from tests.trials.sim.world import BrokenPromise, World

PEEKED_MAX = 1000

Call = Callable[..., Awaitable[Any]]
"""Has an administrative verb of DMS called."""


@attrs.define(eq=False)
class DmsVerifier:
    """Takes all messages of all queues over a connection of its own, with no fault on the way."""

    _world: World
    _network: Network
    _model: DmsModel
    _queues: Sequence[str]
    _chance: random.Random

    async def verify(self, accept: Callable[[Wire], None], call: Call) -> None:
        self._model.ages.serves(self._world.now())
        who = "verifier"
        async with verifying(DmsDialog, self._world, self._network, accept, "dms", who) as dialog:
            await dialog.shake_hands()
            await dialog.send(dms.frame(dms.LIST, 2), "LIST_QUEUES")
            _, payload = await dialog.answer(dms.LIST, 2)
            depths = dict(dms.listed(payload)[1])
            await self._look_at_mortals(call, depths, dialog.wire)
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
                    raise BrokenPromise(f"{queue}: what was given back has not kept its place")

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
                raise BrokenPromise(
                    f"{queue} is {depth} deep after a start, and delivers {len(held)}: {status} {body!r}"
                )
            held[delivery_id] = self._model.delivered(queue, body, consumer, begun)
        if len(set(held.values())) < depth:
            raise BrokenPromise(f"{queue} delivers a message twice")
        return held

    async def _look_at_mortals(self, call: Call, depths: Mapping[str, int], wire: Wire) -> None:
        """Each message is in its queue or with the dead. It may move from here to there while we look."""
        begun = self._world.tick()
        mortals = [queue for queue in self._queues if queue in FATES]
        there = [DEAD, *mortals, DEAD] if mortals else []
        looks = [await self._peek(call, queue) if queue in depths else [] for queue in there]
        before, now = ({row["body"] for row in looks[at]} for at in (0, -1)) if looks else (set(), set())
        dead: dict[str, list[Message]] = {queue: [] for queue in mortals}
        for row in looks[-1] if looks else ():
            message = self._found(row["body"], mortals, DEAD)
            self._model.found_dead(message, row["dead_letter"])
            dead[message.queue].append(message)
        if len(now) != sum(map(len, dead.values())):
            raise BrokenPromise(f"somebody is twice among the dead: {looks[-1]}")
        if before - now:
            raise BrokenPromise(f"{before - now} were among the dead, and are not any more")
        for queue, rows in zip(mortals, looks[1:-1], strict=False):
            found = [self._found(row["body"], [queue], queue) for row in rows]
            if twice := [message for message, row in zip(found, rows, strict=True) if row["body"] in before]:
                raise BrokenPromise(f"{twice[0]} is there, and among the dead")
            if len(set(found)) < len(found):
                raise BrokenPromise(f"{queue} has a message twice")
            listed = found if queue in depths else None
            self._model.saw_all(queue, listed, begun, wire, dead[queue])
            if listed and not FATES[queue].dead_letter:
                await self._check_ready(call, queue, found)
        if DEAD in self._queues and DEAD not in depths:
            self._model.is_missing(DEAD, begun, wire)

    async def _check_ready(self, call: Call, queue: str, found: Sequence[Message]) -> None:
        """What has waited for long enough may go out."""
        certain = sum(self._model.is_ready(message) for message in found) if FATES[queue].delay_ms else 0
        ((row),) = await call("queues", queue=queue)
        if row["ready"] < certain:
            raise BrokenPromise(f"{queue}: {certain} delays are over, and {row['ready']} messages are ready")

    async def _peek(self, call: Call, queue: str) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = await call("peek", queue=queue, limit=PEEKED_MAX)
        if len(rows) == PEEKED_MAX:
            raise AssertionError(f"{queue} is too deep to be looked at")
        return rows

    def _found(self, body: str, queues: Sequence[str], place: str) -> Message:
        for queue in queues:
            message = self._model.queues[queue].messages.get(body.encode())
            if message is not None:
                return message
        raise BrokenPromise(f"{place} has what nobody sent: {body[:64]!r}")

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
                raise BrokenPromise(f"{queue}: NACK was refused: {payload!r}")
            self._model.gave_back(held[each], consumer, each)
