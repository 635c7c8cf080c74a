"""Sessions: client ids, their subscriptions, and whether they are connected.

A session outlives its connection. With subscriptions it outlives the process, too: each change writes one
small row to a table of the store. Nothing on the wire waits for that write.

Two indexes match topics. `live` holds the subscriptions of connected clients, `away` those of absent clients
with messages to keep. So a match costs by its receivers, not by the remembered sessions. A client moves
between the two as it connects and leaves.

A session without subscriptions ends with its connection, one with them when its client has been away for
`session_seconds`.
"""

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING

import attrs

from pubsub.absences import Absences
from pubsub.kept import Kept, Message, ShortFrames
from pubsub.look_back import NEVER, LookBack
from pubsub.metrics import Counts
from pubsub.retained import Retained, row_frame
from pubsub.settings import PubsubSettings
from pubsub.wire import FRAME_BYTES, ID_CHARACTERS_MAX, TOPIC_BYTES_MAX, WILDCARDS, Fault
from shared.access import ANONYMOUS
from shared.budget import Account, CacheBytes, Caches, OverBudget, unbounded
from shared.errors import RemoteProtocolError, StoreError
from shared.fanout import limit_slow_receiver
from shared.file_range import FileRange
from shared.net.connection import Connection
from shared.net.outbox import Chunk
from shared.routing.index import RoutingIndex

if TYPE_CHECKING:
    import structlog

    from pubsub.look_back import Cut
    from shared.storage.log import Ticket
    from shared.storage.table import Table

SESSION_BYTES = 800
"""Measured memory of a session, with its row in the table of absences. An id has at most ten characters."""
SUBSCRIPTION_BYTES = 900
"""Memory of a subscription, with its row: 210 bytes were measured without wildcards, 1,050 with three."""

_PLAIN, _KEEPS = b"", b"\1"


def _nobody_holds(size: int) -> None:
    """While its client is away, a session holds no bytes."""


class ClientSession:
    """A session. `topics`: pattern to whether messages are kept while the client is away.

    `wild`: how many of the patterns are wild (`shared.routing.syntax`).
    """

    __slots__ = (
        "connection",
        "dropped",
        "holds",
        "id",
        "look_back",
        "name",
        "owner",
        "topics",
        "unread_at",
        "wild",
        "written",
    )

    def __init__(self, client_id: bytes) -> None:
        self.id = client_id
        self.owner = ANONYMOUS
        """The user who made the session; no other user may take its id."""
        self.name = client_id.decode("ascii")
        self.topics: dict[bytes, bool] = {}
        self.wild = 0
        self.look_back: LookBack | None = None
        self.holds: Callable[[int], None] = _nobody_holds
        """Called with the bytes that wait while it looks back."""
        self.unread_at: int | None = None
        """Where what its last connection leaves unread has its place (`Kept.reserve`)."""
        self.connection: Connection | None = None
        self.written = self.dropped = 0
        """Frames for its connection, and those of them lost because the client did not read."""


@attrs.frozen
class Changed:
    """A row of the table: a subscription. `keeps`: None if it has ended."""

    client_id: bytes
    topic: bytes
    keeps: bool | None
    owner: str = ANONYMOUS


