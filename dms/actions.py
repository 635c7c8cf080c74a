"""Actions on queues that a command has, too: it needs no engine."""

from collections.abc import Mapping

from shared.actions import changing
from shared.objects import Argument

OPTIONS: Mapping[str, Argument] = {
    "depth_limit": Argument("messages at most", "number"),
    "ttl_ms": Argument("milliseconds after which a message is dead; 0: it does not age", "number"),
    "max_deliveries": Argument("deliveries after which a message is dead; 0: any number", "number"),
    "dead_letter": Argument("the queue for dead messages; none: they are dropped"),
    "delay_ms": Argument("milliseconds from a PRODUCE until the first delivery", "number"),
    "retry_ms": Argument("milliseconds from a NACK until the next delivery", "number"),
    "retry_max_ms": Argument("the retry's time doubles with each NACK, up to this", "number"),
    "dedup_ms": Argument("milliseconds for which a dedup key is known, message or not", "number"),
    "loss_counts": Argument(
        "which deliveries count that a lost connection held", choices=("oldest", "all", "none")
    ),
    "priorities": Argument("how many priorities jobs have, up to 10; 0: none", "number"),
    "per_key": Argument("messages of a key that are unacknowledged at a time; 0: any number", "number"),
    "fair": Argument("keys take turns", "flag"),
    "rate": Argument("deliveries a second, as 100/s; none: any"),
    "schedule": Argument('messages at times, by "every" or "cron", "zone" and "body"', "rows"),
    "ack_ms": Argument("milliseconds for a delivery, then it returns; 0: any time", "number"),
}
"""A queue's options as the API names them; those that are not given are as the settings say."""

CHANGE = changing(
    "change",
    "Give it other options. One that is unset (null) is as the settings say.",
    takes=OPTIONS,
    answers=("changed",),
)
