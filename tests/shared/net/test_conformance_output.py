"""What a session may rely on, under either driver and over every transport: its output."""

import os
from pathlib import Path

import trio
import trio.testing

from shared.file_range import FileRange
from shared.net.connection import Connection
from shared.net.outbox import Policy
from tests.shared.net.served import (
    Recorder,
    Serve,
    Sessions,
    echo,
    everywhere,
    read_all,
)


@everywhere
async def test_what_is_written_outside_a_round_leaves_at_once(serve: Serve) -> None:
    sessions = Sessions()
    async with serve(sessions) as served, await served.connect() as client:
        await client.send_all(b"hello")
        session = await sessions.next()
        await trio.testing.wait_all_tasks_blocked(0.01)
        session.connection.write(b"push")
        assert await read_all(client, 4) == b"push"


@everywhere
async def test_after_round_runs_after_the_sessions_and_its_writes_leave_too(serve: Serve) -> None:
    owed: list[Connection] = []

    def after_round() -> None:
        while owed:
            owed.pop().write(b"committed")

    def prepare(session: Recorder) -> None:
        session.on_receive = lambda data: owed.append(session.connection)

    async with serve(Sessions(prepare), after_round=after_round) as served, await served.connect() as client:
        await client.send_all(b"append")
        assert await read_all(client, 9) == b"committed"


@everywhere
async def test_one_session_may_write_to_another_connection(serve: Serve) -> None:
    sessions = Sessions()
    async with serve(sessions) as served:
        producer, publishing = await sessions.join(served)
        consumer, consuming = await sessions.join(served)

        def publish(data: bytes) -> None:
            for number in range(3):
                consuming.connection.write(b"<%d>" % number)

        publishing.on_receive = publish
        await producer.send_all(b"!")
        assert await read_all(consumer, 9) == b"<0><1><2>"


@everywhere
async def test_who_fills_another_connection_is_told_when_there_is_room_again(serve: Serve) -> None:
    """Also where one write did it, and the socket took it all at once afterwards."""
    sessions = Sessions()
    async with serve(sessions) as served:
        producer, publishing = await sessions.join(served)
        consumer, consuming = await sessions.join(served)
        outbox = consuming.connection.outbox
        outbox.bound = 1000
        drained = trio.Event()
        consuming.connection.on_drained = drained.set

        def publish(data: bytes) -> None:
            consuming.connection.write(b"x" * 1001)
            assert outbox.size > outbox.bound

        publishing.on_receive = publish
        await producer.send_all(b"!")
        await drained.wait()
        assert len(await read_all(consumer, 1001)) == 1001


@everywhere
async def test_large_answers_to_many_at_once_all_arrive(serve: Serve) -> None:
    size = 4_000_000
    received = []

    def prepare(session: Recorder) -> None:
        session.on_receive = lambda data: session.connection.write(b"x" * size)

    sessions = Sessions(prepare)
    async with serve(sessions) as served, trio.open_nursery() as nursery:

        async def ask() -> None:
            client, _ = await sessions.join(served)
            await client.send_all(b"?")
            received.append(len(await read_all(client, size)))

        for _ in range(6):
            nursery.start_soon(ask)
    assert received == [size] * 6


@everywhere
async def test_a_file_range_is_sent_in_its_place_and_then_released(serve: Serve, tmp_path: Path) -> None:
    path = tmp_path / "log"
    content = os.urandom(3_000_000)
    path.write_bytes(content)
    released = []

    with path.open("rb") as file:

        def prepare(session: Recorder) -> None:
            def answer(data: bytes) -> None:
                session.connection.write(b"head")
                session.connection.write_file(
                    FileRange(file.fileno(), 10, 2_500_000, lambda: released.append(True))
                )
                session.connection.write_file(FileRange(file.fileno(), 0, 0, lambda: released.append(True)))
                session.connection.write(b"tail")

            session.on_receive = answer

        async with serve(Sessions(prepare)) as served, await served.connect() as client:
            await client.send_all(b"fetch")
            expected = b"head" + content[10:2_500_010] + b"tail"
            assert await read_all(client, len(expected)) == expected
            assert released == [True, True]


