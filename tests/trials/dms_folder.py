"""A data folder under a DMS load: recover, compare, load, cut, and again.

Looking at a queue is taking all that is in it and giving it back: CONSUME as often as LIST_QUEUES says there
are messages, then a NACK for each, or the end of the connection. Both must leave everything in its place.
"""

import random
import time
from collections.abc import Callable, Mapping, Sequence

import attrs

from tests.support import dms_spec as spec
from tests.trials.dms_load import DmsLoad
from tests.trials.folder import Adapter, HasMode, Verification, durability
from tests.trials.queue_judge import judge_queue, settle_queue
from tests.trials.queue_ledger import DmsBook
from tests.trials.tally import Verdict

_CREDITS_MAX = 1000
_TIMEOUT = 4
_HOLD_SECONDS = 30.0

Shown = Mapping[str, tuple[bytes, ...]]


@attrs.define(eq=False)
class DmsAdapter(Adapter):
    """Queues that many share or one makes and ends; some with a lifetime, a delay or tries."""

    protocol = "dms"
    book: DmsBook = attrs.field(factory=DmsBook, kw_only=True)

    @staticmethod
    def settings(modes: Sequence[str], source: random.Random) -> list[str]:
        """Queues whose name begins with a mode's have that mode."""
        lines = [
            "[dms]",
            f'durability = "{durability(modes[0])}"',
            "depth = 1000000",
            "consume_seconds = 0.25",
            f"hot_bytes = {source.choice((0, 20_000, 64 << 20))}",  # 0: every body is read back from the log
        ]
        for mode in modes:
            lines += [f'[dms.queues."{mode}-*"]', f'durability = "{durability(mode)}"']
        return lines

    def verify(self, promised_until: Callable[[HasMode], float]) -> Verification:
        shown = self._look_at_all(give_back=self.source.random() < 0.5)
        queues = self.book.queues
        verdict, verdicts = Verdict(), dict[str, Verdict]()
        dead = self._dead(shown, verdict)
        for name, queue in queues.items():
            found = () if queue.sources and name in shown else shown.get(name)
            if found and queue.fate is not None and queue.fate.retry_ms:  # those that waited came last
                found = tuple(queue.in_order(found))
            one = judge_queue(queue, found, promised_until(queue), dead.get(name, ()))
            verdict.add(one)
            verdicts.setdefault(queue.mode, Verdict()).add(one)
            if not one.faults:
                settle_queue(queue, found, one.life, dead.get(name, ()))
        verdict.faults += [f"{name}: a queue that nobody made" for name in shown if name not in queues]
        return Verification(verdict, verdicts, shown)

    def _dead(self, shown: Shown, verdict: Verdict) -> dict[str, list[bytes]]:
        """What is among the dead, by the queue that it was sent to."""
        dead: dict[str, list[bytes]] = {}
        for place in self.book.queues.values():
            for body in shown.get(place.name, ()) if place.sources else ():
                message, owner = place.find(body)
                if message is None:
                    verdict.faults.append(f"{place.name}: a dead letter that nobody sent: {body[:48]!r}")
                else:
                    dead.setdefault(owner.name, []).append(body)
        return dead

    def look(self) -> Shown:
        return self._look_at_all(give_back=True)

    def _look_at_all(self, *, give_back: bool) -> Shown:
        now = time.monotonic()
        if self.book.ages.life:
            self.book.ages.ends(now)
        self.book.ages.begins(now)
        self.book.ages.serves(now)
        faults: list[str] = []
        shown = look(self.address, self.book, faults, give_back=give_back)
        if faults:
            raise ValueError("\n".join(faults))
        return shown

    def same(self, name: str, before: Shown, now: Shown) -> bool:
        queue = self.book.queues.get(name)
        if queue is None or not (queue.fate or queue.sources):
            return before.get(name) == now.get(name)
        together = {name, *(source.name for source in queue.sources)}
        if queue.fate is not None and queue.fate.dead_letter:
            together.add(queue.fate.dead_letter)
            together |= {source.name for source in self.book.queues[queue.fate.dead_letter].sources}

        def bodies(shown: Shown) -> set[bytes]:
            return {body for each in together for body in shown.get(each, ())}

        return bodies(before) == bodies(now)

    def promised_records(self, until: float) -> int:
        return sum(
            message.promised(until) and message.ack is None and message.answered != 0.0
            for queue in self.book.queues.values()
            for message in queue.messages.values()
        )

    def load(self) -> DmsLoad:
        return DmsLoad(self.address, self.book, self.modes, self.source)


