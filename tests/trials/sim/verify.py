"""After each start, before anybody else is served: everything that can be read, against the model."""

from collections.abc import Callable, Sequence

import attrs

from tests.support.promises import BrokenPromiseError
from tests.trials.logmq_model import LENGTH_BYTES, Model, Record
from tests.trials.sim.dialog import Dialog, Refused
from tests.trials.sim.network import Network, Wire
from tests.trials.sim.probe_client import verifying
from tests.trials.sim.world import World

GROUPS = ("g", "h")


@attrs.define(eq=False)
class Verifier:
    """Reads all topics and all groups' offsets over a connection of its own, with no fault on the way."""

    _world: World
    _network: Network
    _model: Model
    _topics: Sequence[str]

    async def verify(self, accept: Callable[[Wire], None]) -> None:
        who = "verifier"
        async with verifying(Dialog, self._world, self._network, accept, "logmq", who) as dialog:
            for topic in self._topics:
                begun = self._model.read()
                self._model.saw_all(topic, await self._records(dialog, topic), begun)
                for group in GROUPS:
                    begun = self._model.read()
                    await dialog.send(b"COMMITTED %s %s\n" % (group.encode(), topic.encode()))
                    self._committed(group, topic, await dialog.ok(), begun)
            self._model.restarted()
            await dialog.finish()

    async def _records(self, dialog: Dialog, topic: str) -> list[Record]:
        records = await dialog.whole(topic)
        last, payload = records[-1] if records else (-LENGTH_BYTES, b"")
        offset = last + LENGTH_BYTES + len(payload)
        await dialog.send(b"OFFSETS %s\n" % topic.encode())
        ends = await dialog.numbers(b"OFFSETS", 2)
        if isinstance(ends, Refused):
            if ends.code != "NO_TOPIC" or records:
                raise BrokenPromiseError(f"OFFSETS {topic} after a start: {ends}")
        elif list(ends) != [0, offset]:
            raise BrokenPromiseError(f"{topic} holds 0 to {offset}, and OFFSETS says {ends}")
        return records

    def _committed(self, group: str, topic: str, answer: int | Refused, begun: int) -> None:
        if isinstance(answer, int):
            self._model.saw_committed(group, topic, answer, begun)
        elif answer.code in ("NO_COMMIT", "NO_TOPIC"):
            self._model.saw_committed(group, topic, None, begun)
        else:
            raise BrokenPromiseError(f"COMMITTED {group} {topic} after a start: {answer}")
