"""What DMP's durable queues hold after a cut, compared with what was published, confirmed and acknowledged.

Pure: books and bodies in, faults out. What is promised: what was confirmed, or shown to a consumer, is there
until an acknowledgement was sent for it; an acknowledgement that is known to have been taken is not undone;
messages stand in the order of their arrival, none twice, each as it was sent; what a writer sent is there
without holes, and a publish to several queues is in all of them or in none.
"""

import math
from collections.abc import Mapping, Sequence

from tests.trials.dmp_ledger import Copy, DmpBook, QueueBook, digest, key_of
from tests.trials.tally import Verdict

Shown = Mapping[str, Sequence[bytes]]
"""Bodies by queue, in order; a queue that is not there is not among them."""


def judge(book: DmpBook, shown: Shown, until: float = math.inf) -> Verdict:
    """Compare, and take what is shown for granted from now on.

    What was confirmed by `until` must be there; of what was confirmed later the newest may be missing. If
    that is -inf nothing was ever promised, not even what an earlier verification has shown.
    """
    verdict = Verdict()
    here = {name: _find(queue, shown.get(name, ()), until, verdict) for name, queue in book.queues.items()}
    for name, queue in book.queues.items():
        if name not in shown and queue.made is not None and queue.made <= until:
            verdict.faults.append(f"{name}: a durable queue that is gone")
        _judge_order(queue, here[name], verdict)
        _judge_acks(queue, here[name], until, verdict)
        _judge_missing(queue, here[name], until, verdict)
    _judge_together(here, verdict)
    for name, queue in book.queues.items():
        _settle(queue, here[name], there=name in shown)
    return verdict


def _find(queue: QueueBook, bodies: Sequence[bytes], until: float, verdict: Verdict) -> list[Copy]:
    found: dict[bytes, Copy] = {}
    for body in bodies:
        key = key_of(body)
        copy = queue.copies.get(key)
        if copy is None:
            if key not in queue.gone:
                verdict.faults.append(f"{queue.name}: which nobody sent: {body[:48]!r}")
            elif until > -math.inf:
                verdict.faults.append(f"{queue.name}: back, though it was gone: {body[:48]!r}")
            else:  # taken, and the mode may lose that
                copy = queue.copies[key] = Copy(key, digest(body), "", 0, 0.0, confirmed=0.0)
        elif key in found:
            verdict.faults.append(f"{queue.name}: twice: {body[:48]!r}")
        elif digest(body) != copy.digest:
            verdict.faults.append(f"{queue.name}: not as it was sent: {body[:48]!r} ({len(body)} bytes)")
        if copy is not None:
            found[key] = copy
    return list(found.values())


def _judge_order(queue: QueueBook, here: Sequence[Copy], verdict: Verdict) -> None:
    base = {id(copy): place for place, copy in enumerate(queue.settled)}
    last_base = -1
    last_of: dict[str, int] = {}
    new = False
    for copy in here:
        if not copy.writer:
            continue
        place = base.get(id(copy))
        if place is not None:
            if new or place < last_base:
                verdict.faults.append(f"{queue.name}: no longer in its place: {copy.key!r}")
            last_base = place
        else:
            new = True
            if copy.place < last_of.get(copy.writer, -1):
                verdict.faults.append(f"{queue.name}: out of order: {copy.key!r}")
            last_of[copy.writer] = copy.place


def _judge_acks(queue: QueueBook, here: Sequence[Copy], until: float, verdict: Verdict) -> None:
    """`commits` counts the acknowledgements that stood."""
    undone = [copy.key for copy in here if copy.ack_confirmed < math.inf and copy.ack_confirmed <= until]
    if undone:
        text = f"{queue.name}: {len(undone)} confirmed acknowledgements undone, the first of {undone[0]!r}"
        verdict.faults.append(text)
    standing = {id(copy) for copy in here}
    verdict.commits += sum(
        copy.ack_confirmed < math.inf and id(copy) not in standing for copy in queue.copies.values()
    )


def _judge_missing(queue: QueueBook, here: Sequence[Copy], until: float, verdict: Verdict) -> None:
    standing = {id(copy) for copy in here}
    last_of: dict[str, int] = {}
    for copy in here:
        verdict.newest_kept = max(verdict.newest_kept, copy.sent)
        last_of[copy.writer] = max(last_of.get(copy.writer, -1), copy.place)
        if copy.confirmed is None:
            verdict.extra += 1
        elif copy.confirmed and not copy.acked:  # 0: it was counted before
            verdict.kept += 1
    lost: list[bytes] = []
    for copy in queue.copies.values():
        if copy.acked or id(copy) in standing:
            continue
        if copy.confirmed is not None:
            verdict.lost += 1
            verdict.oldest_lost = min(verdict.oldest_lost, copy.confirmed)
        if copy.promised(until):
            lost.append(copy.key)
        elif copy.place < last_of.get(copy.writer, -1):
            verdict.faults.append(f"{queue.name}: a hole, later ones are there: {copy.key!r}")
    if lost:
        verdict.faults.append(f"{queue.name}: {len(lost)} confirmed messages lost, the first {lost[0]!r}")


def _judge_together(here: Mapping[str, Sequence[Copy]], verdict: Verdict) -> None:
    standing = {id(copy) for copies in here.values() for copy in copies}
    for name, copies in here.items():
        for copy in copies:
            if any(not other.acked and id(other) not in standing for other in copy.others):
                verdict.faults.append(f"{name}: here, and not in the other queue: {copy.key!r}")


def _settle(queue: QueueBook, here: Sequence[Copy], *, there: bool) -> None:
    standing = {copy.key: copy for copy in here}
    queue.gone |= queue.copies.keys() - standing.keys()
    queue.gone -= standing.keys()
    queue.copies = standing
    queue.settled = list(here)
    queue.made = 0.0 if there else None
    for copy in here:
        copy.confirmed, copy.shown, copy.ack_confirmed = 0.0, None, math.inf
        copy.held = copy.acked = False
        copy.others = []
