"""LogMQ on a real store behind real sockets: what the fakes cannot show."""

from pathlib import Path

from logmq.settings import LogmqSettings, TopicSettings
from tests.logmq.served import served
from tests.logmq.world import records


async def test_a_first_session_with_nc(tmp_path: Path) -> None:
    async with served(tmp_path) as server:
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