class Late(FileRange):
    """Bytes that are not there before `come`, and then some at a time."""

    def __init__(self, connection: Connection, content: bytes) -> None:
        super().__init__(-1, 0, len(content), lambda: None)
        self.connection = connection
        self.content = content
        self.there = 0

    def read(self, bytes_max: int) -> bytes:
        if self.offset < self.there:
            return self.content[self.offset : min(self.there, self.offset + bytes_max)]
        trio.lowlevel.current_trio_token().run_sync_soon(self.come)
        raise BlockingIOError

    def come(self) -> None:
        self.there = min(self.there + 200_000, len(self.content))
        self.connection.go_on()


@everywhere
async def test_a_range_whose_bytes_come_later_is_sent_in_its_place(serve: Serve) -> None:
    content = os.urandom(1_500_000)

    def prepare(session: Recorder) -> None:
        def answer(data: bytes) -> None:
            session.connection.write(b"head")
            session.connection.write_file(Late(session.connection, content))
            session.connection.write(b"tail")

        session.on_receive = answer

    async with serve(Sessions(prepare)) as served, await served.connect() as client:
        await client.send_all(b"fetch")
        expected = b"head" + content + b"tail"
        assert await read_all(client, len(expected)) == expected


@everywhere
async def test_a_file_shorter_than_its_range_closes_the_connection(serve: Serve, tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"short")
    released = []
    with path.open("rb") as file:

        def prepare(session: Recorder) -> None:
            session.on_receive = lambda data: session.connection.write_file(
                FileRange(file.fileno(), 0, 100, lambda: released.append(True))
            )

        sessions = Sessions(prepare)
        async with serve(sessions) as served, await served.connect() as client:
            await client.send_all(b"fetch")
            await (await sessions.next()).lost.wait()
            assert released == [True]
            assert served.group.counters.closed == {"file ended early": 1}


@everywhere
async def test_a_slow_reader_under_the_wait_policy_is_not_read_from_until_it_has_caught_up(
    serve: Serve,
) -> None:
    """What it asks for is kept up to the bound; then its own requests wait, in its own buffers."""
    sessions = Sessions(echo)
    requests = 20_000_000  # more than any socket's buffers hold
    async with serve(sessions) as served:
        client, session = await sessions.join(served)
        drained: list[int] = []
        session.connection.outbox.bound = 100_000
        session.connection.on_drained = lambda: drained.append(session.connection.outbox.size)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(client.send_all, b"?" * requests)
            await trio.testing.wait_all_tasks_blocked(0.1)
            assert session.connection.outbox.size <= 100_000 + served.network.settings.read_bytes_max
            assert len(session.data) < requests, "all was read although nothing was taken"
            assert len(await read_all(client, requests)) == requests
        assert drained
        assert max(drained) <= 50_000


@everywhere
async def test_a_session_that_stops_at_the_bound_is_told_when_to_go_on(serve: Serve) -> None:
    """A thousand requests of one batch, answered no further than the outbox should hold, then further."""
    pending = 0

    def prepare(session: Recorder) -> None:
        connection = session.connection
        connection.outbox.bound = 100_000

        def answer() -> None:
            nonlocal pending
            while pending and connection.outbox.size <= connection.outbox.bound:
                connection.write(b"x" * 30_000)
                pending -= 1

        def ask(data: bytes) -> None:
            nonlocal pending
            pending += len(data)
            answer()
            assert connection.outbox.size <= 130_000

        session.on_receive, connection.on_drained = ask, answer

    async with serve(Sessions(prepare)) as served, await served.connect() as client:
        await client.send_all(b"?" * 1000)
        assert len(await read_all(client, 30_000_000)) == 30_000_000
        assert pending == 0


