"""Exchanges: which queues a message goes to.

A binding joins an exchange (the source) to a queue, or to another exchange, with a key and arguments. The
four types differ only in what they look at: nothing (fanout), the key (direct; topic by words), the headers.
Queues and exchanges that are bound are subscribers in `shared.routing`; what it answers is looked through for
exchanges, whose own answers are added. Nothing comes twice, and no circle of exchanges is walked twice.
"""

from __future__ import annotations

from collections.abc import Callable, ItemsView, Iterable, Mapping
from typing import Any, TypeAlias

import attrs

from dmp.declarations import Binding, ExchangeKind
from dmp.message import Head
from dmp.queues import Queue
from dmp.refusals import Code, Refusal
from shared.budget import CacheBytes
from shared.routing.index import RoutingIndex
from shared.routing.syntax import EVERY_NAME, EveryName, Wildcards

DEFAULT = b""
DEFAULT_IN_RULES = b"amq.default"
"""What rules of users call the default exchange, which has no name."""
REPLY_TO = b"amq.rabbitmq.reply-to"
"""What clients consume from, and name in reply-to, to get replies without a queue of their own."""
RESERVED = b"amq."
"""What names begin with that are the broker's."""
GENERATED = b"amq.gen-"
"""What begins the name of a queue that the server names; who may declare one is asked by this."""
PREDECLARED: Mapping[bytes, str] = {
    b"amq.direct": "direct",
    b"amq.topic": "topic",
    b"amq.fanout": "fanout",
    b"amq.headers": "headers",
    b"amq.match": "headers",
}
TOPIC_WORDS = Wildcards(separator=b".", any_levels=b"#", one_level=b"*", empty_level=False)
_CACHE_BYTES = 128 << 10
"""The bound of an exchange's cache of routes. A connection remembers the routes of its own messages
besides."""
FOUND_PER_STEP = 8  # destinations that a key leads to, beside those of the other keys
KEYS_STEPS_MAX = 16_384
"""The bound of steps for the keys of one message, before another key is looked up: some milliseconds. Others
cannot have their turn meanwhile, and patterns may be made for a key to cost that much."""

_MATCHES = ("all", "any", "all-with-x", "any-with-x")

Destination: TypeAlias = "Queue | Exchange"
_VOID, _VALUE = "?", "="
"""What stands before the name of a header: whatever it holds; with this value."""
_ANYTHING, _TRUE, _FALSE = object(), object(), object()


def check_not_default(name: bytes) -> None:
    """Raises Refusal for the default exchange, which takes messages and nothing else."""
    if name == DEFAULT:
        raise Refusal(Code.ACCESS_REFUSED, "operation not permitted on the default exchange")


class HeaderMatch:
    """Which headers a message must have: a headers exchange's binding.

    `x-match` says whether all of the binding's arguments must be there, with their values, or one.

    Arguments whose names begin with `x-` count only in the two forms that say so. An argument without a value
    (void) asks for the header, whatever it holds.
    """

    __slots__ = ("_needs_all", "_wanted")

    def __init__(self, arguments: Mapping[str, Any]) -> None:
        """Raises Refusal (PRECONDITION_FAILED)."""
        match = arguments.get("x-match", "all")
        if match not in _MATCHES:
            raise Refusal(Code.PRECONDITION_FAILED, f"x-match is one of {', '.join(_MATCHES)}")
        with_x = match.endswith("-with-x")
        self._needs_all = match.startswith("all")
        self._wanted = {
            _VOID + name if value is None else _VALUE + name: _comparable(value)
            for name, value in arguments.items()
            if name != "x-match" and (with_x or not name.startswith("x-"))
        }.items()

    def fits(self, offered: ItemsView[str, object]) -> bool:
        """Whether a message that has this (`_offered`) goes there."""
        if self._needs_all:
            return self._wanted <= offered
        return not self._wanted.isdisjoint(offered)


def _comparable(value: object) -> object:
    """Equal to another's where the two are the same for a binding, however clients write them. A truth value
    is no number."""
    plain = _PLAIN.get(type(value))
    return value if plain is None else plain(value)


_PLAIN: Mapping[type, Callable[[Any], object]] = {
    type(None): lambda _: _ANYTHING,
    bool: lambda value: _TRUE if value else _FALSE,
    str: str.encode,  # what is not UTF-8, and what is no text, is read as bytes
}


def _offered(headers: Mapping[str, Any]) -> dict[str, object]:
    """What a message with these headers has of what a binding may want."""
    offered: dict[str, object] = {}
    for name, value in headers.items():
        offered[_VOID + name] = _ANYTHING
        if value is not None:
            offered[_VALUE + name] = _comparable(value)
    return offered


