"""Dead letters: messages that leave a queue without being acknowledged, and where they go instead.

A dead letter keeps its body and its properties, but for `expiration`, and says in the header `x-death` what
has happened to it: a table for each queue and reason, the newest first, as RabbitMQ writes it.
"""

import datetime
import struct
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from dmp.copies import CC, KEYS_MAX, keys_in
from dmp.message import Head, Message
from dmp.properties import unpack
from dmp.refusals import Refusal

if TYPE_CHECKING:
    from dmp.queues import Queue

_DEATHS_MAX = 64
"""Entries that are kept: a header must fit one frame."""


def head_of(
    message: Message, queue: bytes, reason: str, exchange: bytes, key: bytes | None, wall: float
) -> Head:
    """The head with which it is published to the dead-letter exchange; `wall`: seconds since 1970.

    `key`: the queue's for dead letters; None: the message's own, and those in `CC`. With the queue's, `CC`
    goes from the headers, as RabbitMQ has it.
    """
    old = message.head
    try:
        properties = unpack(old.properties)
        headers: dict[str, Any] = dict(old.headers)
        copies = tuple(keys_in(headers, CC))
        death = {
            "count": 1,
            "reason": reason,
            "queue": _text(queue),
            "time": datetime.datetime.fromtimestamp(int(wall), datetime.UTC),
            "exchange": _text(old.exchange),
            "routing-keys": [_text(each) for each in (old.key, *copies)],
        }
        if properties.expiration:
            death["original-expiration"] = properties.expiration
        headers["x-death"] = _with(headers.get("x-death"), death)
        for name in ("reason", "queue", "exchange"):
            headers.setdefault(f"x-first-death-{name}", death[name])
        properties.headers = headers
        properties.expiration = None
        if key is not None:
            headers.pop(CC, None)
        head = old.sent_to(exchange, key, properties.marshal())
        if key is None:
            head.more_keys = copies[:KEYS_MAX]
        return head
    except (ValueError, TypeError, ArithmeticError, OSError, struct.error, Refusal):
        # Headers that cannot be written again as they were read: better without x-death than not at all.
        return old.sent_to(exchange, key, old.properties)


def without_circles(head: Head, queues: "Sequence[Queue]", reason: str) -> "list[Queue]":
    """Without queues that it has died in before, unless somebody has rejected it on the way.

    A rejection is a decision, and may be made again; a circle without one would go round for ever.
    """
    deaths = [death for death in head.headers.get("x-death", ()) if isinstance(death, dict)]
    if reason == "rejected" or any(death.get("reason") == "rejected" for death in deaths):
        return list(queues)
    died_in = {death.get("queue") for death in deaths}
    return [queue for queue in queues if _text(queue.name) not in died_in]


def _with(deaths: object, death: dict[str, Any]) -> list[Any]:
    others = []
    for other in deaths if isinstance(deaths, list) else ():
        if isinstance(other, dict) and all(other.get(name) == death[name] for name in ("queue", "reason")):
            count = other.get("count")
            death = {**other, "count": count + 1 if isinstance(count, int) else 1, "time": death["time"]}
        else:
            others.append(other)
    return [death, *others[: _DEATHS_MAX - 1]]


def _text(name: bytes) -> str:
    return name.decode(errors="replace")
