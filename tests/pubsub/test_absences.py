"""How long clients are away counts over restarts: in time that the server ran."""

import trio

from pubsub.absences import Absences
from pubsub.listener import PubsubService, open_pubsub
from pubsub.settings import AWAY_LOG, NAMESPACE, PubsubSettings
from pubsub.wire import Command, encode_command, encode_id
from shared.plugin import Context, TcpEndpoint
from shared.storage.table import Table
from tests.pubsub.world import LOG
from tests.support.connections import MemoryConnection
from tests.support.fake_disk import FakeDisk
from tests.support.stores import ALWAYS, open_store

DAY = 600.0
"""Of these tests."""


class Life:
    """A server on a disk that runs for a while, is killed, and is started again."""

    def __init__(self) -> None:
        self.disk = FakeDisk()
        self.service: PubsubService | None = None

    async def start(self) -> PubsubService:
        if self.service is not None:
            self.disk = self.disk.kill()
        self.context = Context(await open_store(self.disk), LOG)
        self.service = await open_pubsub(self.context, PubsubSettings(session_seconds=7 * DAY))
        return self.service

    async def run(self, seconds: float) -> None:
        assert self.service is not None
        with trio.move_on_after(seconds):
            await self.service.run()
        self.context.store.commit_pending()

    def visit(self, client_id: bytes, leave: bool = True) -> None:
        assert self.service is not None
        endpoint = self.service.endpoints[0]
        assert isinstance(endpoint, TcpEndpoint)
        session = endpoint.open_session(connection := MemoryConnection(now=trio.current_time()))
        session.receive(encode_id(client_id) + encode_command(Command.SUBSCRIBE, b"home"))
        assert connection.reading
        if leave:
            session.connection_lost()


async def test_the_time_away_goes_on_after_a_restart_and_stands_still_while_the_server_is_down(
    autojump_clock: trio.testing.MockClock,
) -> None:
    life = Life()
    await life.start()
    life.visit(b"old")
    await life.run(4 * DAY)
    life.visit(b"new")
    await life.run(0.2 * DAY)
    await trio.sleep(100 * DAY)  # down
    service = await life.start()
    await life.run(2.6 * DAY)
    assert service.sessions.clients.keys() == {b"old", b"new"}
    service = await life.start()
    await life.run(0.6 * DAY)
    assert service.sessions.clients.keys() == {b"new"}
    await life.run(4 * DAY)
    assert service.sessions.clients == {}


async def test_who_came_back_counts_anew_and_a_session_that_ended_leaves_no_trace(
    autojump_clock: trio.testing.MockClock,
) -> None:
    life = Life()
    await life.start()
    life.visit(b"A")
    await life.run(6 * DAY)
    life.visit(b"A")
    await life.run(6 * DAY)
    service = await life.start()
    assert service.sessions.clients.keys() == {b"A"}
    await life.run(1.4 * DAY)
    assert service.sessions.clients == {}
    service = await life.start()
    assert service.sessions.clients == {}
    # Its id is as one that nobody ever had: it begins anew.
    life.visit(b"A")
    await life.run(6.5 * DAY)
    assert service.sessions.clients.keys() == {b"A"}


async def test_short_absences_write_nothing() -> None:
    store = await open_store(FakeDisk())
    table = await Table.open(store.namespace(NAMESPACE, ALWAYS), AWAY_LOG)
    absences = Absences(table)
    absences.load((), 0.0)
    for number in range(100):
        absences.left(b"A", float(number))
        absences.over(b"A")
    list(absences.note(200.0))
    assert len(table) == 0