@attrs.define(eq=False, repr=False)
class Exchange:
    """An exchange: its bindings, and where they lead a message."""

    name: bytes
    kind: ExchangeKind
    _cached: CacheBytes | None = None  # counts what its cache of routes holds
    deleted: bool = attrs.field(default=False, init=False)
    """The exchange's bindings are being removed (`topology`), and count for nothing."""
    bindings: dict[Binding, Destination] = attrs.field(factory=dict, init=False)
    """The bindings that the exchange is the source of."""
    bound: set[Binding] = attrs.field(factory=set, init=False)  # those that it is the destination of
    _index: RoutingIndex[Destination] = attrs.field(init=False)
    _uses: dict[tuple[Destination, bytes | EveryName], int] = attrs.field(factory=dict, init=False)
    """How many bindings differ only in what this exchange does not look at."""
    _headers: dict[tuple[Destination, bytes], HeaderMatch] | None = attrs.field(default=None, init=False)
    """Of a headers exchange, by where they lead and their arguments. A message is held against each: 1 ms for
    5,000 of them."""

    def __attrs_post_init__(self) -> None:
        words = TOPIC_WORDS if self.kind.type == "topic" else None
        self._index = RoutingIndex(words, cache_bytes_max=_CACHE_BYTES, cache_books=self._cached)
        if self.kind.type == "headers":
            self._headers = {}

    @property
    def durable(self) -> bool:
        return self.kind.durable

    def __repr__(self) -> str:
        return f"<Exchange {self.name!r} {self.kind.type}>"

    def add(self, binding: Binding, destination: Destination, arguments: Mapping[str, Any]) -> None:
        """Add a binding that is not there. Raises Refusal for arguments that make no sense."""
        match = None if self._headers is None else HeaderMatch(arguments)
        told_by = self._told_by(binding)
        uses = self._uses.get((destination, told_by), 0)
        self._uses[destination, told_by] = uses + 1
        if not uses:
            if self._headers is not None and match is not None:
                self._headers[destination, binding.arguments] = match
            else:
                self._index.subscribe(destination, told_by)
        self.bindings[binding] = destination

    def remove(self, binding: Binding) -> None:
        """Remove a binding, which must be there."""
        destination = self.bindings.pop(binding)
        told_by = self._told_by(binding)
        uses = self._uses.pop((destination, told_by)) - 1
        if uses:
            self._uses[destination, told_by] = uses
        elif self._headers is not None:
            del self._headers[destination, binding.arguments]
        else:
            self._index.unsubscribe(destination, told_by)

    def _told_by(self, binding: Binding) -> bytes | EveryName:
        """By what of it a message is told to go there."""
        if self._headers is not None:
            return binding.arguments
        return EVERY_NAME if self.kind.type == "fanout" else binding.key

    def forget_routes(self) -> None:
        """Drop the kept routes of a deleted exchange."""
        self._index.forget_matches()

    def wild_words(self, key: bytes) -> int:
        """The words of a binding's key, where it has so many wildcards that this may cost each match."""
        return TOPIC_WORDS.wild_levels(key) if self.kind.type == "topic" else 0

    def match(self, head: Head) -> Iterable[Destination]:
        """The destinations of its own bindings. Raises Refusal."""
        if self._headers is not None:
            if not self._headers:
                return ()  # and headers that nobody looks at are not decoded
            offered = _offered(head.headers).items()
            return {leads_to: None for (leads_to, _), match in self._headers.items() if match.fits(offered)}
        return self._match_each(head) if head.more_keys else self._index.match(head.key)

    def _match_each(self, head: Head) -> Iterable[Destination]:
        """By each of its keys. Raises Refusal where one after the other costs too much."""
        if self.kind.type == "fanout":
            return self._index.match(head.key)
        found: dict[Destination, None] = {}
        before, repeated = self._index.visits, 0
        for key in (head.key, *head.more_keys):
            if self._index.visits - before + repeated // FOUND_PER_STEP > KEYS_STEPS_MAX:
                text = "CC and BCC: too many bindings stand against the keys"
                raise Refusal(Code.PRECONDITION_FAILED, text)
            matched = self._index.match(key)
            found.update(dict.fromkeys(matched))
            repeated += len(matched)
        return found


def route(first: Exchange, head: Head, exchanges: Callable[[bytes], Exchange | None]) -> tuple[Queue, ...]:
    """The queues that a message published to `first` goes to, each once. Raises Refusal."""
    queues: dict[Queue, None] = {}
    seen = {first}
    waiting = [first]
    while waiting:
        exchange = waiting.pop()
        destinations = [one for one in exchange.match(head) if not one.deleted]
        if not destinations and exchange.kind.alternate is not None:
            alternate = exchanges(exchange.kind.alternate)
            destinations = [] if alternate is None else [alternate]
        reached = [destination for destination in destinations if not isinstance(destination, Exchange)]
        queues.update(dict.fromkeys(reached))  # in one call: there may be 50,000
        if len(reached) < len(destinations):
            for destination in destinations:
                if isinstance(destination, Exchange) and destination not in seen:
                    seen.add(destination)
                    waiting.append(destination)
    return tuple(queues)
