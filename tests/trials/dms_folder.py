"""A data folder under a DMS load: recover, compare, load, cut, and again.

Looking at a queue is taking all that is in it and giving it back: CONSUME as often as LIST_QUEUES says there
are messages, then a NACK for each, or the end of the connection. Both must leave everything in its place.
"""

import random
from collections.abc import Callable, Mapping, Sequence

import attrs

from tests.support import dms_spec as spec
from tests.trials.dms_judge import judge_queue, settle_queue
from tests.trials.dms_ledger import DmsBook, QueueBook
from tests.trials.dms_load import DmsLoad
from tests.trials.folder import Folder, durability, storage_settings
from tests.trials.judge import Verdict
from tests.trials.verify import Verification

_CREDITS_MAX = 1000

Shown = Mapping[str, tuple[bytes, ...]]


def dms_settings(modes: Sequence[str], source: random.Random) -> str:
    """TOML: queues whose name begins with a mode's have that mode; the storage's ways are drawn."""
    lines = [
        *storage_settings(source),
        "[dms]",
        f'durability = "{durability(modes[0])}"',
        "depth = 1000000",
        "consume_seconds = 2.0",
        f"hot_bytes = {source.choice((0, 20_000, 64 << 20))}",  # 0: every body is read back from the log
    ]
    for mode in modes:
        lines += [f'[dms.queues."{mode}-*"]', f'durability = "{durability(mode)}"']
    return "\n".join(lines) + "\n"


class DmsWork:
    """What of a folder is about DMS: before `Folder`, or what is derived from it, among the bases."""

    __slots__ = ()

    def _verify(self, promised_until: Callable[[QueueBook], float]) -> Verification:
        shown = look(self.server.address("dms"), give_back=self.source.random() < 0.5)
        queues = self.book.queues
        verdict, verdicts = Verdict(), dict[str, Verdict]()
        for name, queue in queues.items():
            one = judge_queue(queue, shown.get(name), promised_until(queue))
            verdict.add(one)
            verdicts.setdefault(queue.mode, Verdict()).add(one)
            if not one.faults:
                settle_queue(queue, shown.get(name), one.life)
        verdict.faults += [f"{name}: a queue that nobody made" for name in shown if name not in queues]
        return Verification(verdict, verdicts, shown)

    def _look(self) -> Shown:
        return look(self.server.address("dms"), give_back=True)

    def _same(self, name: str, before: Shown, now: Shown) -> bool:
        return before.get(name) == now.get(name)

    def promised_records(self, until: float) -> int:
        return sum(
            message.promised(until) and message.ack is None and message.answered != 0.0
            for queue in self.book.queues.values()
            for message in queue.messages.values()
        )

    def load(self) -> DmsLoad:
        return DmsLoad(self.server.address("dms"), self.book, self.modes, self.source)


@attrs.define(eq=False)
class DmsFolder(DmsWork, Folder):
    """A data folder, its server, and all that was asked of its queues."""

    book: DmsBook = attrs.field(factory=DmsBook)


def look(address: tuple[str, int], *, give_back: bool) -> Shown:
    """All queues, and what is in each, in order; everything is put back before this returns.

    `give_back`: by NACKs, else by closing the connection that holds it.
    """
    shown = {}
    with spec.SpecClient(address, seconds=30.0) as client:
        depths = client.queues()
        held = []
        for queue, depth in depths.items():
            deliveries = _take(client, queue, depth)
            shown[queue] = tuple(body for _, body in deliveries)
            held += [delivery for delivery, _ in deliveries]
        for start in range(0, len(held) if give_back else 0, _CREDITS_MAX):
            some = held[start : start + _CREDITS_MAX]
            client.send(b"".join(spec.frame(spec.NACK, delivery) for delivery in some))
            for delivery in some:
                reply = client.reply()
                if reply != (spec.NACK + 1, 0, delivery, b""):
                    raise ValueError(f"NACK of {delivery:#x}: {reply}")
        client.disconnect()
        client.rest()
        _await_close(address, depths)
    return shown


def _take(client: spec.SpecClient, queue: str, depth: int) -> list[tuple[int, bytes]]:
    deliveries: list[tuple[int, bytes]] = []
    while len(deliveries) < depth:
        count = min(depth - len(deliveries), _CREDITS_MAX)
        client.send(
            b"".join(spec.frame(spec.CONSUME, client.new_id(), spec.name(queue)) for _ in range(count))
        )
        for _ in range(count):
            type_, status, message_id, payload = client.reply()
            if type_ != spec.DELIVER:
                raise ValueError(
                    f"{queue}: of {depth} messages {len(deliveries)} came, then status {status}: {payload!r}"
                )
            deliveries.append((message_id, payload))
    return deliveries


def _await_close(address: tuple[str, int], depths: Mapping[str, int]) -> None:
    """The server has seen our end: what we held is back, and the depths are as they were."""
    with spec.SpecClient(address, seconds=30.0) as client:
        after = client.queues()
    if after != depths:
        raise ValueError(f"looking at the queues changed their depths: {depths} to {after}")
