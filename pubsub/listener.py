"""The service that the host runs: pub/sub's endpoints, its logs in the store, its metrics."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial

import trio

from pubsub.absences import Absences
from pubsub.admin import Admin
from pubsub.fanout import Fanout
from pubsub.intake import Intake, LineSink, SyslogSession
from pubsub.kept import ShortFrames
from pubsub.lines import LINES, STATSD, SYSLOG
from pubsub.look_back import NEVER
from pubsub.metrics import GAUGES, Counts
from pubsub.recording import FrameTrack
from pubsub.retained import Retained
from pubsub.session import Session
from pubsub.sessions import ClientSession, Sessions, saved, saver
from pubsub.settings import AWAY_LOG, KEPT_LOG, NAMESPACE, RETAINED_LOG, SESSIONS_LOG, PubsubSettings
from pubsub.wire import FRAME_BYTES, TOPIC_BYTES_MAX, Kind, take_frames
from shared.definitions import tell_lowered
from shared.errors import OutOfRange, StoreError
from shared.metrics import Sample, samples
from shared.net.connection import Connection
from shared.plugin import Context, TcpEndpoint, UdpEndpoint
from shared.storage.inventory import KEEP_ALL
from shared.storage.log import WholeRecords
from shared.storage.lost import describe_lost
from shared.storage.store import Namespace
from shared.storage.table import Table
from shared.task_turns import TaskTurn
from shared.tracing import Observer, Tap

READ_BYTES = 1 << 20
PAST_BYTES = 256 << 10
"""Of a recording, read at a time for one client."""
READERS = 4
"""Clients for which so much is looked through at a time."""
LOOK_SECONDS = 60.0
"""How often sessions are ended whose clients have been away for too long."""


async def open_pubsub(context: Context, settings: PubsubSettings) -> "PubsubService":
    """Read the subscriptions and kept messages of the last run. Raises StoreError."""
    namespace = context.store.namespace(NAMESPACE, settings.durability)
    table = await Table.open(namespace, SESSIONS_LOG)
    counts = Counts()
    save = saver(
        table,
        counts,
        _once(context, "subscriptions cannot be written: a restart forgets them; look at the disk"),
    )
    absences = Absences(await Table.open(namespace, AWAY_LOG))
    sessions = Sessions(
        settings,
        counts,
        context.log,
        save=save,
        say=context.say,
        budget=context.budget,
        absences=absences,
    )
    for change in saved(table):
        sessions.restore(change.client_id, change.topic, bool(change.keeps), change.owner)
    if table.lost:
        context.log.error(
            "pubsub has lost subscriptions to damage: their clients get nothing until they subscribe again; "
            "some that had ended may be back",
            **describe_lost(table.lost),
        )
    await _restore_kept(sessions, namespace, context)
    sessions.wall_ms = context.store.clock.wall_ms
    sessions.retained = Retained(
        await Table.open(namespace, RETAINED_LOG),
        settings,
        counts,
        context.budget.account("messages"),
        context.log,
        sessions.wall_ms,
        lambda: sessions.on_unturned(),
    )
    sessions.retain(settings.retain)
    sessions.restored(trio.current_time())
    tell_lowered(("sessions_max", len(sessions.clients), settings.sessions_max), context.log)
    return PubsubService(context, settings, sessions)


async def _restore_kept(sessions: Sessions, namespace: Namespace, context: Context) -> None:
    """Read what is kept, and go on with its log. What is damaged is lost, and logged. Raises StoreError."""
    log = namespace.logs.get(KEPT_LOG) or namespace.create(KEPT_LOG, reserved=True)[0]
    log.retention = KEEP_ALL
    kept = sessions.kept
    reader = WholeRecords(log, log.first, READ_BYTES)
    while records := await reader.read():
        kept.read(reader.offset, records)
    if reader.lost:
        sessions.counts.kept_lost += sum(each.records for each in reader.lost)
        context.log.error(
            "messages that were kept for clients that are away are lost to damage: these clients do not get "
            "them, and some may get again what they have had; look at the disk",
            path=log.file.path,
            **describe_lost(reader.lost),
        )
    kept.open(
        log,
        _once(
            context,
            "what is kept for clients that are away cannot be written: it is in memory "
            "alone, and a restart loses it; look at the disk",
        ),
    )
    astray = [client_id for client_id in sessions.kept.clients() if client_id not in sessions.clients]
    for client_id in astray:
        sessions.adopt(client_id)
    if astray:
        context.log.error(
            "sessions of pubsub clients are lost, their kept messages are not: a client gets these when it "
            "connects again; have it subscribe anew, and look at the disk",
            clients=len(astray),
        )


def _once(context: Context, text: str) -> Callable[[StoreError], None]:
    """A function that logs the first error that it is called with."""
    reported = False

    def on_failure(error: StoreError) -> None:
        nonlocal reported
        if not (reported or context.store.follows):
            reported = True
            context.log.error(text, error=str(error))

    return on_failure


class PubsubService:
    """Pub/sub on its two endpoints, which have one port number."""

    def __init__(self, context: Context, settings: PubsubSettings, sessions: Sessions) -> None:
        self.sessions = sessions
        self._context = context
        recorder = context.recorder
        if recorder is not None:
            sessions.cut = recorder.cut
        self._reading = trio.CapacityLimiter(READERS)
        fanout = self.fanout = Fanout(
            sessions, None if recorder is None else FrameTrack(recorder), context.access
        )
        self.endpoints: Sequence[TcpEndpoint | UdpEndpoint] = (
            TcpEndpoint("pubsub", settings.port, self._open_session, pushes=True),
            UdpEndpoint("pubsub-udp", settings.port, fanout, port_of="pubsub"),
            *self._intake_endpoints(settings),
        )
        self.objects = Admin(self.sessions, fanout, self._end_session, self._end_retained).objects

    def _intake_endpoints(self, settings: PubsubSettings) -> Iterator[TcpEndpoint | UdpEndpoint]:
        """Those for lines of other programs, where their ports are set."""
        for kind, port in (
            (LINES, settings.lines_port),
            (SYSLOG, settings.syslog_port),
            (STATSD, settings.statsd_port),
        ):
            if port is None:
                continue
            name = f"pubsub-{kind.name}"
            intake = Intake(kind, self.fanout, self.sessions.counts, self._context.log)
            if kind is SYSLOG:
                yield TcpEndpoint(name, port, partial(self._open_syslog, intake))
            yield UdpEndpoint(f"{name}-udp", port, LineSink(intake), name if kind is SYSLOG else None)

    async def take_settings(self, settings: PubsubSettings) -> None:
        """Apply new settings to new connections; open ones keep their limits."""
        sessions = self.sessions
        sessions.settings = sessions.kept.settings = settings
        sessions.retain(settings.retain)
        if sessions.retained is not None:
            sessions.retained.take_settings(settings)
            self._context.store.commit_pending()

    async def run(self) -> None:
        """Note absences and end old sessions, until cancelled."""
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._finish_published)
                nursery.start_soon(self._commit_unturned)
                self.sessions.on_look_back = lambda client: nursery.start_soon(self._look_back, client)
                for client in self.sessions.clients.values():  # who was accepted before this task ran
                    if client.look_back is not None:
                        nursery.start_soon(self._look_back, client)
                await self._look_after_sessions()
        finally:
            for _ in self._note_absences():
                pass

    async def _finish_published(self) -> None:
        """Go on with what bridges have published: who has published last may be paused, or gone."""
        turn = TaskTurn()
        while True:
            if self.fanout.flush():
                left = trio.Event()
                self.fanout.on_left = left.set
                await left.wait()
            else:
                await turn.others()

    async def _commit_unturned(self) -> None:
        """Commit what no turn does: what connections leave as they end."""
        while True:
            left = trio.Event()
            self.sessions.on_unturned = left.set
            await left.wait()
            self._context.store.commit_pending()

    async def _look_back(self, client: ClientSession) -> None:
        """Send a client what was before, a piece at a time."""
        look, connection = client.look_back, client.connection
        if look is None or connection is None:
            return
        since = look.begin()
        log = self._context.log.bind(client=client.name)
        try:
            await self._send_before(client, connection, look.retained_frames())
            if look.cut is not None and since < NEVER:
                recorded, end, ticket = look.cut
                with suppress(StoreError):  # then the recording ends before it
                    await self._context.store.wait(ticket)
                reader = WholeRecords(recorded, recorded.seek(since // 1000), PAST_BYTES)
                while client.look_back is look:
                    try:
                        records = await reader.read()
                    except OutOfRange:  # retention was faster
                        reader = WholeRecords(recorded, recorded.first, PAST_BYTES)
                        continue
                    if not records or reader.offset >= end:
                        break
                    frames = look.past_frames(records[: end - reader.offset])
                    self.sessions.counts.past_messages += await self._send_before(client, connection, frames)
                if reader.lost:
                    log.warning("part of the past is damaged: it is not sent", **describe_lost(reader.lost))
        except StoreError as error:
            log.warning("the past cannot be read: the rest of it is not sent", error=str(error))
        except Exception as error:
            connection.fail(error)
        self.sessions.looked_back(client, look)

    async def _send_before(
        self, client: ClientSession, connection: Connection, frames: Iterator[bytes | None]
    ) -> int:
        """Send frames, and return when the client has taken them: how many there were."""
        turn = TaskTurn()
        some: list[bytes] = []
        async with self._reading:
            for frame in frames:
                if frame is not None:
                    some.append(frame)
                await turn.item()
        if some and client.connection is connection and not connection.mute:
            taken = trio.Event()
            piece = ShortFrames(some, lambda count: None)
            piece.release = taken.set
            client.written += len(some)
            connection.write_file(piece)
            await taken.wait()
            if piece.length and not connection.mute:  # it was dropped
                self.sessions.count_dropped(client, len(some) - piece.done)
        return len(some)

    async def _look_after_sessions(self) -> None:
        while not self._context.store.follows:
            await trio.sleep(LOOK_SECONDS)
            await self._end_long_away()
            turn = TaskTurn()
            for _ in self._note_absences():
                await turn.item()
            self._context.store.commit_pending()

    def _note_absences(self) -> Iterator[None]:
        """Write absences, one with each step; whoever follows another server has its word for them."""
        if self._context.store.follows:
            return
        try:
            yield from self.sessions.absences.note(trio.current_time())
        except StoreError as error:
            self._context.log.warning(
                "absences cannot be written: a restart counts them from an older time; look at the disk",
                error=str(error),
            )

    async def _end_long_away(self) -> None:
        ended = 0
        turn = TaskTurn()
        for _ in self.sessions.end_long_away(trio.current_time()):
            ended += 1
            await turn.item()
        if ended:
            self._context.store.commit_pending()
            self._context.log.info(
                "sessions ended: their clients were away for pubsub.session_seconds, and have to "
                "subscribe again",
                sessions=ended,
            )

    def drain(self) -> None:
        """Write, or keep, what came in; closing a connection sends its outbox."""
        while not self.fanout.flush():
            pass

    def samples(self) -> Iterable[Sample]:
        return samples("pubsub", self.sessions.counts, GAUGES, self.sessions)

    async def trace(self, tap: Tap) -> None:
        pattern = tap.name.encode()
        if len(pattern) > TOPIC_BYTES_MAX:  # longer than any topic
            return

        def take(data: bytes) -> None:
            frames = data[: tap.room * FRAME_BYTES]
            for message in take_frames(frames)[0]:
                tap.copy(message.topic, message.value, sender=message.sender, type=Kind(message.kind).name)

        await tap.listen(lambda: self.sessions.observe(Observer(take), pattern))

    def _open_session(self, connection: Connection) -> Session:
        return Session(connection, self.sessions, self._context.access)

    def _open_syslog(self, intake: Intake, connection: Connection) -> SyslogSession:
        seconds = self.sessions.settings.command_seconds
        return SyslogSession(connection, intake, seconds, self._context.access)

    async def _end_retained(self, topic: bytes) -> None:
        """End what is retained of a topic, and return when a restart does not bring it back.

        Raises StoreError; where the store is read-only, nothing has changed.
        """
        if self.sessions.retained is not None:
            self._require_writable()
            await self._context.store.wait(self.sessions.retained.end(topic))

    def _require_writable(self) -> None:
        error = self._context.store.read_only
        if error is not None:
            raise type(error)(str(error))

    async def _end_session(self, client: ClientSession) -> None:
        """End the session of a client that is away, and return when a restart does not bring it back.

        Raises StoreError; where the store is read-only, nothing has changed.
        """
        self._require_writable()
        self.sessions.forget(client.id)
        if self.sessions.saved is not None:
            await self._context.store.wait(self.sessions.saved)  # no connection's turn commits it
