"""Many peers at once that do everything at random: what holds of each of them, and of all in the end."""

import random
import struct

import pytest
import trio

from tests.shared.net.served import Recorder, Sessions, serving

CLIENTS = 30
BYTES_MAX = 300_000
RESET = struct.pack("ii", 1, 0)


@pytest.mark.parametrize("seed", [1, 2, 3])
async def test_every_peer_gets_its_own_bytes_in_order_or_is_known_to_be_gone(seed: int) -> None:
    chance = random.Random(seed)
    opened: list[Recorder] = []

    def prepare(session: Recorder) -> None:
        """An echo that now and then stops reading for a while, or at the bound of its outbox."""
        connection = session.connection
        connection.outbox.bound = chance.choice((1000, 100_000, 1 << 30))
        opened.append(session)

        paused = False

        def receive(data: bytes) -> None:
            nonlocal paused
            assert not paused, "it was read from although it paused"
            assert connection.outbox.size <= connection.outbox.bound, "it was read from above its bound"
            cut = chance.randrange(len(data) + 1)
            connection.write(data[:cut])
            connection.write(data[cut:])
            if chance.random() < 0.2:
                paused = True
                connection.pause_reading()
                connection.wake_at(connection.now + chance.choice((0, 0.001, 0.01)))

        def resume(now: float) -> None:
            nonlocal paused
            paused = False
            connection.resume_reading()

        session.on_receive, session.on_time = receive, resume

    async def well_behaved(client: trio.abc.HalfCloseableStream) -> None:
        text = chance.randbytes(chance.randrange(BYTES_MAX))
        received = bytearray()

        async def send() -> None:
            at = 0
            while at < len(text):
                size = chance.choice((1, 100, 70_000, BYTES_MAX))
                await client.send_all(text[at : at + size])
                at += size
            await client.send_eof()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(send)
            while more := await client.receive_some(chance.choice((1000, 1_000_000))):
                received += more
        assert received == text

    async def rude(client: trio.SocketStream) -> None:
        await client.send_all(bytes(chance.randrange(1, 100_000)))
        if chance.random() < 0.5:
            client.setsockopt(1, 13, RESET)  # SOL_SOCKET, SO_LINGER
        await trio.aclose_forcefully(client)

    async with serving("plain", Sessions(prepare)) as served:
        async with trio.open_nursery() as nursery:
            for number in range(CLIENTS):
                client = await served.connect()
                assert isinstance(client, trio.SocketStream)
                nursery.start_soon(rude if number % 3 == 0 else well_behaved, client)
        for session in opened:
            await session.lost.wait()
        counters = served.group.counters
        assert counters.crashes == 0
        assert counters.accepted == len(opened) == sum(counters.closed.values())
        assert served.network.admission.connections == 0
        assert served.network.backlogs.held_bytes == 0
    for session in opened:
        assert session.calls.count("lost") == 1
        assert session.calls[-1] == "lost"
        assert session.calls.count("eof") <= 1
