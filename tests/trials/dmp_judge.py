"""What AMQP's durable queues hold after a cut: each by itself, as `queue_judge` has it, and all together.

A publish to several queues is in all of them or in none. In a queue with keys those of a key stand in order.
"""

import math
from collections.abc import Mapping, Sequence

from tests.trials.dmp_ledger import KEYED, DmpBook
from tests.trials.queue_judge import judge_order, judge_queue, settle_queue
from tests.trials.queue_ledger import Message
from tests.trials.tally import Verdict

Shown = Mapping[str, Sequence[bytes]]
"""Bodies by queue, in order; a queue that is not there is not among them."""


def judge(book: DmpBook, shown: Shown, until: float = math.inf) -> Verdict:
    """Compare, and take what is shown for granted from now on.

    What was confirmed by `until` must be there; of what was confirmed later the newest may be missing. If
    that is -inf nothing was ever promised, not even what an earlier verification has shown.
    """
    verdict = Verdict()
    positions = {}
    in_order = {**shown}
    for name in KEYED.keys() & shown.keys():
        in_order[name] = book.queues[name].in_order(shown[name])
    for name, queue in book.queues.items():
        found = judge_queue(queue, in_order.get(name), until)
        verdict.add(found)
        positions[name] = found.life
    if not verdict.faults:
        _judge_together(book, shown, verdict)
        _judge_keys(book, shown, verdict)
    if not verdict.faults:
        for name, queue in book.queues.items():
            settle_queue(queue, in_order.get(name), positions[name])
    return verdict


def _judge_together(book: DmpBook, shown: Shown, verdict: Verdict) -> None:
    here: dict[str, list[Message]] = {
        name: [book.queues[name].messages[body] for body in bodies] for name, bodies in shown.items()
    }
    standing = {id(message) for messages in here.values() for message in messages}
    for name, messages in here.items():
        for message in messages:
            if any(other.ack is None and id(other) not in standing for other in message.others):
                verdict.faults.append(f"{name}: here, and not in the other queue: {message.key[:48]!r}")


def _judge_keys(book: DmpBook, shown: Shown, verdict: Verdict) -> None:
    for name in KEYED:
        by_key: dict[str, list[Message]] = {}
        for body in shown.get(name, ()):
            by_key.setdefault(book.keys[body], []).append(book.queues[name].messages[body])
        for here in by_key.values():
            judge_order(name, book.queues[name].settled, here, verdict)
