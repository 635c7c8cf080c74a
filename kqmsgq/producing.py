"""A producer's input: whole messages go on to consumers as they are, in slices of what was read.

Nothing is taken apart or written anew. One pass over what a read brought finds only where messages end and
whom each is for; a run of whole messages for the same consumers is one slice of that read. At the end each
consumer gets what is for it in one write, joined once for all who get the same.

The pass is cheap in two ways: where headers come round again whole rounds are swept over (`kqmsgq.runs`), and
elsewhere a message costs one lookup of its first bytes (`Queues.routes`) and no parsing. What has not been
seen before is read with care, by `Queues.look`.
"""

from collections.abc import Iterator

from kqmsgq.metrics import Counts
from kqmsgq.queues import LOOKED_UP_BYTES, NOWHERE, Consumer, Queues, Route, no_message
from kqmsgq.runs import STRETCH_MESSAGES, Mark, Round, Rounds
from kqmsgq.wire import HEADER_BYTES, MESSAGE, NAME_AT, WireError
from shared.bundles import Bundle
from shared.recording.recorder import Track

PIECES_PER_TURN = 16 * 1024
"""Put into bundles, one for each run of messages and each bundle that it is for; then others have their turn.
A read is thousands of messages, and each may be for hundreds of consumers."""

PIECES_PER_LOOK = 8
"""A message that is read with care costs as much."""
MEMBERS_PER_PIECE = 2
"""And so many of the consumers that it is for cost as much as one: its route is found by all of them."""


