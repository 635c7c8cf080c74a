"""From datagrams to subscribers: one pass over each batch, and one write for each subscriber.

Datagrams arrive as the frames that subscribers get (`shared.net.slots`): the kernel has put their bytes in
place, between the sender's address and the padding. Two things are left: to find malformed datagrams, and to
find the receivers of each message:

- The topic and type of a frame are looked up as bytes (`Routes.known`). A hit proves that they are
  well-formed, and gives the receivers. After a miss they are checked, and remembered if the result also
  holds for the next message. 200 datagrams of 100 topics, each with a subscriber, take 1.2 us each, and 2.8
  where nothing is remembered (in process).
- A run of frames for the same clients is one slice of the batch, gathered in bundles (`shared.fanout`).

The work of a turn is bounded, however many clients get a message and whatever patterns match its topic. The
rest is left to the next turn (`_Sending`, `RoutingIndex.match_within`); later frames wait, so order is kept.
Clients may connect and leave between two turns. A client that returned gets the messages that were to be
kept for it. A client that left gets no more of them, as if they had been sent.
"""

from collections import deque
from collections.abc import Callable, Sequence

from pubsub.recording import FrameTrack, picked
from pubsub.sessions import ClientSession, Sessions
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
    frame_topic,
)
from shared.access import Guard
from shared.fanout import Route, Routes
from shared.net.datagram_sink import Frames, Layout

LAYOUT = Layout(
    frame_bytes=FRAME_BYTES,
    # One byte more than a payload may have: the frame's last byte, cleared in frames that are too long.
    parts=((TOPIC_AT, TOPIC_BYTES_MAX), (TYPE_AT, 1 + PAYLOAD_BYTES_MAX)),
    sender=(0, SENDER_BYTES),
)
VISITS_MAX = 10_000
"""Work of one turn on topics without a known route, in visits of the index: some milliseconds."""
MEMBERS_PER_VISIT = 2
"""While a route is made, so many receivers cost as much as one visit."""
WRITES_MAX = 1_000
WRITE_BYTES = 16 * 1024
"""Work of one turn on writes to subscribers: their number, and the bytes that count as one."""
KEEPS_MAX = 4_000
"""Messages that one turn keeps, counted once for each absent client."""
SURELY_LONG_ENOUGH = DATAGRAM_BYTES_MIN + max(PAYLOAD_BYTES_MIN.values())


class _Looking:
    """A lookup of a topic over several turns. `away`: None until known. `epoch`: the routes' at its start."""

    __slots__ = ("away", "epoch", "topic")

    def __init__(self, topic: bytes, away: tuple[ClientSession, ...] | None, epoch: int) -> None:
        self.topic = topic
        self.away = away
        self.epoch = epoch


class _Sending:
    """Frames to write to clients, or to keep for them. `done`: how many clients have them. `trail`: as in
    `Fanout`."""

    __slots__ = ("clients", "done", "frames", "trail")

    def __init__(self, frames: bytes, clients: tuple[ClientSession, ...], trail: tuple[str, ...]) -> None:
        self.frames = frames
        self.clients = clients
        self.trail = trail
        self.done = 0

    def next(self, most: int) -> tuple[ClientSession, ...]:
        """The next clients, at most `most`."""
        before = self.done
        self.done = min(len(self.clients), before + most)
        return self.clients[before : self.done]

    @property
    def over(self) -> bool:
        return self.done == len(self.clients)


