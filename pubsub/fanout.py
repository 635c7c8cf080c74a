"""From datagrams to subscribers: each batch is looked at once, and each subscriber gets one write for it.

Datagrams arrive as the frames that subscribers get (`shared.net.slots`): the system has put their bytes in
place, with the sender's address before and the padding behind. What is left is to find what is no message,
and whom each message is for:

- The topic and type of a frame are looked up as they stand (`_routes`). A hit says at once that they are
  well-formed and who gets the message. A miss is read with care and, where it may come again, remembered.
- A run of frames for the same clients is one slice of the batch, gathered in bundles (`shared.bundles`).
"""

from collections.abc import Sequence

from pubsub.recording import FrameTrack
from pubsub.sessions import Client, Sessions
from pubsub.wire import (
    DATA_AT,
    DATAGRAM_BYTES_MAX,
    DATAGRAM_BYTES_MIN,
    FRAME_BYTES,
    PAYLOAD_BYTES_MAX,
    PAYLOAD_BYTES_MIN,
    SENDER_BYTES,
    TOPIC_AT,
    TOPIC_BYTES_MAX,
    TYPE_AT,
)
from shared.bundles import Bundle, Bundles
from shared.net.slots import Frames, Layout

LAYOUT = Layout(
    frame_bytes=FRAME_BYTES,
    # One byte more than a payload may have: it is the frame's last, and cleared in what is too long.
    parts=((TOPIC_AT, TOPIC_BYTES_MAX), (TYPE_AT, 1 + PAYLOAD_BYTES_MAX)),
    sender=(0, SENDER_BYTES),
)
ROUTES_MAX = 8192
"""Topics remembered, 52 bytes each; when there are more, all are learnt anew."""
VISITS_MAX = 10_000
"""Work of one batch on topics that are not remembered, in visits of the index: some milliseconds. One topic
may be more, where many patterns are made for it (shared/routing/trie.py says how much, and why it is not
divided); what is behind it then waits for another turn."""
SURELY_LONG_ENOUGH = DATAGRAM_BYTES_MIN + max(PAYLOAD_BYTES_MIN.values())


class Route:
    """Where a topic's messages go: into these bundles, and so to `fan` clients; `away`: kept for these."""

    __slots__ = ("away", "bundles", "fan")

    def __init__(self, bundles: tuple[Bundle[Client], ...], fan: int, away: tuple[Client, ...] = ()) -> None:
        self.bundles = bundles
        self.fan = fan
        self.away = away


NOWHERE = Route((), 0)
NO_MESSAGE = Route((), 0)


