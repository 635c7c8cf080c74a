"""What a queue holds after a cut, message by message: the judgement that DMS and DMP share."""

import math
from collections.abc import Iterable, Sequence

import attrs

from tests.trials.peers import Asked
from tests.trials.tally import Verdict


@attrs.define(eq=False)
class Stored(Asked):
    """A message in a queue, and the request that put it there. `key`: what tells it from all others."""

    key: bytes = b""
    writer: str = ""
    place: int = 0
    """In the order in which messages were sent."""
    shown: float | None = None
    """When a consumer first got it."""
    ack: Asked | None = None
    """The last ACK that was sent for it."""
    held: bool = False
    """Delivered, on a connection that lives, and neither acknowledged nor given back."""

    def must_stand(self, until: float) -> bool:
        """Acknowledged by then, or shown to a consumer, who is shown nothing that a crash could take back."""
        return self.promised(until) or (self.shown is not None and self.shown <= until)


def judge_order(name: str, settled: Sequence[Stored], here: Sequence[Stored], verdict: Verdict) -> None:
    """Those found before keep their places, and what came since stands behind, in the order of arrival."""
    base = {id(message): place for place, message in enumerate(settled)}
    last_of: dict[str, int] = {}
    last_base = -1
    new = False
    earliest_after = math.inf
    for message in reversed(here):
        if earliest_after < message.queued:
            verdict.faults.append(
                f"{name}: before one that was acknowledged when it was sent: {short(message.key)}"
            )
            break
        if message.answered is not None:
            earliest_after = min(earliest_after, message.answered)
    for message in here:
        place = base.get(id(message))
        if place is not None:
            if new or place < last_base:
                verdict.faults.append(f"{name}: no longer in its place: {short(message.key)}")
            last_base = place
            continue
        new = True
        if message.place < last_of.get(message.writer, -1):
            verdict.faults.append(f"{name}: out of order: {short(message.key)}")
        last_of[message.writer] = message.place


def judge_acks(
    name: str, messages: Iterable[Stored], here: Sequence[Stored], until: float, verdict: Verdict
) -> None:
    """No acknowledged ACK is undone. `commits` counts the ACKs that stood."""
    undone = [message for message in here if message.ack is not None and message.ack.acknowledged]
    broken = [message for message in undone if message.ack is not None and message.ack.promised(until)]
    if broken:
        verdict.faults.append(
            f"{name}: {len(broken)} acknowledged ACKs undone, the first of {short(broken[0].key)}"
        )
    verdict.lost += len(undone)
    standing = {id(message) for message in here}
    verdict.commits += sum(
        message.ack is not None and message.ack.acknowledged and id(message) not in standing
        for message in messages
    )


def judge_missing(
    name: str, messages: Iterable[Stored], here: Sequence[Stored], until: float, verdict: Verdict
) -> None:
    """What was promised is there, and no message is missing before a later one of its writer."""
    standing = {id(message) for message in here}
    last_of: dict[str, int] = {}
    for message in here:
        verdict.newest_kept = max(verdict.newest_kept, message.queued)
        last_of[message.writer] = max(last_of.get(message.writer, -1), message.place)
        if message.answered is None:
            verdict.extra += 1
        elif message.answered and message.ack is None:  # 0: it was counted before
            verdict.kept += 1
    lost: list[Stored] = []
    for message in messages:
        if message.refused or message.ack is not None or id(message) in standing:
            continue
        if message.acknowledged:
            verdict.lost += 1
            verdict.oldest_lost = min(verdict.oldest_lost, message.answered or 0.0)
        if message.must_stand(until):
            lost.append(message)
        elif message.place < last_of.get(message.writer, -1):
            verdict.faults.append(f"{name}: a hole, later ones are there: {short(message.key)}")
    if lost:
        verdict.faults.append(
            f"{name}: {len(lost)} acknowledged messages lost, the first {short(lost[0].key)}"
        )


def short(body: bytes) -> str:
    return repr(body[:48]) + (f" ({len(body)} bytes)" if len(body) > 48 else "")