def look(address: tuple[str, int], book: DmsBook, faults: list[str], *, give_back: bool) -> Shown:
    """All queues, and what is in each, in order; everything is put back before this returns.

    `give_back`: by NACKs, else by closing the connection that holds it. What may die is given back by that
    alone, and looked at together: who holds all that is in those queues sees each message in one place.
    """
    shown: dict[str, tuple[bytes, ...]] = {}
    with spec.SpecClient(address, seconds=30.0) as client:
        depths = client.queues()
        mortals = [name for name, queue in book.queues.items() if queue.fate or queue.sources]
        shown |= _hold_all(client, book, [name for name in mortals if name in depths], faults)
        held = []
        for queue, depth in depths.items():
            if queue in mortals:
                continue
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
        _await_close(address, depths, mortals)
    return shown


def _hold_all(
    client: spec.SpecClient, book: DmsBook, names: Sequence[str], faults: list[str]
) -> dict[str, tuple[bytes, ...]]:
    """Take until everything in these queues is held: then it is where it is."""
    shown: dict[str, list[bytes]] = {name: [] for name in names}
    until = time.monotonic() + _HOLD_SECONDS
    while time.monotonic() < until:
        depths = client.queues()
        missing = {name: depths[name] - len(shown[name]) for name in names}
        if not any(missing.values()):
            return {name: tuple(bodies) for name, bodies in shown.items()}
        for name in names:
            asked = time.monotonic()
            for _, body in _take(client, name, min(missing[name], _CREDITS_MAX), all_=False):
                shown[name].append(body)
                message, owner = book.queues[name].find(body)
                if message is not None:
                    queue, now = book.queues[name], time.monotonic()
                    faults += book.deliveries_wrong(queue, message, owner, asked, now, leaving=True)
    raise ValueError(f"of {missing} messages nothing comes")


def _take(client: spec.SpecClient, queue: str, depth: int, *, all_: bool = True) -> list[tuple[int, bytes]]:
    """`all_`: fewer are wrong. On a busy machine the first CONSUMEs may end before all messages are read."""
    until = time.monotonic() + _HOLD_SECONDS
    deliveries: list[tuple[int, bytes]] = []
    while len(deliveries) < depth:
        count = min(depth - len(deliveries), _CREDITS_MAX)
        client.send(
            b"".join(spec.frame(spec.CONSUME, client.new_id(), spec.name(queue)) for _ in range(count))
        )
        for _ in range(count):
            type_, status, message_id, payload = client.reply()
            if type_ != spec.DELIVER and status == _TIMEOUT and (not all_ or time.monotonic() < until):
                depth -= not all_
                continue
            if type_ != spec.DELIVER:
                raise ValueError(
                    f"{queue}: of {depth} messages {len(deliveries)} came, then status {status}: {payload!r}"
                )
            deliveries.append((message_id, payload))
    return deliveries


def _await_close(address: tuple[str, int], depths: Mapping[str, int], mortals: Sequence[str]) -> None:
    """The server has seen our end: what we held is back, and the depths are as they were, but for deaths."""
    with spec.SpecClient(address, seconds=30.0) as client:
        after = client.queues()
    there = sum(depths.get(name, 0) for name in mortals)
    lasting = {name: depth for name, depth in depths.items() if name not in mortals}
    others = {name: depth for name, depth in after.items() if name not in mortals}
    if others != lasting or sum(after.get(name, 0) for name in mortals) != there:
        raise ValueError(f"looking at the queues changed their depths: {depths} to {after}")