class Fanout:
    """The sink of the UDP endpoint (`shared.net.slots.SlotSink`)."""

    def __init__(self, sessions: Sessions, track: FrameTrack | None = None) -> None:
        self.layout = LAYOUT
        self._track = track
        self._sessions = sessions
        self._counts = sessions.counts
        self._routes: dict[bytes, Route] = {}
        self._by_set: dict[tuple[frozenset[Client], frozenset[Client]], Route] = {}
        self._bundles: Bundles[Client] = Bundles()
        self._touched: list[Bundle[Client]] = []
        sessions.on_change = self.forget_routes

    def receive_frames(self, frames: bytes, lengths: Sequence[int]) -> Frames | None:
        """Hand on what is in these frames; what is left for another turn, if anything is."""
        if min(lengths) < SURELY_LONG_ENOUGH or max(lengths) > DATAGRAM_BYTES_MAX:
            frames, lengths = self._of_good_length(frames, lengths)
        before = self._counts.messages_in
        routes = self._routes
        last = NOWHERE
        start = 0
        visits_most = self._sessions.visits + VISITS_MAX
        left: Frames | None = None
        for at in range(0, len(frames), FRAME_BYTES):
            head = frames[at + TOPIC_AT : at + DATA_AT]
            route = routes.get(head)
            if route is None:
                if self._sessions.visits > visits_most:
                    place = at // FRAME_BYTES
                    left = frames[at:], lengths[place:]
                    frames, lengths = frames[:at], lengths[:place]
                    break
                route, clean = self._look(head)
                if clean is not head:  # it goes out otherwise than it came, so by itself
                    self._put(last, frames[start:at])
                    self._put(
                        route, frames[at : at + TOPIC_AT] + clean + frames[at + DATA_AT : at + FRAME_BYTES]
                    )
                    last = NO_MESSAGE
                    start = at + FRAME_BYTES
                    continue
            if route is not last:
                if start < at:
                    self._put(last, frames[start:at])
                last = route
                start = at
        if start < len(frames):
            self._put(last, frames[start:] if start else frames)
        self._deliver()
        if self._track is not None:
            self._track.record(frames, lengths, self._counts.messages_in - before)
        return left

    def forget_routes(self) -> None:
        """Who gets what has changed."""
        self._routes.clear()
        self._by_set.clear()
        self._bundles.forget()

    def _put(self, route: Route, frames: bytes) -> None:
        """`frames`, one or more, are for `route`."""
        if route is NO_MESSAGE or not frames:
            return
        count = len(frames) // FRAME_BYTES
        counts = self._counts
        counts.messages_in += count
        if route is NOWHERE:
            counts.messages_unmatched += count
            return
        counts.messages_delivered += count * route.fan
        for bundle in route.bundles:
            if not bundle:
                self._touched.append(bundle)
            bundle.append(frames)
        if route.away:
            away = [client.id for client in route.away]
            for at in range(0, len(frames), FRAME_BYTES):
                self._sessions.kept.add(away, frames[at : at + FRAME_BYTES])

    def _deliver(self) -> None:
        touched, self._touched = self._touched, []
        for bundle in touched:
            joined = bundle[0] if len(bundle) == 1 else b"".join(bundle)
            bundle.clear()
            for client in bundle.members:
                if client.connection is not None:  # a write may have closed another's connection
                    client.connection.write(joined)

    def _look(self, head: bytes) -> tuple[Route, bytes]:
        """The route of a topic and type, and `head` as it goes out: itself, or tidied behind a NUL."""
        kind = head[-1]
        if kind not in PAYLOAD_BYTES_MIN:
            self._counts.bad("type")
            return NO_MESSAGE, head
        topic = head.partition(b"\0")[0]
        clean = topic.ljust(TYPE_AT - TOPIC_AT, b"\0") + head[-1:]
        if clean == head:
            clean = head
        route = self._routes.get(clean)
        if route is None:
            if len(self._routes) >= ROUTES_MAX:
                self.forget_routes()
            route = self._route(topic)
            self._routes[clean] = route
        return route, clean

    def _route(self, topic: bytes) -> Route:
        """One for each set of clients, so that topics which the same clients want make one run."""
        live, away = self._sessions.live.match(topic), self._sessions.away.match(topic)
        if not live and not away:
            return NOWHERE
        those = frozenset(live), frozenset(away)
        route = self._by_set.get(those)
        if route is not None:
            return route
        if self._bundles.clash(live):
            self.forget_routes()  # what is in their bundles is still delivered first: it was touched first
            self._bundles.divide()
        route = self._by_set[those] = Route(self._bundles.of(live), len(live), away)
        return route

    def _of_good_length(self, frames: bytes, lengths: Sequence[int]) -> tuple[bytes, list[int]]:
        """Both without what belongs to datagrams that are too short or too long, which are counted."""
        counts = self._counts
        good: list[bytes] = []
        kept: list[int] = []
        for place, length in enumerate(lengths):
            at = place * FRAME_BYTES
            if length < DATAGRAM_BYTES_MIN:
                counts.bad("short")
            elif length > DATAGRAM_BYTES_MAX:
                counts.bad("long")
            elif length - DATAGRAM_BYTES_MIN < PAYLOAD_BYTES_MIN.get(frames[at + TYPE_AT], 0):
                counts.bad("payload")
            else:
                good.append(frames[at : at + FRAME_BYTES])
                kept.append(length)
        return b"".join(good), kept
