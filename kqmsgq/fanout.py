"""From a producer's input to consumers: messages are forwarded as slices of the bytes that were read.

No message is parsed into fields or encoded again. One pass over a read finds where messages end and which
consumers get each; a run for the same consumers is one slice. At the end each consumer gets one write, or a
few large ones. Consumers of the same messages share the joined bytes (`shared.fanout`).

Two things make the pass cheap. Where headers repeat it steps over many messages at once (`kqmsgq.repeats`).
Elsewhere a message costs one lookup of its first bytes (`Routes.known`). Unknown first bytes are checked in
full by `Queues.look`.
"""

from collections.abc import Iterable, Iterator
from itertools import chain, groupby
from operator import itemgetter
from struct import Struct
from typing import TYPE_CHECKING

from kqmsgq.queues import KNOWN_BYTES, Consumer, Queues, no_message
from kqmsgq.repeats import ONE_BY_ONE, Pattern, Repeat, Repeats
from kqmsgq.wire import HEADER_BYTES, LENGTH_BYTES, MESSAGE, NAME_AT
from shared.access import WRITE
from shared.budget import CacheBytes
from shared.errors import RemoteProtocolError
from shared.fanout import ROUTES_MAX, VIEWED_BYTES, Bundle, Route, piece_of
from shared.turns import ITEMS, Turn

if TYPE_CHECKING:
    from shared.access import Guard
    from shared.recording.recorder import Track

PIECES_MAX = 16 * 1024
"""Slices that one pattern adds to bundles before the clock is looked at, about: some milliseconds. A read has
thousands of messages, and each may be for hundreds of consumers."""

ALIKE_MAX = 16
"""Messages that `publish_alike` compares one by one, 60 ns each. A pattern compares more of them faster."""

FIXED_BYTES = NAME_AT + KNOWN_BYTES
KNOWN_ENTRY_BYTES = 160
"""Memory of an entry in a producer's own known routes, beside its bytes."""
PART_BYTES, PLACE_BYTES = 256, 72
"""Memory of a plan for each bundle, and for each place of one."""

SEARCHED_BYTES = 512
"""In less input no pattern is looked for, which takes as long as a few messages."""


class _DeniedError(Exception):
    """The user may not send this message."""


