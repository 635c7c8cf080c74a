"""Actions on queues that a command has, too: it needs no broker."""

from collections.abc import Mapping

from dmp.declarations import CHANGEABLE
from shared.actions import changing
from shared.objects import Argument

ARGUMENTS: Mapping[str, Argument] = {
    "x-message-ttl": Argument("milliseconds after which a message is dead", "number"),
    "x-max-length": Argument("messages at most", "number"),
    "x-max-length-bytes": Argument("bytes of messages at most", "number"),
    "x-overflow": Argument("what goes where it is full", choices=("drop-head", "reject-publish")),
    "x-dead-letter-exchange": Argument("the exchange for dead messages; none: they are dropped"),
    "x-dead-letter-routing-key": Argument("their routing key; unless said the one that they have"),
    "x-max-priority": Argument("the highest priority; none: there are no priorities", "number"),
    "x-expires": Argument("milliseconds after which the queue goes, while nobody uses it", "number"),
    "x-single-active-consumer": Argument("whether one consumer at a time gets messages", "flag"),
    "x-eta-header": Argument("the header that says when a message is due: an ISO time, or Unix seconds"),
    "x-delivery-limit": Argument("failed tries after which a message is dead; -1: any number", "number"),
    "x-retry-ms": Argument("milliseconds that a message waits after its first failed try", "number"),
    "x-retry-max-ms": Argument("twice as long with each try, and this at most", "number"),
    "x-consumer-timeout": Argument("milliseconds that a consumer has to acknowledge a delivery", "number"),
    "x-message-deduplication": Argument("whether a message that is there is not taken again", "flag"),
    "x-cache-ttl": Argument("milliseconds for which a key is known since its message came", "number"),
    "x-rate": Argument('deliveries a second at most, as "100/s"'),
    "x-per-key": Argument("so many messages of a key are unacknowledged at a time", "number"),
    "x-fair": Argument("whether keys take turns", "flag"),
    "x-key-header": Argument("the header that is a message's key; unless said x-key"),
    "x-loss-counts": Argument("what counts as tried when a channel ends", choices=("oldest", "all", "none")),
}
"""AMQP's arguments of a queue that have a field of their own."""

CHANGE = changing(
    "change",
    "Give it other arguments; whoever declares it may go on with those that it had. One that is unset (null) "
    "is as it was declared. What is ready and too much for a lower limit is dropped, the oldest first.",
    takes={name: argument for name, argument in ARGUMENTS.items() if name in CHANGEABLE},
    answers=("changed", "dropped"),
)
