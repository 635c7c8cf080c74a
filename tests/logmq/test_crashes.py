"""A bug in what one session does on the store's time costs its connection, and no other's."""

from pathlib import Path

import pytest

from logmq import readers
from tests.logmq.served import Socket, served
from tests.support.crashing import failing_once


@pytest.mark.parametrize(
    ("owner", "name", "request_line"),
    [
        (readers.Tail, "push", b"TAIL t 8"),
        (readers.Fetch, "read", b"FETCH t 8 100 60000"),
        (readers.Fetch, "answer", b"FETCH t 8 100 60000"),
        (readers.Tail, "found", b"TAIL late 0"),
        (readers.Fetch, "found", b"FETCH late 0 100 60000"),
        (readers.Tail, "refuse", b"TAIL gone 8"),
        (readers.Fetch, "refuse", b"FETCH gone 8 100 60000"),
    ],
)
async def test_a_reader_that_fails_leaves_the_other_readers_their_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, owner: type, name: str, request_line: bytes
) -> None:
    async with served(tmp_path) as server:
        writer = await server.connect()
        assert await writer.ask(b"PRODUCE t zero") == b"OK 0"
        assert await writer.ask(b"PRODUCE gone zero") == b"OK 0"
        peers = []
        for _ in range(2):
            peer = await server.connect()
            await peer.send(b"PING\n" + request_line + b"\n")
            assert await peer.line() == b"PONG"  # the reader came with it, and waits
            peers.append(peer)
        monkeypatch.setattr(owner, name, failing_once(getattr(owner, name)))
        assert await writer.ask(b"PRODUCE t one") == b"OK 8"
        assert await writer.ask(b"PRODUCE late one") == b"OK 0"
        assert await writer.ask(b"DELETE gone") == b"OK"
        answers = sorted([await rest_of_line(peer) for peer in peers])
        assert answers[0] == b"", "the one that failed is closed"
        assert answers[1].startswith((b"MESSAGE", b"CHUNK", b"ERR NO_TOPIC"))
        assert server.group.counters.crashes == 1
        assert await writer.ask(b"PING") == b"PONG"


async def rest_of_line(peer: Socket) -> bytes:
    """A line, or nothing where the server closed."""
    try:
        return await peer.line()
    except AssertionError:
        return b""
