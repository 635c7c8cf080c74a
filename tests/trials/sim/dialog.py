"""A client's end of one connection: requests out, replies in, in the words of LogMQ's PROTOCOL.md."""

from collections.abc import Sequence

import attrs

from tests.support.promises import BrokenPromiseError
from tests.trials.logmq_model import LENGTH_BYTES, Record, split
from tests.trials.sim.probe_client import Gone, Talk


@attrs.frozen
class Refused:
    """An ERR line."""

    code: str
    text: str


class Dialog(Talk):
    """Lines and bodies over a wire. Raises Gone when the connection ends, BrokenPromiseError on nonsense."""

    async def line(self) -> bytes:
        end = self._buffer.find(b"\n")
        while end < 0:
            await self._more()
            end = self._buffer.find(b"\n")
        line = bytes(self._buffer[:end])
        del self._buffer[: end + 1]
        self._world.say(f"{self._who} < {line[:80]!r}")
        return line

    async def exactly(self, size: int) -> bytes:
        while len(self._buffer) < size:
            await self._more()
        data = bytes(self._buffer[:size])
        del self._buffer[:size]
        return data

    async def finish(self) -> None:
        """We say nothing more, and nothing more may come but the end."""
        await self.half_close()
        await self.at_end()

    async def at_end(self) -> None:
        """Nothing more may come but the end."""
        try:
            while not self._buffer:
                await self._more()
        except Gone:
            return
        raise BrokenPromiseError(f"{self._who} was sent more than it asked for: {bytes(self._buffer[:80])!r}")

    # -- replies

    async def ok(self) -> int | Refused:
        """`OK <offset>`, or a refusal."""
        line = await self.line()
        if line.startswith(b"ERR "):
            return _refused(line)
        word, _, number = line.partition(b" ")
        if word != b"OK" or not number.isdigit():
            raise BrokenPromiseError(f"{self._who} expected OK and an offset: {line[:80]!r}")
        return int(number)

    async def plain(self, expected: bytes) -> Refused | None:
        """A reply of one fixed line; None when it came."""
        line = await self.line()
        if line.startswith(b"ERR "):
            return _refused(line)
        if line != expected:
            raise BrokenPromiseError(f"{self._who} expected {expected!r}: {line[:80]!r}")
        return None

    async def numbers(self, word: bytes, count: int) -> Sequence[int] | Refused:
        """A reply of a word and so many numbers."""
        line = await self.line()
        if line.startswith(b"ERR "):
            return _refused(line)
        first, *fields = line.split(b" ")
        if first != word or len(fields) != count or not all(field.isdigit() for field in fields):
            raise BrokenPromiseError(f"{self._who} expected {word!r} and {count} numbers: {line[:80]!r}")
        return [int(field) for field in fields]

    async def lines_to_end(self) -> list[list[bytes]] | Refused:
        """Rows up to END."""
        rows: list[list[bytes]] = []
        while True:
            line = await self.line()
            if line.startswith(b"ERR "):
                return _refused(line)
            if line == b"END":
                return rows
            rows.append(line.split(b" "))

    async def message(self) -> Record | Refused | int | None:
        """MESSAGE (a record), EOF (None), a refusal, or OK (its number, the end of a TAIL).

        Who is cancelled while waiting for it has taken nothing of it.
        """
        while (end := self._message_end()) is None:
            await self._more()
        data = bytes(self._buffer[:end])
        del self._buffer[: end + 1]
        self._world.say(f"{self._who} < {data[:80]!r}")
        if data == b"EOF":
            return None
        if data.startswith(b"ERR "):
            return _refused(data)
        if data.startswith(b"OK ") and data[3:].isdigit():
            return int(data[3:])
        _, offset, _, payload = data.split(b" ", 3)
        return int(offset), payload

    def _message_end(self) -> int | None:
        """Where the next reply to a read of messages ends: a payload may hold newlines. None: not yet."""
        if self._buffer.startswith(b"MESSAGE "):
            head = bytes(self._buffer[:64]).split(b" ", 3)
            if len(head) < 4:
                return None
            if not head[1].isdigit() or not head[2].isdigit():
                raise BrokenPromiseError(f"{self._who} expected MESSAGE: {bytes(self._buffer[:80])!r}")
            end = sum(map(len, head[:3])) + 3 + int(head[2])
            if len(self._buffer) <= end:
                return None
            if self._buffer[end] != 10:
                raise BrokenPromiseError(f"{self._who}: a MESSAGE is longer than it says: {head!r}")
            return end
        end = self._buffer.find(b"\n")
        if end < 0:
            return None
        if not self._buffer.startswith((b"EOF\n", b"ERR ", b"OK ")):
            raise BrokenPromiseError(f"{self._who} expected MESSAGE: {bytes(self._buffer[:80])!r}")
        return end

    async def whole(self, topic: str, offset: int = 0) -> list[Record]:
        """All records from `offset` on, by FETCH, after a start. Raises BrokenPromiseError where they cannot
        be read."""
        records: list[Record] = []
        while True:
            await self.send(b"FETCH %s %d 65536\n" % (topic.encode(), offset))
            answer = await self.chunk()
            if answer is None:
                return records
            if isinstance(answer, Refused):
                raise BrokenPromiseError(f"{topic} cannot be read at {offset} after a start: {answer}")
            records += answer
            last, payload = answer[-1]
            offset = last + LENGTH_BYTES + len(payload)

    async def chunk(self) -> list[Record] | Refused | None:
        """CHUNK as records, EOF as None, or a refusal."""
        line = await self.line()
        if line == b"EOF":
            return None
        if line.startswith(b"ERR "):
            return _refused(line)
        word, *fields = line.split(b" ")
        if word != b"CHUNK" or len(fields) != 3 or not all(field.isdigit() for field in fields):
            raise BrokenPromiseError(f"{self._who} expected CHUNK: {line[:80]!r}")
        offset, length, following = map(int, fields)
        records = split(await self.exactly(length), offset)
        if records is None or not records or following != offset + length:
            raise BrokenPromiseError(f"{self._who}: a CHUNK is not whole records: {line[:80]!r}")
        return records


def _refused(line: bytes) -> Refused:
    _, code, *text = line.decode().split(" ", 2)
    return Refused(code, text[0] if text else "")