class Sessions:
    """All clients, by id.

    `save`: called with each change of a subscription; returns the ticket of its write, None where the store
    refused it. `say`: takes the lines for standard output; None: they are logged. `budget`: the budget that
    sessions are charged to. `on_change`: called when the receivers of a topic change.
    """

    def __init__(
        self,
        settings: PubsubSettings,
        counts: Counts,
        log: "structlog.stdlib.BoundLogger",
        *,
        save: Callable[[Changed], "Ticket | None"],
        say: Callable[[str], None] | None = None,
        budget: Account | None = None,
        absences: Absences | None = None,
    ) -> None:
        budget = budget or unbounded()
        self._memory = budget.account("names")
        self._of_users, self._subscriptions_of_users, self._wild_of_users = (
            budget.new_shares() for _ in range(3)
        )
        self.settings = settings
        self.counts = counts
        self.kept = Kept(settings, counts, budget.account("messages"), self._owner_of)
        self.routes = Caches(budget.account("caches", budget.limit_bytes // 4))
        """The known routes: topic to receivers."""

        def index() -> RoutingIndex[ClientSession]:
            return RoutingIndex(WILDCARDS, cache_books=CacheBytes(self.routes, math.inf))

        self.live, self.away = index(), index()
        self.clients: dict[bytes, ClientSession] = {}
        self.absences = absences or Absences()
        self.retained: Retained | None = None
        self.retainer = ClientSession(b"")
        """Stands for `retained` in `away`."""
        self.cut: Callable[[], Cut | None] = lambda: None
        """Where the recording of what has passed until now ends; None: there is none."""
        self.wall_ms: Callable[[], int] = lambda: 0
        self.on_look_back: Callable[[ClientSession], None] = lambda client: None
        """Called when a client begins to look back: who has set it calls `looked_back` in the end."""
        self.subscriptions = 0
        self.wild = 0
        """How many of them are wild."""
        self.on_change: Callable[[], None] = lambda: None
        self.on_unturned: Callable[[], None] = lambda: None
        """Called with records that no turn may commit."""
        self._log = log
        self._write = save
        self.saved: Ticket | None = None
        """The ticket of the last change; None where the store refused it."""
        self._say: Callable[[str], None] = say or log.info

    def restore(self, client_id: bytes, topic: bytes, keeps: bool, owner: str = ANONYMOUS) -> None:
        """Restore a saved subscription. Only before clients connect."""
        client = self.clients.get(client_id) or self.adopt(client_id, owner)
        client.topics[topic] = keeps
        self._count(client, topic, 1)
        if keeps:
            self.away.subscribe(client, topic)

    def restored(self, now: float) -> None:
        """Count every restored session as away."""
        self.absences.load(self.clients.keys(), now)

    def end_long_away(self, now: float) -> Iterator[bytes]:
        """End the sessions whose clients have been away for `session_seconds`, one with each step."""
        seconds = self.settings.session_seconds
        while seconds and (longest := self.absences.longest(now)) is not None:
            client_id, away_seconds = longest
            if away_seconds < seconds:
                break
            self.forget(client_id)
            self.counts.sessions_expired += 1
            yield client_id

    def adopt(self, client_id: bytes, owner: str = ANONYMOUS) -> ClientSession:
        """Make a session for a new client, or for an absent one with kept messages."""
        self._memory.charge(SESSION_BYTES, owner)
        self._of_users.add(owner)
        client = self.clients[client_id] = ClientSession(client_id)
        client.owner = owner
        return client

    # Connections.

    def join(self, client_id: bytes, connection: Connection, user: str = ANONYMOUS) -> ClientSession:
        """The client connects: kept messages are written first. A new session belongs to `user`.

        Raises RemoteProtocolError.
        """
        client = self.clients.get(client_id)
        if client is None:
            if len(self.clients) >= self.settings.sessions_max:
                raise RemoteProtocolError(
                    f"sessions_max = {self.settings.sessions_max} are there", fault=Fault.SESSIONS
                )
            if not self._of_users.fits(user, self.settings.sessions_max):
                raise RemoteProtocolError(f"{user} has his share of sessions_max", fault=Fault.SESSIONS)
            self._check_memory(SESSION_BYTES, Fault.SESSIONS, user)
            client = self.adopt(client_id, user)
        elif client.connection is not None:
            self._say(f"Client {client.name} already connected.")
            raise RemoteProtocolError(f"client {client.name} is connected already", fault=Fault.CONNECTED)
        client.connection = connection
        self.absences.over(client_id)
        client.written = client.dropped = 0
        client.unread_at = None
        connection.outbox.on_clear = partial(self._on_unsent, client)
        limit_slow_receiver(
            connection,
            self.settings.subscriber_bytes_max,
            self.settings.slow_subscriber,
            lambda chunk: self.count_dropped(client, len(chunk) // FRAME_BYTES),  # each chunk is whole frames
        )
        self.counts.connected += 1
        self._say(f"New client {client.name} connected from {connection.peer}.")
        self.away.drop(client)
        self._hand_over(client, connection)
        for topic in client.topics:
            self.live.subscribe(client, topic)
        if client.topics:
            self.on_change()
        return client

    def leave(self, client: ClientSession) -> None:
        """The client's connection has ended."""
        connection, client.connection = client.connection, None
        now = connection.now if connection is not None else 0.0
        if connection is not None:
            unread_at = self.kept.reserve(connection.outbox.size // FRAME_BYTES + 1)
            if client.look_back is not None:
                self._keep_unread(client, b"".join(client.look_back.waiting))
                client.look_back = None
            client.unread_at = unread_at
            client.holds = _nobody_holds
        self.counts.connected -= 1
        self._say(f"Client {client.name} disconnected.")
        if not client.topics:
            self._end(client)
            return
        self.absences.left(client.id, now)
        self.live.drop(client)
        for topic, keeps in client.topics.items():
            if keeps:
                self.away.subscribe(client, topic)
        self.on_change()

    def write(self, client: ClientSession, frames: bytes) -> None:
        """Send a connected client whole frames. While its connection ends, they are kept for it (type 3)."""
        connection = client.connection
        if connection is None:  # it has left meanwhile
            return
        if connection.mute:
            self._keep_unread(client, frames)
            return
        if client.look_back is not None:
            self._wait(client, client.look_back, frames)
            return
        client.written += len(frames) // FRAME_BYTES
        connection.write(frames)

    def _hand_over(self, client: ClientSession, connection: Connection) -> None:
        """Write what is kept for a client that has returned. It is kept until it is sent."""
        messages = self.kept.hand_over(client.id)
        if not messages:
            return

        def sent(count: int) -> None:
            if self.clients.get(client.id) is client:
                self.kept.sent(client.id, messages[count - 1])
            self.on_unturned()

        def release() -> None:
            unsent = messages[frames.done :]
            if unsent and not connection.mute:  # they are dropped: the client does not read
                self.count_dropped(client, len(unsent))
                sent(len(messages))
            elif unsent and any(client.topics.values()):
                self.kept.unsent(client.id, unsent, messages[-1])
            elif unsent:
                sent(len(messages))

        frames = ShortFrames([message.frame for message in messages], sent)
        frames.release = release
        client.written = len(messages)
        self.counts.messages_delivered += len(messages)
        connection.write_file(frames)

    def _on_unsent(self, client: ClientSession, chunks: Sequence[Chunk], begun: Chunk | None) -> None:
        """Its connection is gone, and these chunks were not sent, or the first of them only in part."""
        parts = [chunk for chunk in chunks if not isinstance(chunk, FileRange)]
        if begun is not None and parts and not isinstance(begun, FileRange):
            cut = (len(begun) - len(parts[0])) // FRAME_BYTES * FRAME_BYTES
            parts[0] = memoryview(begun)[cut:]  # a message that was sent in part was not read
        if client.look_back is not None:
            parts += client.look_back.waiting
            client.look_back = None
        self._keep_unread(client, b"".join(parts))

    def _keep_unread(self, client: ClientSession, data: bytes) -> None:
        """Keep frames that a client of type 3 cannot have read."""
        if not any(client.topics.values()):
            return
        frames: Sequence[bytes] = [data[at : at + FRAME_BYTES] for at in range(0, len(data), FRAME_BYTES)]
        if not all(client.topics.values()):
            frames = self.kept.matching(frames, _keeping_patterns(client))
        if client.unread_at is None:
            self.kept.append(client.id, frames)
        else:
            self.kept.put_back(client.id, frames, client.unread_at)
        self.kept.flush()
        self.on_unturned()

    def count_dropped(self, client: ClientSession, frames: int) -> None:
        """Count `frames` that the connection lost because the client does not read."""
        counts = self.counts
        if not client.dropped:
            counts.subscribers_dropped_from += 1
            self._log.warning(
                "a subscriber does not read what it is sent: its oldest messages are dropped; have it read "
                "faster, or raise pubsub.subscriber_bytes_max",
                client=client.name,
            )
        client.dropped += frames
        counts.frames_dropped += frames

    def keep(self, clients: Iterable[ClientSession], message: Message) -> None:
        """Keep a message for absent clients. Clients that have returned meanwhile are sent it."""
        away = []
        for client in clients:
            if client.connection is not None:
                self.write(client, message.frame.ljust(FRAME_BYTES, b"\0"))
                self.counts.messages_delivered += 1
            elif self.clients.get(client.id) is client:  # the session still exists
                away.append(client.id)
        self.kept.share(message, away)

    # Subscriptions.

    def subscribe(
        self, client: ClientSession, topic: bytes, *, keeps: bool, minutes: int | None = None
    ) -> None:
        """Add a connected client's subscription, and send it what is retained, and the past of so many
        minutes. Raises RemoteProtocolError above a limit."""
        before = client.topics.get(topic)
        if before is not keeps:
            self._add(client, topic, keeps, before is None)
        self._begin_look_back(client, topic, minutes)

    def _add(self, client: ClientSession, topic: bytes, keeps: bool, is_new: bool) -> None:
        if is_new:
            settings = self.settings
            if len(client.topics) >= settings.subscriptions_max:
                raise RemoteProtocolError(
                    f"more than subscriptions_max = {settings.subscriptions_max}", fault=Fault.SUBSCRIPTIONS
                )
            if self.subscriptions >= settings.subscriptions_total_max:
                raise RemoteProtocolError(
                    f"more than subscriptions_total_max = {settings.subscriptions_total_max} of all clients",
                    fault=Fault.SUBSCRIPTIONS,
                )
            if WILDCARDS.wild_levels(topic) and (
                client.wild >= settings.wild_subscriptions_max
                or self.wild >= settings.wild_subscriptions_total_max
            ):
                raise RemoteProtocolError(
                    f"more than wild_subscriptions_max = {settings.wild_subscriptions_max}, or "
                    f"wild_subscriptions_total_max = {settings.wild_subscriptions_total_max} of all clients",
                    fault=Fault.SUBSCRIPTIONS,
                )
            for shares, limit, more in (
                (self._subscriptions_of_users, "subscriptions_total_max", 1),
                (self._wild_of_users, "wild_subscriptions_total_max", WILDCARDS.wild_levels(topic) > 0),
            ):
                if more and not shares.fits(client.owner, getattr(settings, limit)):
                    raise RemoteProtocolError(
                        f"{client.owner} has his share of {limit}", fault=Fault.SUBSCRIPTIONS
                    )
            self._check_memory(SUBSCRIPTION_BYTES, Fault.SUBSCRIPTIONS, client.owner)
            self._count(client, topic, 1)
            self.live.subscribe(client, topic)
            self.on_change()
        client.topics[topic] = keeps
        self._save(Changed(client.id, topic, keeps, client.owner))

    def retain(self, patterns: Iterable[str]) -> None:
        """Messages of topics that one of these patterns matches go to `retained`."""
        self.away.drop(self.retainer)
        for pattern in patterns:
            self.away.subscribe(self.retainer, pattern.encode())
        self.on_change()

    def _begin_look_back(self, client: ClientSession, topic: bytes, minutes: int | None) -> None:
        cut = None if minutes is None else self.cut()
        look, retained = client.look_back, self.retained
        if look is None:
            if cut is None:
                if not retained:
                    return
                if not _has_wildcards(topic):
                    row = retained.get(topic)
                    if row is not None:
                        self.write(client, row_frame(row).ljust(FRAME_BYTES, b"\0"))
                    return
            rows = retained.items() if retained else ()
            look = client.look_back = LookBack(self.counts.messages_in, rows)
            self.on_look_back(client)
        if cut is not None:
            look.cut = cut
        since = NEVER if cut is None or minutes is None else 1000 * (self.wall_ms() - 60_000 * minutes)
        look.asked[topic] = min(since, look.asked.get(topic, NEVER))

    def may_subscribe(self, client: ClientSession) -> bool:
        """Whether a client may subscribe now; else when it has looked back."""
        look = client.look_back
        return look is None or (not look.begun and look.at == self.counts.messages_in)

    def _wait(self, client: ClientSession, look: LookBack, frames: bytes) -> None:
        """Frames wait until their client has looked back, as they do for one that does not read."""
        look.add(frames)
        settings = self.settings
        while look.size > settings.subscriber_bytes_max and len(look.waiting) > 1:
            if settings.slow_subscriber == "disconnect":
                assert client.connection is not None
                client.connection.abort("slow consumer")
                return
            self.count_dropped(client, len(look.drop_oldest()) // FRAME_BYTES)
        client.holds(look.size)

    def looked_back(self, client: ClientSession, look: LookBack) -> None:
        """A client has been sent what was before: what has come since follows."""
        if client.look_back is look:
            client.look_back = None
            client.holds(0)
            for frames in look.waiting:
                self.write(client, frames)

    def unsubscribe(self, client: ClientSession, topic: bytes) -> None:
        """End a connected client's subscription, if there is one."""
        if client.topics.pop(topic, None) is not None:
            if client.look_back is not None:
                client.look_back.forget(topic)
            self._count(client, topic, -1)
            self.live.unsubscribe(client, topic)
            self.on_change()
            self._save(Changed(client.id, topic, None))

    def own(self, client: ClientSession, user: str) -> None:
        """A connected client has logged in: the session now belongs to its user."""
        self._count_for(client, -1)
        client.owner = user
        self._count_for(client, 1)
        for topic, keeps in client.topics.items():
            self._save(Changed(client.id, topic, keeps, user))

    def end_subscriptions(self, client: ClientSession, topics: Collection[bytes]) -> None:
        """End subscriptions that are no longer allowed.

        What is kept for an absent client stays where a subscription that is left would have kept it.
        """
        for topic in topics:
            if client.connection is None:
                self.away.unsubscribe(client, topic)
            self.unsubscribe(client, topic)
        if topics and client.connection is None:
            self.kept.restrict(client.id, _keeping_patterns(client))

    def observe(self, observer: Connection, pattern: bytes) -> Callable[[], None]:
        """Write messages that match `pattern` to `observer`, too. Call the returned function to end it."""
        client = ClientSession(b"")
        client.connection = observer
        self.live.subscribe(client, pattern)
        self.on_change()

        def end() -> None:
            client.connection = None
            self.live.drop(client)
            self.on_change()

        return end

    def forget(self, client_id: bytes) -> bool:
        """Delete the session of an absent client. False: no such client is away."""
        client = self.clients.get(client_id)
        if client is None or client.connection is not None:
            return False
        self.away.drop(client)
        for topic in client.topics:
            self._count(client, topic, -1)
            self._save(Changed(client_id, topic, None))
        self._end(client)
        self.on_change()
        return True

    def _owner_of(self, client_id: bytes) -> str:
        client = self.clients.get(client_id)
        return ANONYMOUS if client is None else client.owner

    def _save(self, change: Changed) -> None:
        self.saved = self._write(change)

    def _end(self, client: ClientSession) -> None:
        del self.clients[client.id]
        self.kept.forget(client.id)
        self.absences.over(client.id)
        self._memory.give(SESSION_BYTES, client.owner)
        self._of_users.add(client.owner, -1)

    def _count_for(self, client: ClientSession, count: int) -> None:
        """Count all that a session has for its owner; `count` of -1: no longer."""
        size = SESSION_BYTES + len(client.topics) * SUBSCRIPTION_BYTES
        self._memory.charge(count * size, client.owner)
        self._of_users.add(client.owner, count)
        self._subscriptions_of_users.add(client.owner, count * len(client.topics))
        self._wild_of_users.add(client.owner, count * client.wild)

    def _check_memory(self, size: int, fault: Fault, user: str) -> None:
        try:
            self._memory.check(size, user)
        except OverBudget as error:
            raise RemoteProtocolError(str(error), fault=fault) from None

    def _count(self, client: ClientSession, topic: bytes, count: int) -> None:
        """Add `count` to the subscriptions of `client` by `topic`; negative: subtract."""
        self._memory.charge(count * SUBSCRIPTION_BYTES, client.owner)
        self.subscriptions += count
        self._subscriptions_of_users.add(client.owner, count)
        if WILDCARDS.wild_levels(topic):
            self._wild_of_users.add(client.owner, count)
            client.wild += count
            self.wild += count


def _has_wildcards(pattern: bytes) -> bool:
    return not {WILDCARDS.any_levels, WILDCARDS.one_level}.isdisjoint(WILDCARDS.levels(pattern))


def _keeping_patterns(client: ClientSession) -> RoutingIndex[bytes]:
    """An index of the patterns whose messages are kept for a client."""
    patterns: RoutingIndex[bytes] = RoutingIndex(WILDCARDS)
    for pattern, keeps in client.topics.items():
        if keeps:
            patterns.subscribe(client.id, pattern)
    return patterns


# The table of the store: `<id> NUL <topic>` to `` or `\\1` (keeps); of a user's, `\\0` or `\\1` and his name.


def saver(
    table: "Table", counts: Counts, on_failure: Callable[[StoreError], None]
) -> Callable[[Changed], "Ticket | None"]:
    """A function that saves changes in `table`. A change that the store refuses lasts until a restart."""

    def save(change: Changed) -> "Ticket | None":
        key = change.client_id + b"\0" + change.topic
        try:
            if change.keeps is None:
                return table.delete(key)
            value = _KEEPS if change.keeps else _PLAIN
            if change.owner != ANONYMOUS:
                value = (value or b"\0") + change.owner.encode()
            return table.put(key, value)
        except StoreError as error:
            counts.unpersisted += 1
            on_failure(error)
            return None

    return save


def saved(table: "Table") -> Iterator[Changed]:
    """The subscriptions in `table`. Malformed rows are left out."""
    for key, value in table.items():
        client_id, nul, topic = key.partition(b"\0")
        if nul and 1 <= len(client_id) <= ID_CHARACTERS_MAX and len(topic) <= TOPIC_BYTES_MAX:
            owner = value[1:].decode("utf-8", "replace") or ANONYMOUS
            yield Changed(client_id, topic, value[:1] == _KEEPS, owner)
