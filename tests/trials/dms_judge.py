"""What a DMS queue holds after a cut, compared with what was asked, answered and delivered.

Pure: books and bodies in, faults out. What is promised: an acknowledged PRODUCE is there until an ACK was
sent for it; an acknowledged ACK is never undone; messages stand in the order of their arrival, none twice,
none that nobody sent; what a consumer was shown is as safe as what was acknowledged; a deleted queue is gone,
and what is made by its name holds nothing of it.
"""

import math
from collections.abc import Mapping, Sequence

from tests.trials.dms_ledger import Message, QueueBook
from tests.trials.queue_judge import judge_acks, judge_missing, judge_order, short
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
    there = [
        position for position in range(least, queue.asked_position + 1) if position % 2 == (found is not None)
    ]
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
        message.life = position // 2
    queue.settled = here
    queue.messages = {message.key: message for message in (*here, *there)}
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
        if body in seen:
            verdict.faults.append(f"{queue.name}: twice: {short(body)}")
        elif message is None:
            what = "back, which was gone" if body in queue.gone else "which nobody sent"
            verdict.faults.append(f"{queue.name}: {what}: {short(body)}")
        elif life not in lives[message.life] or not position % 2:
            verdict.faults.append(f"{queue.name}: of a queue that was deleted: {short(body)}")
        else:
            here.append(message)
        seen.add(body)
    judge_order(queue.name, queue.settled, here, verdict)
    for body in dead:
        if body in seen:
            verdict.faults.append(f"{queue.name}: twice, once among the dead: {short(body)}")
        seen.add(body)
    here += [queue.messages[body] for body in dead]
    judge_acks(queue.name, queue.messages.values(), here, until, verdict)
    if position % 2:
        of_life = [message for message in queue.messages.values() if life in lives[message.life]]
        judge_missing(queue.name, of_life, here, until, verdict)
    return verdict