class Producer:
    """What one producer sends, on its way to consumers. `more`: the last `publish` left whole messages."""

    __slots__ = (
        "_begins_turns",
        "_delivered",
        "_epoch",
        "_error",
        "_guard",
        "_known",
        "_known_cached",
        "_known_epoch",
        "_messages",
        "_peer",
        "_queues",
        "_repeats",
        "_track",
        "_turn",
        "_unrouted",
        "_user",
        "denied",
        "messages",
        "more",
    )

    def __init__(self, queues: Queues, track: "Track | None" = None, turn: Turn | None = None) -> None:
        """`turn`: that of a session, which begins it; else each `publish` is a turn."""
        self._queues = queues
        self._track = track
        self._repeats: Repeats[Route[Consumer]] = Repeats(self._look_on, CacheBytes(queues.caches))
        self._known_cached = CacheBytes(queues.caches)
        self._epoch = queues.routes.epoch
        self._turn = turn or Turn()
        self._begins_turns = turn is None
        self.messages = 0
        """Messages forwarded so far."""
        self._messages = self._delivered = self._unrouted = 0  # of this pass
        self.more = False
        self.denied = 0
        """Messages dropped because no rule allows them."""
        self._error: RemoteProtocolError | _DeniedError | None = None  # why the last pass ended
        self._guard: Guard | None = None
        self._user = self._peer = ""
        # As `Routes.known`, for a producer that may not write to all queues.
        self._known: dict[bytes, Route[Consumer]] = {}
        self._known_epoch = -1

    def restrict(self, user: str, guard: "Guard | None", peer: str) -> None:
        """From now on `guard` decides whether the user may write to a queue. None: to all."""
        self._user, self._guard, self._peer = user, guard, peer
        self._known_epoch = self._epoch = -1  # known routes were made under other rules

    def publish(self, data: bytes, at: int = 0) -> int:
        """Forward the whole messages of `data` from `at` on, until a turn is over; returns where they end.

        Messages that the user may not send are dropped and counted. Raises RemoteProtocolError at malformed
        bytes; the messages before them are forwarded.
        """
        if self._begins_turns:
            self._turn.begin()
        while True:
            at = self.forward(data, at)
            error, self._error = self._error, None
            if error is None:
                return at
            if isinstance(error, RemoteProtocolError):
                raise error
            found = self._queues.look(data, at)
            if found is None or found[2] > len(data):
                return at
            assert self._guard is not None
            name = data[at + NAME_AT : found[1] - LENGTH_BYTES]
            self._guard.refuse(self._user, WRITE, name, self._peer)
            self.denied += 1
            at = found[2]
            if self._turn.over():
                self.more = at < len(data)
                return at

    def publish_alike(self, data: bytes) -> bool:
        """Forward a read of one message, or of a few of one size for one queue, where the route is known.

        Fast path above `forward`, for reads of few messages of 100 bytes. In memory 4 take 1.35 us in place
        of 2.2, 8 take 1.7 in place of 3.5, and 16 take 2.3 in place of 3.2.
        """
        size = len(data)
        if size < HEADER_BYTES:
            return False
        fixed = data[4] + FIXED_BYTES
        body = fixed + 2
        one = body + int.from_bytes(data[fixed:body], "big")
        if one == size:
            count = 1
        else:
            count, rest = divmod(size, one)
            if rest or not 0 < count <= ALIKE_MAX:
                return False
            head = data[:body]
            for at in range(one, size, one):
                if not data.startswith(head, at):
                    return False
        route = self._known_routes().get(data[:fixed])
        if route is None:
            return False
        self._write(route, data, count, size)
        if self._track is not None:
            self._track.record(count, data)
        return True

    def publish_first(self, message: bytes) -> bool:
        """Take a whole message; the next `publish` forwards it. False: it is malformed or denied.

        Where 256 KiB are read at once, messages of 100 KB so take 128 us a MiB in place of 236.
        """
        route = self._known_routes().get(message[: message[4] + NAME_AT + KNOWN_BYTES])
        if route is None:  # as of all from 64 KiB on
            route, end = self._unknown(message, 0)
            if end > len(message):
                return False
        self._messages = self._delivered = self._unrouted = 0
        self._add(route, message, 1)
        self._count(len(message))
        if self._track is not None:
            self._track.record(1, message)
        return True

    def _known_routes(self) -> dict[bytes, Route[Consumer]]:
        """The known routes by first bytes, as this producer may use them."""
        routes = self._queues.routes
        if self._guard is None:
            return routes.known
        if self._known_epoch != routes.epoch or len(self._known) > ROUTES_MAX:
            self._known_epoch = routes.epoch
            self._forget_known()
        return self._known

    def _forget_known(self) -> None:
        self._known = {}
        self._known_cached.cleared()

    def end(self) -> None:
        """The producer has left: free what it remembers."""
        self._repeats.forget()
        self._forget_known()

    def _look(self, data: bytes, at: int) -> tuple[Route[Consumer], int, int] | None:
        """As `Queues.look`. Raises _DeniedError where the user may not write there."""
        looked = self._queues.look(data, at)
        if looked is None or self._guard is None:
            return looked
        name = data[at + NAME_AT : looked[1] - LENGTH_BYTES]
        if not self._guard.may(self._user, WRITE, name):
            raise _DeniedError
        head = data[at : looked[1] - LENGTH_BYTES + KNOWN_BYTES]
        if self._queues.routes.known.get(head) is looked[0]:
            known = self._known_routes()
            size = KNOWN_ENTRY_BYTES + len(head)
            if not self._known_cached.fits(size):
                self._forget_known()
                known = self._known
            if head not in known:
                self._known_cached.add(size)
                known[head] = looked[0]
        return looked

    def forward(self, data: bytes, at: int = 0) -> int:
        """One pass of `publish`: it ends before a message that is malformed or denied, and raises nothing."""
        routes = self._queues.routes
        first, size = at, len(data)
        latest = size - HEADER_BYTES  # where the last message may begin
        self._messages = self._delivered = self._unrouted = 0
        self._error = None
        route, start, run = routes.nowhere, at, 0
        stuck = False
        over = False
        while not (stuck or over) and at <= latest:
            found = self._pattern(data, at) if size - at >= SEARCHED_BYTES else None
            if found is None:
                at, route, start, run, stuck = self._one_by_one(data, at, route, start, run)
                over = at <= latest and self._turn.over_now()
                continue
            if run:
                self._add(route, piece_of(data, start, at), run)
                run = 0
            at = self._add_pattern(*found, data, at)
            over = at <= latest and self._turn.over_now()
        self.more = not stuck and at <= latest
        if latest < at < size and data[at] != MESSAGE:  # too short for a message, and malformed already
            self._error = no_message(data, at)
        if run and not (self._messages or routes.touched):  # one slice: often in small reads
            self._write(route, piece_of(data, start, at), run, at - first)
        else:
            if run:
                self._add(route, piece_of(data, start, at), run)
            self._deliver(at - first)
        if self._track is not None and at > first:
            self._track.record(self._messages, memoryview(data)[first:at])
        return at

    def _one_by_one(
        self, data: bytes, at: int, last: Route[Consumer], start: int, run: int
    ) -> tuple[int, Route[Consumer], int, int, bool]:
        """Find the routes of some messages, and add each run that has ended.

        `last`: the route of the newest messages, `run` of them, from `start` on. Returns where it stopped,
        these three as they are then, and whether the message there is not whole, malformed or denied.
        """
        routes = self._queues.routes
        known = routes.known if self._guard is None else self._known_routes()  # in small reads one call less
        put, nowhere = routes.put, routes.nowhere
        size = len(data)
        latest = size - HEADER_BYTES
        messages = self._messages
        stuck = over = False
        for _ in range(ONE_BY_ONE):
            fixed = at + data[at + 4] + FIXED_BYTES
            route = known.get(data[at:fixed])
            if route is None:
                route, after = self._unknown(data, at)
                known = self._known_routes()
                over = self._turn.over_now()
            elif fixed + 2 > size:
                after = size + 1
            else:
                after = fixed + 2 + (data[fixed] << 8 | data[fixed + 1])
            if after > size:
                stuck = True
                break
            if route is not last:
                if run:
                    messages += run
                    if last is nowhere:
                        self._unrouted += run
                    else:
                        over = over or (len(last.bundles) > ITEMS and self._turn.over_now())
                        small = at - start < VIEWED_BYTES  # as nearly always: one call less
                        put(last, data[start:at] if small else piece_of(data, start, at), run)
                last, start, run = route, at, 0
            elif not run:
                start = at
            run += 1
            at = after
            if at > latest or over:
                break
        self._messages = messages
        return at, last, start, run, stuck

    def _unknown(self, data: bytes, at: int) -> tuple[Route[Consumer], int]:
        """The route of a message that is checked in full, and where it ends.

        It ends behind `data` if it is not whole, and if it is malformed or denied, as `_error` says then.
        """
        try:
            looked = self._look(data, at)
        except (RemoteProtocolError, _DeniedError) as refused:
            self._error = refused
            looked = None
        if looked is None:
            return self._queues.routes.nowhere, len(data) + 1
        return looked[0], looked[2]

    def _write(self, route: Route[Consumer], piece: bytes | memoryview, messages: int, size: int) -> None:
        """Write and count messages, `size` bytes that were read, where they are all of this pass."""
        self._messages = messages
        self.messages += messages
        counts = self._queues.counts
        counts.messages_in += messages
        counts.bytes_in += size
        if not route.fan:
            counts.messages_unrouted += messages
            return
        counts.messages_delivered += messages * route.fan
        for bundle in route.bundles:
            for consumer in bundle.members:
                consumer.messages += messages
                consumer.write(piece)

    def _add(self, route: Route[Consumer], piece: bytes | memoryview, messages: int) -> None:
        """Add a run of messages to the bundles of its route."""
        self._messages += messages
        if not route.fan:
            self._unrouted += messages
            return
        self._queues.routes.put(route, piece, messages)

    def _add_pattern(self, pattern: Pattern[Route[Consumer]], count: int, data: bytes, at: int) -> int:
        """Add `count` repetitions of a pattern at `at`, or as many as are one step; returns where they
        end."""
        plan: _Plan | None = pattern.plan
        if plan is None:
            plan = _Plan(pattern)
            self._repeats.keep_plan(pattern, plan, plan.memory_bytes)
        if plan.pieces:
            count = min(count, PIECES_MAX // plan.pieces + 1)
        self._messages += count * pattern.messages
        self._unrouted += count * plan.unrouted
        end = at + count * pattern.size
        put_all = self._queues.routes.put_all
        for bundle, messages in plan.whole:
            put_all(bundle, (piece_of(data, at, end),), count * messages)
        if plan.parts:
            pieces = tuple(zip(*plan.cut.iter_unpack(memoryview(data)[at:end]), strict=True))
            for bundle, places, messages in plan.parts:
                if len(places) == 1:
                    found: Iterable[bytes] = pieces[places[0]]
                else:
                    found = chain.from_iterable(zip(*[pieces[place] for place in places], strict=True))
                put_all(bundle, found, count * messages)
        return end

    def _deliver(self, taken_bytes: int) -> None:
        """Write each bundle to its consumers."""
        delivered = 0
        for consumers, chunk, messages in self._queues.routes.gathered():
            for consumer in consumers:
                consumer.messages += messages
                consumer.write(chunk)
                delivered += messages
        self._delivered += delivered
        self._count(taken_bytes)

    def _count(self, taken_bytes: int) -> None:
        self.messages += self._messages
        counts = self._queues.counts
        counts.messages_in += self._messages
        counts.bytes_in += taken_bytes
        counts.messages_delivered += self._delivered
        counts.messages_unrouted += self._unrouted

    def _pattern(self, data: bytes, at: int) -> tuple[Pattern[Route[Consumer]], int] | None:
        """A pattern that saves work at `at`, and how often it repeats there."""
        routes = self._queues.routes
        if self._epoch != routes.epoch:
            self._epoch = routes.epoch
            self._repeats.forget()
        found = self._repeats.at(data, at)
        if self._epoch != routes.epoch:  # by what was looked at just now
            self._epoch = routes.epoch
            self._repeats.forget()
            return None
        return found

    def _look_on(self, data: bytes, at: int) -> Iterator[Repeat[Route[Consumer]]]:
        """Yield messages from `at` on, up to a malformed one, which `forward` will meet again."""
        while at <= len(data) - HEADER_BYTES and not self._turn.over():
            try:
                looked = self._look(data, at)
            except (RemoteProtocolError, _DeniedError):
                return
            if looked is None or looked[2] > len(data):
                return
            route, body, ends = looked
            yield Repeat(at, body, ends, route)
            at = ends


class _Plan:
    """What to do with a pattern. `cut` cuts it into runs of messages for the same consumers.

    `whole`: the bundles that get all of it. `parts`: the others, with the places of their runs. Both with the
    number of messages. `pieces`: what a repetition adds to bundles; a whole one is one piece anyway.
    """

    __slots__ = ("cut", "memory_bytes", "parts", "pieces", "unrouted", "whole")

    def __init__(self, pattern: Pattern[Route[Consumer]]) -> None:
        self.unrouted = place = 0
        cut = ""
        messages: dict[int, int] = {}
        places: dict[int, tuple[Bundle[Consumer], list[int]]] = {}
        for route, run in groupby(pattern.spans, itemgetter(0)):
            those = [*run]
            size = those[-1][2] - those[0][1]
            if not route.fan:
                self.unrouted += len(those)
                cut += f"{size}x"
                continue
            cut += f"{size}s"
            for bundle in route.bundles:
                key = id(bundle)
                messages[key] = messages.get(key, 0) + len(those)
                places.setdefault(key, (bundle, []))[1].append(place)
            place += 1
        self.cut = Struct(cut)
        self.whole = [
            (bundle, messages[key])
            for key, (bundle, _) in places.items()
            if messages[key] == pattern.messages
        ]
        self.parts = [
            (*part, messages[key]) for key, part in places.items() if messages[key] < pattern.messages
        ]
        self.pieces = sum(len(places) for _, places, _ in self.parts)
        self.memory_bytes = PART_BYTES * len(places) + PLACE_BYTES * self.pieces
