"""Exchanges: which queues a message goes to.

A binding joins an exchange (the source) to a queue, or to another exchange, with a key and arguments. The
four types differ only in what they look at: nothing (fanout), the key (direct; topic by words), the headers.
Queues and exchanges that are bound are subscribers in `shared.routing`; what it answers is looked through for
exchanges, whose own answers are added. Nothing comes twice, and no circle of exchanges is walked twice.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import attrs

from dmp.declarations import Binding, ExchangeKind
from dmp.message import Head
from dmp.queues import Queue
from dmp.refusals import Code, Refusal
from shared.budget import CacheBytes
from shared.routing.index import RoutingIndex
from shared.routing.syntax import EVERY_NAME, Wildcards

DEFAULT = b""
DEFAULT_IN_RULES = b"amq.default"
"""What rules of users call the default exchange, which has no name."""
REPLY_TO = b"amq.rabbitmq.reply-to"
"""What clients consume from, and name in reply-to, to get replies without a queue of their own."""
RESERVED = b"amq."
"""What names begin with that are the broker's."""
GENERATED = b"amq.gen-"
"""What begins the name of a queue that the server names; who may declare one is asked by this."""
TYPES = ("direct", "topic", "fanout", "headers")
PREDECLARED: Mapping[bytes, str] = {
    b"amq.direct": "direct",
    b"amq.topic": "topic",
    b"amq.fanout": "fanout",
    b"amq.headers": "headers",
    b"amq.match": "headers",
}
TOPIC_WORDS = Wildcards(separator=b".", any_levels=b"#", one_level=b"*")
_CACHE_BYTES = 128 << 10
"""Of routes found, for each exchange; a connection remembers those of its own messages besides."""
STEPS_PER_MESSAGE = 8
"""Of finding a route, in the time that it takes to put a message into a queue. So messages leave others their
turn between two; one key is looked up in one (shared/routing/trie.py says how much that may be, and why)."""
FOUND_PER_STEP = 8  # destinations that a key leads to, beside those of the other keys
KEYS_STEPS_MAX = 16_384
"""Of finding what the keys of one message lead to, before another key is looked up: some milliseconds. Others
cannot have their turn meanwhile, and patterns may be made for a key to cost that much."""
HEADERS_COMPARED = 4  # of a message's headers, so many are held against a binding in a step

_MATCHES = ("all", "any", "all-with-x", "any-with-x")

Destination: TypeAlias = "Queue | Exchange"


class HeaderMatch:
    """Which headers a message must have: a headers exchange's binding.

    `x-match` says whether all of the binding's arguments must be there, with their values, or one.

    Arguments whose names begin with `x-` count only in the two forms that say so. An argument without a value
    (void) asks for the header, whatever it holds.
    """

    __slots__ = ("_wanted", "needs_all", "places")

    def __init__(self, arguments: Mapping[str, Any]) -> None:
        """Raises Refusal (PRECONDITION_FAILED)."""
        match = arguments.get("x-match", "all")
        if match not in _MATCHES:
            raise Refusal(Code.PRECONDITION_FAILED, f"x-match is one of {', '.join(_MATCHES)}")
        with_x = match.endswith("-with-x")
        self.needs_all = match.startswith("all")
        self._wanted = {
            name: value
            for name, value in arguments.items()
            if name != "x-match" and (with_x or not name.startswith("x-"))
        }
        self.places: Sequence[_Place] = tuple([_place(name, value) for name, value in self._wanted.items()])
        """Of each header that it asks for; once it stands in a `HeadersIndex`, those where it does."""

    def fits(self, headers: Mapping[str, Any]) -> bool:
        """The shorter of both is gone through, so a message with few headers is soon held against any."""
        wanted = self._wanted
        if self.needs_all:
            return len(wanted) <= len(headers) and all(self._has(headers, name) for name in wanted)
        names = wanted if len(wanted) <= len(headers) else headers
        return any(name in wanted and self._has(headers, name) for name in names)

    def _has(self, headers: Mapping[str, Any], name: str) -> bool:
        value = self._wanted[name]
        if name not in headers or value is None:
            return name in headers
        found = headers[name]  # a truth value is no number
        return bool(found == value) and isinstance(found, bool) == isinstance(value, bool)


_Place: TypeAlias = tuple[object, ...]
_ANY_VALUE, _NO_HASH = object(), object()
_EVERYWHERE: _Place = ()


def _place(name: str, value: object) -> _Place:
    """Where a binding stands that asks for this; None: for the header, whatever it holds."""
    if value is None:
        return name, _ANY_VALUE
    if isinstance(value, bytearray):
        value = bytes(value)  # which it equals
    try:
        hash(value)
    except TypeError:  # a list, a table
        return name, _NO_HASH
    return name, isinstance(value, bool), value


