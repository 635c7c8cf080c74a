"""What DMP's durable queues hold after a cut, compared with what was published, confirmed and acknowledged.

Pure: books and bodies in, faults out. What is promised: what was confirmed, or shown to a consumer, is there
until an acknowledgement was sent for it; an acknowledgement that is known to have been taken is not undone;
messages stand in the order of their arrival, none twice, each as it was sent; what a writer sent is there
without holes, and a publish to several queues is in all of them or in none.
"""

import math
from collections.abc import Mapping, Sequence

from tests.trials.dmp_ledger import Copy, DmpBook, QueueBook, digest, key_of
from tests.trials.queue_judge import judge_acks, judge_missing, judge_order
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
        known = [copy for copy in here[name] if copy.writer]
        judge_order(name, queue.settled, known, verdict)
        judge_acks(name, queue.copies.values(), here[name], until, verdict)
        judge_missing(name, queue.copies.values(), here[name], until, verdict)
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
                copy = queue.copies[key] = Copy(0.0, 0.0, key=key, digest=digest(body))
        elif key in found:
            verdict.faults.append(f"{queue.name}: twice: {body[:48]!r}")
        elif digest(body) != copy.digest:
            verdict.faults.append(f"{queue.name}: not as it was sent: {body[:48]!r} ({len(body)} bytes)")
        if copy is not None:
            found[key] = copy
    return list(found.values())


def _judge_together(here: Mapping[str, Sequence[Copy]], verdict: Verdict) -> None:
    standing = {id(copy) for copies in here.values() for copy in copies}
    for name, copies in here.items():
        for copy in copies:
            if any(other.ack is None and id(other) not in standing for other in copy.others):
                verdict.faults.append(f"{name}: here, and not in the other queue: {copy.key!r}")


def _settle(queue: QueueBook, here: Sequence[Copy], *, there: bool) -> None:
    standing = {copy.key: copy for copy in here}
    queue.gone |= queue.copies.keys() - standing.keys()
    queue.gone -= standing.keys()
    queue.copies = standing
    queue.settled = list(here)
    queue.made = 0.0 if there else None
    for copy in here:
        copy.queued = copy.answered = 0.0  # long ago
        copy.shown = copy.ack = None
        copy.held = False
        copy.others = []
