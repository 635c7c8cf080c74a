"""Actions that are declared at the method which does them.

    @changing("trim", "Drop what is below an offset.", answers=("dropped",))
    async def trim(self, log: Log, arguments: Mapping[str, Any], dry_run: bool) -> Mapping[str, Any]: ...

Read from an object, `trim` is an `Action` that calls the method on that object. What several protocols do,
or a command is made from, is declared here once.
"""

from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any

import attrs

from shared.objects import MESSAGES, Action, Argument, Declaration

Method = Callable[..., Awaitable[Any]]


@attrs.frozen
class Declared(Declaration):
    """A declaration that is also a decorator: of a method, which does the action."""

    def __call__(self, method: Method) -> "DeclaredMethod":
        return DeclaredMethod(self, method)

    def done_by(self, call: Method) -> Action:
        fields = {field.name: getattr(self, field.name) for field in attrs.fields(Declaration)}
        return Action(**fields, call=call)


@attrs.frozen
class DeclaredMethod:
    """A descriptor: the action, with its method bound to the object that it is read from."""

    _declared: Declared
    _method: Method

    def __get__(self, owner: object, _: type[Any]) -> Action:
        return self._declared.done_by(partial(self._method, owner))


action = Declared
changing = partial(Declared, dry_runs=True)
"""Declares an action that can say what it would change."""

PEEK_MAX = 1000
PEEK = action(
    "peek",
    "The first messages of a queue; takes nothing.",
    takes={
        "limit": Argument(f"at most {PEEK_MAX} messages; 10", "number"),
        "from": Argument("the least position", "number"),
        "contains": "a text that they have in them; of 100,000 messages and 64 MiB at most",
    },
    looks=True,
    answers=MESSAGES,
)
PURGE = changing("purge", "Drop a queue's messages, but those that are held.", answers=("purged", "held"))
SIFTED_MAX = 10_000
"""Messages before one that is taken out by its position: they leave the row, and are in memory."""
POSITION = Argument(f"of one message, which stands among the first {SIFTED_MAX:,}", "number")
RATED_SECONDS = 20.0
"""How long a request that has a rate goes on: a client waits 30 s for an answer."""
REDRIVE = changing(
    "redrive",
    "Move dead letters back to where they came from: all, or those that fit.",
    takes={
        "position": POSITION,
        "key": "those that had this key",
        "reason": "those that died of this: ttl, max_deliveries; of AMQP expired, rejected, maxlen,"
        " delivery_limit",
        "age": "those that have been dead so long, as 10m",
        "rate": f"so many a second at most, as 100/s, for {RATED_SECONDS:g} s; the others are left",
    },
    answers=("moved", "left"),
)
MOVE = changing(
    "move",
    "Move messages to the end of another queue of this protocol, the oldest first.",
    takes={
        "to": Argument("the other queue", required=True),
        "limit": Argument("so many; else all that it has room for", "number"),
        "position": POSITION,
    },
    answers=("moved", "left"),
)
DISCARD = changing(
    "discard",
    "Delete one message.",
    takes={"position": attrs.evolve(POSITION, required=True)},
    answers=("discarded",),
)
NAMED: Mapping[str, Argument] = {
    "dedup": Argument("its name: the dedup key; AMQP's header x-deduplication-header"),
    "position": Argument("its position", "number"),
}
JOB = action(
    "job",
    "Show one message by its name or position, also one that waits for its time, or that a client holds.",
    takes=NAMED,
    looks=True,
    answers=MESSAGES,
)
CANCEL = changing(
    "cancel",
    "Take one message out by its name, or its position, unless a client holds it.",
    takes=NAMED,
    answers=("cancelled",),
)
RESCHEDULE = changing(
    "reschedule",
    "Give one message another time, unless a client holds it.",
    takes={
        **NAMED,
        "delay": "so long from now, as 10m",
        "at": "at this time: ISO 8601, or Unix milliseconds",
    },
    answers=("rescheduled",),
)
REQUEUE = changing(
    "requeue",
    "Have one message delivered now: one that waits for its time, or one that a client holds, which goes "
    "back to its queue. (What an AMQP client holds goes back when its connection is kicked.)",
    takes=NAMED,
    answers=("requeued",),
)
PAUSE = changing(
    "pause",
    "Stop deliveries; publishing goes on. A durable queue stays paused over a restart.",
    answers=("paused",),
)
RESUME = changing("resume", "Deliver again.", answers=("resumed",))
FORGET = changing("delete", "Forget what the group has committed.", answers=("deleted",))
END_SESSION = changing(
    "delete", "End the session of a client that is away.", answers=("deleted", "subscriptions")
)

END_RETAINED = changing("delete", "End what is retained of the topic.", answers=("deleted",))

SPANS = ("15m", "3h", "24h")
HISTORY = action(
    "history",
    "Its charts: rates and sizes as they were.",
    takes={
        "span": Argument("how far back", choices=SPANS, usual=SPANS[0]),
        "after": "one of its times: only what is later",
    },
    looks=True,
)


BODY: Mapping[str, Argument] = {
    "text": Argument("the message", "lines"),
    "base64": Argument("the same, where it is not UTF-8"),
}
"""The arguments that `shared.objects.a_body` reads."""


WHEN: Mapping[str, Argument] = {
    "delay_ms": Argument("milliseconds until it may be delivered", "number"),
    "priority": Argument("its priority; the highest goes first", "number"),
}
"""Arguments of a message that a queue gets, for which one need not know how its protocol says them."""


def putting(properties: str) -> Declared:
    """Declare the action that puts a message in a queue, whose arguments `a_body` reads.

    `properties`: the help of the argument of that name.
    """
    return changing(
        "messages",
        "Put one in.",
        takes={
            **BODY,
            **WHEN,
            "key": "its key, where a queue goes by keys",
            "properties": Argument(properties, "table"),
        },
        answers=("published",),
    )
