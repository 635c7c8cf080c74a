"""What a queue holds after a cut, compared with what was asked, answered and delivered: DMS's or AMQP's.

Pure: books and bodies in, faults out. What is promised: an acknowledged message is there until an ACK was
sent for it; an acknowledged ACK is never undone; messages stand in the order of their arrival, none twice,
none that nobody sent; what a consumer was shown is as safe as what was acknowledged; a deleted queue is gone,
and what is made by its name holds nothing of it.
"""

import math
from collections.abc import Iterable, Mapping, Sequence

from tests.trials.queue_ledger import Message, QueueBook
from tests.trials.tally import Verdict


def judge_queue(
    queue: QueueBook, found: Sequence[bytes] | None, until: float = math.inf, dead: Sequence[bytes] = ()
) -> Verdict:
    """Compare; `found` is the queue's messages in order, None where there is no such queue.

    `dead`: those of its messages that stand in the queue that its dead move to.

    What was acknowledged by `until` must have stood; what was later may be undone, the newest first. If that
    is -inf nothing was ever promised, not even what was verified before. `Verdict.life` becomes the position.
    """
    least = max([step.position for step in queue.steps if step.promised(until)], default=queue.position)
    if until == -math.inf:
        least = 0
    lives = queue.lives()
    for message in queue.messages.values():
        if message.promised(until):
            least = max(least, 2 * lives[message.life][0] + 1)
    most = max(queue.asked_position, queue.most if until == -math.inf else 0)
    there = [position for position in range(least, most + 1) if position % 2 == (found is not None)]
    if not there:
        what = "gone" if found is None else f"there ({len(found)} messages), though deleted"
        return Verdict(faults=[f"{queue.name}: {what}; it may be at {least} to {queue.asked_position}"])
    nearest: Verdict | None = None
    for position in reversed(there):
        verdict = _judge_at(queue, position, lives, found or (), until, dead)
        if not verdict.faults:
            return verdict
        if nearest is None or verdict.kept > nearest.kept:
            nearest = verdict
    assert nearest is not None
    return nearest


def settle_queue(
    queue: QueueBook, found: Sequence[bytes] | None, position: int, dead: Sequence[bytes] = ()
) -> None:
    """Begin a new page: what was found is what stands, whatever had been asked."""
    here = [queue.messages[body] for body in found or ()]
    there = [queue.messages[body] for body in dead]
    queue.gone.update(queue.messages.keys() - set(found or ()) - set(dead))
    for message in (*here, *there):
        message.ack = None  # it never came to pass, and never will
        message.held = False
        message.told = message.answered or message.told
        message.queued = message.answered = 0.0  # long ago
        message.refused = ""
        message.others = []
        message.life = position // 2
    queue.settled = here
    queue.messages = {message.key: message for message in (*here, *there)}
    queue.most = max(queue.most, queue.asked_position)
    queue.steps.clear()
    queue.position = position


def _judge_at(
    queue: QueueBook,
    position: int,
    lives: Mapping[int, range],
    found: Sequence[bytes],
    until: float,
    dead: Sequence[bytes],
) -> Verdict:
    """As if the queue were at this position now."""
    verdict = Verdict(life=position)
    life = position // 2
    verdict.deletes = sum(
        step.acknowledged and step.position <= position and step.position % 2 == 0 for step in queue.steps
    )
    here: list[Message] = []
    seen: set[bytes] = set()
    for body in found:
        message = queue.messages.get(body)
        if message is None and until == -math.inf and body in queue.gone:  # taken, and the mode may lose that
            message = queue.messages[body] = Message(0.0, 0.0, key=body, life=life)
        if body in seen:
            verdict.faults.append(f"{queue.name}: twice: {_short(body)}")
        elif message is None:
            what = "back, which was gone" if body in queue.gone else "which nobody sent"
            verdict.faults.append(f"{queue.name}: {what}: {_short(body)}")
        elif life not in lives.get(message.life, (message.life,)) or not position % 2:
            verdict.faults.append(f"{queue.name}: of a queue that was deleted: {_short(body)}")
        else:
            here.append(message)
        seen.add(body)
    judge_order(queue.name, queue.settled, here, verdict)
    for body in dead:
        if body in seen:
            verdict.faults.append(f"{queue.name}: twice, once among the dead: {_short(body)}")
        seen.add(body)
    here += [queue.messages[body] for body in dead]
    _judge_acks(queue.name, queue.messages.values(), here, until, verdict)
    if position % 2:
        of_life = [
            message for message in queue.messages.values() if life in lives.get(message.life, (message.life,))
        ]
        _judge_missing(queue.name, of_life, here, until, verdict)
    return verdict


def judge_order(name: str, settled: Sequence[Message], here: Sequence[Message], verdict: Verdict) -> None:
    """Those found before keep their places, and what came since stands behind, in the order of arrival."""
    base = {id(message): place for place, message in enumerate(settled)}
    last_of: dict[str, int] = {}
    last_base = -1
    new = False
    earliest_after = math.inf
    for message in reversed(here):
        if earliest_after < message.queued:
            verdict.faults.append(
                f"{name}: before one that was acknowledged when it was sent: {_short(message.key)}"
            )
            break
        if message.answered is not None:
            earliest_after = min(earliest_after, message.answered)
    for message in here:
        place = base.get(id(message))
        if place is not None:
            if new or place < last_base:
                verdict.faults.append(f"{name}: no longer in its place: {_short(message.key)}")
            last_base = place
            continue
        new = True
        if message.place < last_of.get(message.writer, -1):
            verdict.faults.append(f"{name}: out of order: {_short(message.key)}")
        last_of[message.writer] = message.place


def _judge_acks(
    name: str, messages: Iterable[Message], here: Sequence[Message], until: float, verdict: Verdict
) -> None:
    """No acknowledged ACK is undone. `commits` counts the ACKs that stood."""
    undone = [message for message in here if message.ack is not None and message.ack.acknowledged]
    broken = [message for message in undone if message.ack is not None and message.ack.promised(until)]
    if broken:
        verdict.faults.append(
            f"{name}: {len(broken)} acknowledged ACKs undone, the first of {_short(broken[0].key)}"
        )
    verdict.lost += len(undone)
    standing = {id(message) for message in here}
    verdict.commits += sum(
        message.ack is not None and message.ack.acknowledged and id(message) not in standing
        for message in messages
    )


def _judge_missing(
    name: str, messages: Iterable[Message], here: Sequence[Message], until: float, verdict: Verdict
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
    lost: list[Message] = []
    for message in messages:
        if message.refused or message.ack is not None or id(message) in standing:
            continue
        if message.acknowledged:
            verdict.lost += 1
            verdict.oldest_lost = min(verdict.oldest_lost, message.answered or 0.0)
        if message.must_stand(until):
            lost.append(message)
        elif message.place < last_of.get(message.writer, -1):
            verdict.faults.append(f"{name}: a hole, later ones are there: {_short(message.key)}")
    if lost:
        verdict.faults.append(
            f"{name}: {len(lost)} acknowledged messages lost, the first {_short(lost[0].key)}"
        )


def _short(body: bytes) -> str:
    return repr(body[:48]) + (f" ({len(body)} bytes)" if len(body) > 48 else "")
