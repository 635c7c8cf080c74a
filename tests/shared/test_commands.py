"""Lines from standard input are whole however they come, and a server that goes away ends a command."""

import errno

import pytest
import trio

from shared.cli.commands import line_runs, lost_is_refused
from shared.client.dial import Disconnected, Unreachable


async def test_lines_are_cut_where_they_end_however_they_come() -> None:
    class Pieces:
        def __init__(self, *pieces: bytes) -> None:
            self.pieces = list(pieces)

        async def read1(self, _: int) -> bytes:
            await trio.lowlevel.checkpoint()
            return self.pieces.pop(0) if self.pieces else b""

    async def lines(*pieces: bytes) -> list[bytes]:
        return [line async for many in line_runs(Pieces(*pieces)) for line in many]

    assert await lines(b"a\nb", b"", b"never") == [b"a", b"b"]
    assert await lines(b"a\r", b"\nb", b"c\n\n", b"d") == [b"a", b"bc", b"", b"d"]
    assert await lines(b"a", b"b", b"c\n") == [b"abc"]


@pytest.mark.parametrize("lost", [Disconnected, Unreachable])
def test_a_lost_connection_is_told_as_a_refused_one(lost: type[Disconnected]) -> None:
    with pytest.raises(ConnectionRefusedError) as told, lost_is_refused():
        raise lost("the server closed the connection")
    assert told.value.errno == errno.ECONNREFUSED
    assert told.value.strerror == "the server closed the connection"