@everywhere
async def test_a_slow_consumer_under_the_drop_policy_loses_its_oldest_whole_chunks(serve: Serve) -> None:
    sessions = Sessions()
    async with serve(sessions) as served, await served.connect() as client:
        await client.send_all(b"subscribe")
        connection = (await sessions.next()).connection
        connection.outbox.bound, connection.outbox.policy = 500_000, Policy.DROP
        count = 500
        for number in range(count):  # 50 MB, and nobody reads
            connection.write(b"%08d" % number * 12_500)
            await trio.lowlevel.checkpoint()
        assert connection.outbox.waiting_bytes <= 500_000
        counters = served.group.counters
        assert counters.dropped_chunks == connection.outbox.dropped_chunks > 0
        connection.finish()
        received = await read_all(client)
        chunks = [received[at : at + 100_000] for at in range(0, len(received), 100_000)]
        assert all(chunk == chunk[:8] * 12_500 for chunk in chunks), "a chunk was torn"
        numbers = [int(chunk[:8]) for chunk in chunks]
        assert numbers == sorted(numbers)
        assert numbers[-1] == count - 1, "the newest stays"
        assert len(numbers) + counters.dropped_chunks == count
        assert counters.dropped_bytes == counters.dropped_chunks * 100_000


@everywhere
async def test_a_slow_consumer_under_the_disconnect_policy_is_closed(serve: Serve) -> None:
    sessions = Sessions()
    async with serve(sessions) as served, await served.connect() as client:
        await client.send_all(b"subscribe")
        session = await sessions.next()
        session.connection.outbox.bound = 500_000
        session.connection.outbox.policy = Policy.DISCONNECT
        while not session.connection.closed:
            session.connection.write(b"x" * 100_000)
            await trio.lowlevel.checkpoint()
        await session.lost.wait()
        assert served.group.counters.closed == {"slow consumer": 1}
        assert served.network.backlogs.held_bytes == 0


@everywhere
async def test_a_slow_consumer_holds_up_nobody_else(serve: Serve) -> None:
    sessions = Sessions(echo)
    async with serve(sessions) as served:
        _, slow = await sessions.join(served)
        quick, _ = await sessions.join(served)
        slow.connection.outbox.policy = Policy.DROP
        for _ in range(100):
            slow.connection.write(b"x" * 1_000_000)
        for number in range(50):
            await quick.send_all(b"%d" % number)
            assert await read_all(quick, len(b"%d" % number)) == b"%d" % number


@everywhere
async def test_all_outboxes_together_are_bounded_and_the_largest_pays(serve: Serve) -> None:
    sessions = Sessions()
    async with serve(sessions) as served:
        served.network.backlogs.memory.limit_bytes = 40_000_000
        _, dropping = await sessions.join(served)
        _, largest = await sessions.join(served)
        _, small = await sessions.join(served)
        for session in (dropping, largest, small):
            session.connection.outbox.bound = 1 << 40
        dropping.connection.outbox.policy = Policy.DROP
        for _ in range(20):
            dropping.connection.write(b"x" * 1_000_000)
        small.connection.write(b"x" * 1000)
        while not largest.connection.closed:
            largest.connection.write(b"x" * 1_000_000)
            await trio.lowlevel.checkpoint()  # it may wait for the driver, and is not counted until then
            assert served.network.backlogs.held_bytes <= 40_000_000
        assert served.network.backlogs.times_shed > 0
        assert not small.connection.closed
        assert not dropping.connection.closed
        await largest.lost.wait()
        assert served.group.counters.closed == {"outbox memory": 1}


@everywhere
async def test_what_sessions_hold_of_unfinished_input_counts_with_the_outboxes(serve: Serve) -> None:
    sessions = Sessions()
    async with serve(sessions) as served:
        backlogs = served.network.backlogs
        _, sending = await sessions.join(served)
        _, done = await sessions.join(served)
        _, largest = await sessions.join(served)
        sending.connection.outbox.bound = 1 << 40
        while backlogs.held_bytes < 10_000_000:  # whatever the sockets' buffers hold
            sending.connection.write(b"x" * 1_000_000)
            await trio.testing.wait_all_tasks_blocked()
        unsent = backlogs.held_bytes
        backlogs.memory.limit_bytes = unsent + 20_000_000
        done.connection.hold(10_000_000)
        done.connection.hold(0)  # it came to its end
        largest.connection.hold(15_000_000)
        assert 15_000_000 < backlogs.held_bytes <= unsent + 15_000_000
        assert backlogs.times_shed == 0
        largest.connection.hold(25_000_000)
        await largest.lost.wait()
        largest.connection.hold(30_000_000)  # nobody is there to pay
        assert not done.connection.closed
        assert not sending.connection.closed
        assert served.group.counters.closed == {"input memory": 1}
        assert backlogs.held_bytes <= unsent