class Producing:
    """What one producer sends, on its way to consumers. `more`: the last `publish` left whole messages."""

    __slots__ = ("_epoch", "_looked", "_queues", "_rounds", "_track", "more")

    def __init__(self, queues: Queues, track: Track | None = None) -> None:
        self._queues = queues
        self._track = track
        self._rounds: Rounds[Route, _Plan] = Rounds(self._marks, _Plan)
        self._epoch = queues.epoch
        self._looked = 0  # pieces that looking for the newest round was worth
        self.more = False

    def publish(self, data: bytes, at: int = 0) -> int:
        """Hand on the whole messages of `data` from `at` on, as far as a turn goes; returns where they end.

        Raises WireError at what is no message; those before it are handed on.
        """
        queues = self._queues
        routes = queues.routes
        gathered = _Gathered(data)
        last = NOWHERE  # the route of the newest messages: `run` of them, from `start` on
        error: WireError | None = None
        first = at
        start = run = stretch = 0
        size = len(data)
        latest = size - HEADER_BYTES  # where the last message may begin
        self.more = False
        while at <= latest:
            if gathered.pieces >= PIECES_PER_TURN:
                self.more = True
                break
            if not stretch:
                stretch = STRETCH_MESSAGES
                self._looked = 0
                found = self._round(data, at)
                gathered.pieces += self._looked
                if found is not None:
                    those, plan, count = found
                    if plan.pieces:
                        count = min(count, (PIECES_PER_TURN - gathered.pieces) // plan.pieces + 1)
                    if run:
                        gathered.add(last, start, at, run)
                        run = 0
                    gathered.add_rounds(those, plan, at, count)
                    at += count * those.size
                    stretch = 0
                    continue
            stretch -= 1
            fixed = at + data[at + 4] + NAME_AT + LOOKED_UP_BYTES
            route = routes.get(data[at:fixed])
            if route is not None:
                if fixed + 2 > size:
                    break
                after = fixed + 2 + (data[fixed] << 8 | data[fixed + 1])
            else:
                try:
                    looked = queues.look(data, at)
                except WireError as refused:
                    error = refused
                    break
                gathered.pieces += PIECES_PER_LOOK
                if looked is None:
                    break
                route, _, after = looked
                gathered.pieces += route.fan // MEMBERS_PER_PIECE
            if after > size:
                break
            if route is not last:
                if run:
                    gathered.add(last, start, at, run)
                last, start, run = route, at, 0
            elif not run:
                start = at
            run += 1
            at = after
        else:
            if at < size and data[at] != MESSAGE:  # too short for a message, but wrong already
                error = no_message(data, at)
        if run:
            gathered.add(last, start, at, run)
        gathered.deliver(queues.counts, at - first)
        if self._track is not None and at > first:
            self._track.record(gathered.messages, memoryview(data)[first:at])
        if error is not None:
            raise error
        return at

    def _round(self, data: bytes, at: int) -> "tuple[Round[Route], _Plan, int] | None":
        """A round that is worth while at `at`, what to do with it, and how often it is there."""
        if self._epoch != self._queues.epoch:
            self._forget_rounds()
        found = self._rounds.at(data, at)
        if self._epoch != self._queues.epoch:  # by what was looked at just now
            self._forget_rounds()
            return None
        return found

    def _forget_rounds(self) -> None:
        self._epoch = self._queues.epoch
        self._rounds.forget()

    def _marks(self, data: bytes, at: int) -> Iterator[Mark[Route]]:
        """The messages from `at` on. What is wrong ends them; it is met again when its turn comes."""
        while at <= len(data) - HEADER_BYTES and self._looked < PIECES_PER_TURN:
            try:
                looked = self._queues.look(data, at)
            except WireError:
                return
            if looked is None or looked[2] > len(data):
                return
            route, body, ends = looked
            self._looked += route.fan // MEMBERS_PER_PIECE
            yield Mark(at, body, ends, route)
            at = ends


class _Plan:
    """What to do with each round: for each bundle the places of what it gets, as (begin, end).

    `pieces`: how many that are, but for bundles that get all of it.
    """

    __slots__ = ("delivered", "parts", "pieces", "unrouted")

    def __init__(self, found: Round[Route]) -> None:
        self.delivered = self.unrouted = 0
        places: dict[int, tuple[Bundle[Consumer], list[tuple[int, int]]]] = {}
        for route, begins, ends in found.spans:
            self.delivered += route.fan
            self.unrouted += not route.fan
            for bundle in route.bundles:
                _, spans = places.setdefault(id(bundle), (bundle, []))
                if spans and spans[-1][1] == begins:
                    spans[-1] = spans[-1][0], ends
                else:
                    spans.append((begins, ends))
        self.parts = list(places.values())
        self.pieces = sum(len(spans) for _, spans in self.parts if spans[0][1] - spans[0][0] != found.size)


class _Gathered:
    """What a pass found for each bundle."""

    __slots__ = ("_data", "_delivered", "_touched", "_unrouted", "messages", "pieces")

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._touched: list[Bundle[Consumer]] = []
        self.messages = self._delivered = self._unrouted = self.pieces = 0

    def add(self, route: Route, begins: int, ends: int, messages: int) -> None:
        """A run of messages for one route."""
        self.messages += messages
        if not route.fan:
            self._unrouted += messages
            return
        self._delivered += messages * route.fan
        piece = self._data[begins:ends]
        self.pieces += len(route.bundles)
        for bundle in route.bundles:
            if not bundle:
                self._touched.append(bundle)
            bundle.append(piece)

    def add_rounds(self, those: Round[Route], plan: _Plan, at: int, count: int) -> None:
        """`count` rounds from `at` on."""
        self.messages += count * those.messages
        self._delivered += count * plan.delivered
        self._unrouted += count * plan.unrouted
        self.pieces += count * plan.pieces + len(plan.parts)
        data, size = self._data, those.size
        end = at + count * size
        for bundle, spans in plan.parts:
            if not bundle:
                self._touched.append(bundle)
            begins, ends = spans[0]
            if ends - begins == size:
                bundle.append(data[at:end])
            elif len(spans) == 1:
                bundle += [data[begin : begin + ends - begins] for begin in range(at + begins, end, size)]
            else:
                bundle += [data[base + b : base + e] for base in range(at, end, size) for b, e in spans]

    def deliver(self, counts: Counts, taken_bytes: int) -> None:
        """One write for each consumer."""
        for bundle in self._touched:
            joined = bundle[0] if len(bundle) == 1 else b"".join(bundle)
            bundle.clear()
            for consumer in bundle.members:
                consumer.write(joined)
        counts.messages_in += self.messages
        counts.bytes_in += taken_bytes
        counts.messages_delivered += self._delivered
        counts.messages_unrouted += self._unrouted
