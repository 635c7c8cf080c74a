"""LogMQ on a real store behind real sockets: what the fakes cannot show."""

from pathlib import Path
from typing import Literal

import pytest

from logmq.settings import LogmqSettings, TopicSettings
from shared.net.settings import NetSettings
from shared.storage.settings import Durability
from tests.logmq.served import served
from tests.logmq.world import record, records


@pytest.mark.parametrize("driver", ["auto", "stream"])
async def test_a_first_session_with_nc(tmp_path: Path, driver: Literal["auto", "stream"]) -> None:
    async with served(tmp_path, net=NetSettings(driver=driver)) as server:
        peer = await server.connect()
        await peer.send(
            b"PRODUCE orders item-1\nPRODUCE orders item-2\nCONSUME orders 0\nFETCH orders 0 99\n"
        )
        await peer.stream.send_eof()
        assert await peer.rest() == (
            b"OK 0\nOK 10\nMESSAGE 0 6 item-1\nCHUNK 0 20 20\n" + records(b"item-1", b"item-2")
        )


async def test_the_file_is_the_specs_byte_for_byte(tmp_path: Path) -> None:
    async with served(tmp_path) as server:
        peer = await server.connect()
        assert await peer.ask(b"PRODUCE orders hello-world") == b"OK 0"
    assert (tmp_path / "logmq" / "orders.log").read_bytes() == bytes.fromhex("0000000b68656c6c6f2d776f726c64")


@pytest.mark.parametrize("clean", [True, False])
async def test_everything_acknowledged_is_there_after_a_restart(tmp_path: Path, clean: bool) -> None:
    settings = LogmqSettings(topics={"n*": TopicSettings(durability=Durability.parse("none"))})
    async with served(tmp_path, settings, clean=clean) as server:
        peer = await server.connect()
        await peer.send(b"PRODUCE t one\nPRODUCE n one\nBATCH t w 7 7\n" + record(b"two") + b"COMMIT g t 7\n")
        assert [await peer.line() for _ in range(4)] == [b"OK 0", b"OK 0", b"OK 7", b"OK 7"]
        await peer.send(
            b"PRODUCE gone x\nCOMMIT g gone 5\nBATCH gone w 7 7\n" + record(b"two") + b"DELETE gone\n"
        )
        assert [await peer.line() for _ in range(4)] == [b"OK 0", b"OK 5", b"OK 5", b"OK"]
    async with served(tmp_path, settings) as server:
        peer = await server.connect()
        assert await peer.ask(b"CONSUME t 7") == b"MESSAGE 7 3 two"
        assert await peer.ask(b"CONSUME n 0") == b"MESSAGE 0 3 one"
        assert await peer.ask(b"COMMITTED g t") == b"OK 7"
        await peer.send(b"BATCH t w 7 7\n" + record(b"two"))
        assert await peer.line() == b"OK 7"
        assert await peer.ask(b"OFFSETS t") == b"OFFSETS 0 14"
        assert await peer.ask(b"PRODUCE gone y") == b"OK 0"
        assert (await peer.ask(b"COMMITTED g gone")).startswith(b"ERR NO_COMMIT ")
        await peer.send(b"BATCH gone w 7 7\n" + record(b"two"))
        assert await peer.line() == b"OK 5"


async def test_tails_and_fetches_on_several_connections(tmp_path: Path) -> None:
    async with served(tmp_path) as server:
        writer = await server.connect()
        tails = [await server.connect() for _ in range(10)]
        fetch = await server.connect()
        for tail in tails:
            await tail.send(b"TAIL t 0\n")
        await fetch.send(b"FETCH t 0 1000 10000\n")
        await writer.send(b"".join(b"PRODUCE t %04d\n" % number for number in range(1000)))
        expected = b"".join(b"MESSAGE %d 4 %04d\n" % (8 * number, number) for number in range(1000))
        for tail in tails:
            assert await tail.take(len(expected)) == expected
        assert (await fetch.line()).startswith(b"CHUNK 0 ")
        for tail in tails:
            await tail.send(b"stop\n")
            assert await tail.line() == b"OK 8000"
        assert (await writer.ask(b"PING")).startswith(b"OK")


async def test_a_large_fetch_arrives_whole(tmp_path: Path) -> None:
    body = bytes(range(256)) * 2048
    async with served(tmp_path) as server:
        peer = await server.connect()
        for number in range(20):
            await peer.send(b"APPEND t %d\n%b" % (len(body), body))
            assert await peer.line() == b"OK %d" % (number * (len(body) + 4))
        total = 20 * (len(body) + 4)
        for _ in range(2):  # what has been checked once is served in larger pieces
            at, pieces = 0, []
            while at < total:
                await peer.send(b"FETCH t %d 67108864\n" % at)
                _, offset, length, following = (await peer.line()).split()
                assert (int(offset), int(following)) == (at, at + int(length))
                pieces.append(await peer.take(int(length)))
                at = int(following)
            assert b"".join(pieces) == record(body) * 20
        assert len(pieces) == 1
        assert await peer.ask(b"PING") == b"PONG"


async def test_marks_cover_a_log_without_gaps(tmp_path: Path) -> None:
    async with served(tmp_path) as server:
        peer = await server.connect()
        await peer.send(b"".join(b"PRODUCE t %05d%b\n" % (number, b"x" * 95) for number in range(3000)))
        for _ in range(3000):
            await peer.line()
        await peer.send(b"MARKS t 0 999999999\n")
        at = count = 0
        while (line := await peer.line()) != b"END":
            word, offset, length, found, _, unix_ms = line.split(b" ")
            assert (word, int(offset)) == (b"MARK", at)
            at += int(length)
            count += int(found)
            assert int(unix_ms) > 1_600_000_000_000
        assert at <= 3000 * 104
        assert at == 104 * count
        assert await peer.ask(b"SEEK t 0") == b"OK 0"


async def test_retention_moves_the_first_offset_and_readers_are_told(tmp_path: Path) -> None:
    settings = LogmqSettings(topics={"short*": TopicSettings(retention_bytes=200_000)})
    async with served(tmp_path, settings) as server:
        peer = await server.connect()
        for topic in (b"short", b"long"):
            for _ in range(20):
                await peer.send(b"APPEND %b 50000\n" % topic + b"x" * 50_000)
                await peer.line()
        await server.broker.store.retain()
        _, first, end = (await peer.ask(b"OFFSETS short")).split()
        assert int(end) == 20 * 50_004
        assert int(end) - int(first) < 400_000
        assert int(first) > 0
        assert (await peer.ask(b"CONSUME short 0")) == b"ERR OUT_OF_RANGE the first kept offset is " + first
        assert (await peer.ask(b"CONSUME short " + first)).startswith(b"MESSAGE " + first + b" 50000 ")
        assert await peer.ask(b"OFFSETS long") == b"OFFSETS 0 1000080"