class Fanout:
    """The sink of the UDP endpoint (`shared.net.datagram_sink.SlotSink`)."""

    def __init__(
        self, sessions: Sessions, track: FrameTrack | None = None, access: Guard | None = None
    ) -> None:
        self.layout = LAYOUT
        self._track = track
        self._sessions = sessions
        self._counts = sessions.counts
        self.routes: Routes[ClientSession] = Routes(sessions.routes)
        self._no_message: Route[ClientSession] = Route((), 0)
        self._writing: deque[_Sending] = deque()
        self._keeping: deque[_Sending] = deque()
        self._looking: _Looking | None = None
        self._visits = 0  # left in this turn
        self.trail: tuple[str, ...] = ()
        """The bridges that have carried the messages that are being written now."""
        self.on_left: Callable[[], None] = lambda: None
        """Called where `publish` leaves writes unfinished: `flush` goes on with them."""
        sessions.on_change = self.routes.forget
        self._access = access
        self._rules_seen: object = None
        self._denied: set[bytes] = set()
        """Topics of this turn to which no one may publish."""

    def receive_frames(self, frames: bytes, lengths: Sequence[int]) -> Frames | None:
        """Forward the messages in these frames. Returns the rest for another turn, or None."""
        if (self._writing or self._keeping) and not self._send(WRITES_MAX):
            return frames, lengths
        if not lengths:
            return None
        if self._access is not None and self._access.access.users is not self._rules_seen:
            self._rules_seen = self._access.access.users
            self.routes.forget()  # known routes were made under other rules
        if min(lengths) < SURELY_LONG_ENOUGH or max(lengths) > DATAGRAM_BYTES_MAX:
            frames, lengths = self._of_good_length(frames, lengths)
        self._denied.clear()
        before = self._counts.messages_in
        known = self.routes.known
        last = self._no_message
        start = 0
        self._visits = 0
        left: Frames | None = None
        for at in range(0, len(frames), FRAME_BYTES):
            head = frames[at + TOPIC_AT : at + DATA_AT]
            route = known.get(head)
            if route is None:
                looked = self._look(head) if self._visits < VISITS_MAX else None
                if looked is None:
                    place = at // FRAME_BYTES
                    left = frames[at:], lengths[place:]
                    frames, lengths = frames[:at], lengths[:place]
                    break
                route, clean = looked
                if clean is not head:  # it is sent in another form than received, so in a piece of its own
                    self._put(last, frames[start:at])
                    self._put(
                        route, frames[at : at + TOPIC_AT] + clean + frames[at + DATA_AT : at + FRAME_BYTES]
                    )
                    last = self._no_message
                    start = at + FRAME_BYTES
                    continue
            if route is not last:
                if start < at:
                    self._put(last, frames[start:at])
                last = route
                start = at
        if start < len(frames):
            self._put(last, frames[start:] if start else frames)
        room = self._deliver()
        if self._track is not None:
            if self._denied:
                denied = self._denied
                frames, lengths = picked(frames, lengths, lambda frame: frame_topic(frame) not in denied)
            self._track.record(frames, lengths, self._counts.messages_in - before)
        if not self._send(room) and left is None:
            left = b"", ()
        return left

    def publish(self, topic: bytes, frames: bytes, lengths: Sequence[int], trail: tuple[str, ...]) -> bool:
        """Forward messages of one topic that a bridge publishes; `lengths`: those of equivalent datagrams.
        False: try later. Earlier messages are still being written, or the topic's lookup is not done."""
        if not self.flush():
            return False
        self._visits = 0
        found = self._match(topic)
        if found is None:
            return False
        self.trail = trail
        self._put(self.routes.of(*found[:2]), frames)
        room = self._deliver()
        self.trail = ()
        if self._track is not None:
            self._track.record(frames, lengths, len(lengths))
        if not self._send(room):
            self.on_left()
        return True

    def flush(self) -> bool:
        """Go on with unfinished writes. Returns whether all are done."""
        return not (self._writing or self._keeping) or self._send(WRITES_MAX)

    def _put(self, route: Route[ClientSession], frames: bytes) -> None:
        """Add `frames`, one or more, to the bundles of `route`."""
        if route is self._no_message or not frames:
            return
        count = len(frames) // FRAME_BYTES
        counts = self._counts
        counts.messages_in += count
        if route is self.routes.nowhere:
            counts.messages_unmatched += count
            return
        counts.messages_delivered += count * route.fan
        self.routes.put(route, frames, count)
        if route.away:
            for at in range(0, len(frames), FRAME_BYTES):
                self._keeping.append(_Sending(frames[at : at + FRAME_BYTES], route.away, self.trail))

    def _deliver(self) -> int:
        """Write the bundles now or in later turns. Returns the writes left in this turn."""
        room = WRITES_MAX
        write = self._sessions.write
        for clients, gathered, _ in self.routes.gathered():
            frames = bytes(gathered)  # unchanged: none of the pieces above is a view
            cost = _write_cost(frames) * len(clients)
            if self._writing or cost > room:
                self._writing.append(_Sending(frames, clients, self.trail))
            else:
                room -= cost
                for client in clients:
                    write(client, frames)
        return room

    def _send(self, room: int) -> bool:
        """Write up to `room`, and keep some messages. Returns whether all is done."""
        writing, keeping, write = self._writing, self._keeping, self._sessions.write
        while writing and room > 0:
            sending = writing[0]
            cost = _write_cost(sending.frames)
            self.trail = sending.trail
            for client in sending.next(max(1, room // cost)):
                room -= cost
                write(client, sending.frames)
            if sending.over:
                writing.popleft()
        self.trail = ()
        room = KEEPS_MAX
        while keeping and room > 0:
            sending = keeping[0]
            clients = sending.next(room)
            room -= len(clients)
            self._sessions.keep(clients, sending.frames)
            if sending.over:
                keeping.popleft()
        return not (writing or keeping)

    def _look(self, head: bytes) -> tuple[Route[ClientSession], bytes] | None:
        """The route of a topic and type, and the `head` to send: without the bytes after the topic's NUL.

        None: this turn has no room for the work; it goes on in the next.
        """
        kind = head[-1]
        if kind not in PAYLOAD_BYTES_MIN:
            self._counts.datagrams_bad["type"] += 1
            return self._no_message, head
        topic = head.partition(b"\0")[0]
        if self._access is not None and not self._access.may_send_datagram(topic):
            self._counts.datagrams_bad["denied"] += 1
            self._denied.add(topic)
            return self._no_message, head
        clean = topic.ljust(TYPE_AT - TOPIC_AT, b"\0") + head[-1:]
        if clean == head:
            clean = head
        route = self.routes.known.get(clean)
        if route is None:
            before = self._sessions.visits
            found = self._match(topic)
            self._visits += self._sessions.visits - before
            if found is None:
                return None
            live, away, holds = found
            self._visits += (len(live) + len(away)) // MEMBERS_PER_VISIT
            route = self.routes.of(live, away)
            if holds:
                self.routes.remember(clean, route)
        return route, clean

    def _match(
        self, topic: bytes
    ) -> tuple[tuple[ClientSession, ...], tuple[ClientSession, ...], bool] | None:
        """The receivers of a topic: (connected, away, whether that also holds for the next message).

        None: not known yet. `away` is matched first, so that a client that returns meanwhile is in one of the
        two. Where it is in both it is connected.
        """
        sessions = self._sessions
        room = VISITS_MAX - self._visits
        looking, self._looking = self._looking, None
        if looking is not None and looking.topic != topic:
            looking = None
        away = looking.away if looking is not None else None
        if away is None:
            away = sessions.away.match_within(topic, room)
        live = None if away is None else sessions.live.match_within(topic, room)
        if away is None or live is None:
            self._looking = _Looking(topic, away, self.routes.epoch if looking is None else looking.epoch)
            return None
        if looking is not None:
            connected = frozenset(live)
            away = tuple([client for client in away if client not in connected])
        return live, away, looking is None or looking.epoch == self.routes.epoch

    def _of_good_length(self, frames: bytes, lengths: Sequence[int]) -> tuple[bytes, list[int]]:
        """Frames and lengths without datagrams that are too short or too long, which are counted."""
        bad = self._counts.datagrams_bad
        good: list[bytes] = []
        kept: list[int] = []
        for place, length in enumerate(lengths):
            at = place * FRAME_BYTES
            if length < DATAGRAM_BYTES_MIN:
                bad["short"] += 1
            elif length > DATAGRAM_BYTES_MAX:
                bad["long"] += 1
            elif length - DATAGRAM_BYTES_MIN < PAYLOAD_BYTES_MIN.get(frames[at + TYPE_AT], 0):
                bad["payload"] += 1
            else:
                good.append(frames[at : at + FRAME_BYTES])
                kept.append(length)
        return b"".join(good), kept


def _write_cost(frames: bytes) -> int:
    return 1 + len(frames) // WRITE_BYTES