@attrs.define(eq=False)
class HeadersIndex:
    """The bindings of a headers exchange, each under what a message must have for it to be looked at.

    One that needs all its headers stands under the one where the fewest others stand; one that needs any,
    under each. So a message looks at few, unless what is bound was made for it to look at many.
    """

    _destinations: Mapping[Binding, Destination]
    compared: int = 0
    """The work so far, in bindings held against a message with few headers."""
    _matches: dict[Binding, HeaderMatch] = attrs.Factory(dict)
    _rows: dict[_Place, Binding | dict[Binding, None]] = attrs.Factory(dict)
    """One that stands alone has no dict: that would take more than all the rest."""

    def __len__(self) -> int:
        return len(self._matches)

    def add(self, binding: Binding, match: HeaderMatch) -> None:
        if match.needs_all:
            match.places = (min(match.places, key=lambda place: len(self._at(place)), default=_EVERYWHERE),)
        self._matches[binding] = match
        rows = self._rows
        for place in match.places:
            row = rows.setdefault(place, binding)
            if isinstance(row, dict):
                row[binding] = None
            elif row is not binding:
                rows[place] = {row: None, binding: None}

    def remove(self, binding: Binding) -> None:
        for place in self._matches.pop(binding).places:
            row = self._rows[place]
            if isinstance(row, dict):
                del row[binding]
            if not isinstance(row, dict) or not row:
                del self._rows[place]

    def match(self, headers: Mapping[str, Any]) -> Iterable[Destination]:
        found: dict[Destination, None] = {}
        self._look(_EVERYWHERE, headers, found)
        for name, value in headers.items():
            self._look((name, _ANY_VALUE), headers, found)
            self._look((name, _NO_HASH), headers, found)
            if value is not None:
                self._look(_place(name, value), headers, found)
        self.compared += len(headers)
        return found

    def _look(self, place: _Place, headers: Mapping[str, Any], found: dict[Destination, None]) -> None:
        row = self._at(place)
        self.compared += len(row) * (1 + len(headers) // HEADERS_COMPARED)
        for binding in row:
            destination = self._destinations[binding]
            if destination not in found and self._matches[binding].fits(headers):
                found[destination] = None

    def _at(self, place: _Place) -> Collection[Binding]:
        """Those that stand there."""
        row = self._rows.get(place, ())
        return (row,) if isinstance(row, Binding) else row


@attrs.define(eq=False, repr=False)
class Exchange:
    """Its bindings, and where they lead a message."""

    name: bytes
    kind: ExchangeKind
    _cached: CacheBytes | None = None  # counts what its cache of routes holds
    deleted: bool = attrs.field(default=False, init=False)
    """Its bindings are being removed (`topology`), and count for nothing."""
    bindings: dict[Binding, Destination] = attrs.field(factory=dict, init=False)
    """Those that it is the source of."""
    bound: set[Binding] = attrs.field(factory=set, init=False)  # those that it is the destination of
    _index: RoutingIndex[Destination] = attrs.field(init=False)
    _uses: dict[tuple[Destination, bytes], int] = attrs.field(factory=dict, init=False)
    """So many bindings differ in their arguments only."""
    _headers: HeadersIndex | None = attrs.field(default=None, init=False)
    _everything: bool = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        words = TOPIC_WORDS if self.kind.type == "topic" else None
        self._index = RoutingIndex(words, cache_bytes_max=_CACHE_BYTES, cache_books=self._cached)
        self._everything = self.kind.type == "fanout"
        if self.kind.type == "headers":
            self._headers = HeadersIndex(self.bindings)

    @property
    def durable(self) -> bool:
        return self.kind.durable

    def __repr__(self) -> str:
        return f"<Exchange {self.name!r} {self.kind.type}>"

    def add(self, binding: Binding, destination: Destination, arguments: Mapping[str, Any]) -> None:
        """Add a binding that is not there. Raises Refusal for arguments that make no sense."""
        if self._headers is not None:
            self._headers.add(binding, HeaderMatch(arguments))
        else:
            key = b"" if self._everything else binding.key
            uses = self._uses.get((destination, key), 0)
            self._uses[destination, key] = uses + 1
            if not uses:
                self._index.subscribe(destination, EVERY_NAME if self._everything else key)
        self.bindings[binding] = destination

    def remove(self, binding: Binding) -> None:
        """Remove a binding, which must be there."""
        destination = self.bindings.pop(binding)
        if self._headers is not None:
            self._headers.remove(binding)
            return
        key = b"" if self._everything else binding.key
        uses = self._uses.pop((destination, key)) - 1
        if uses:
            self._uses[destination, key] = uses
        else:
            self._index.unsubscribe(destination, EVERY_NAME if self._everything else key)

    def forget_routes(self) -> None:
        """Drop the kept routes of a deleted exchange."""
        self._index.forget_matches()

    def wild_words(self, key: bytes) -> int:
        """The words of a binding's key, where it has so many wildcards that this may cost each match."""
        return TOPIC_WORDS.wild_levels(key) if self.kind.type == "topic" else 0

    @property
    def steps(self) -> int:
        """The work of all matches so far: places looked at in the index, bindings held against headers."""
        return self._index.visits if self._headers is None else self._headers.compared

    def match(self, head: Head) -> Iterable[Destination]:
        """The destinations of its own bindings. Raises Refusal where headers cannot be decoded."""
        if self._headers is None:
            return self._match_each(head) if head.more_keys else self._index.match(head.key)
        return self._headers.match(head.headers) if self._headers else ()

    def _match_each(self, head: Head) -> Iterable[Destination]:
        """By each of its keys. Raises Refusal where one after the other costs too much."""
        if self._everything:
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


def route(
    first: Exchange, head: Head, exchanges: Callable[[bytes], Exchange | None]
) -> tuple[tuple[Queue, ...], int]:
    """The queues that a message published to `first` goes to, each once.

    And how much work it was to find them, beside that of putting messages into so many queues.
    """
    queues: dict[Queue, None] = {}
    seen = {first}
    waiting = [first]
    steps = 0
    while waiting:
        exchange = waiting.pop()
        steps -= exchange.steps
        found = [destination for destination in exchange.match(head) if not destination.deleted]
        steps += exchange.steps
        if not found and exchange.kind.alternate is not None:
            alternate = exchanges(exchange.kind.alternate)
            found = [] if alternate is None else [alternate]
        for destination in found:
            if not isinstance(destination, Exchange):
                queues[destination] = None
            elif destination not in seen:
                seen.add(destination)
                waiting.append(destination)
    return tuple(queues), steps // STEPS_PER_MESSAGE + len(seen) - 1
