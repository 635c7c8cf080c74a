"""A client's writing side in protocols without answers: any number of tasks share one connection.

What tasks send at once goes out together. A cancelled send is made all the same.
"""

from collections.abc import Callable, Iterable

from shared.client.dial import Disconnected, check_plain
from shared.client.loop import ClientConnection, Loop
from shared.errors import BrokerError

CLOSING_SECONDS = 30.0
"""How long the server may take to read the last bytes."""
LOOK_SECONDS = 0.001
"""How long to look whether the server has closed, or said something, before our end: a refusal or a stop."""
_LOOK_ROUNDS = 5
"""How many rounds of the loop a look goes on after that: TLS takes three to read what has arrived.

On a busy loop LOOK_SECONDS alone pass before the socket is read, and a refusal would look like success.
"""
_PIECE_BYTES = 256 * 1024
"""The size of the pieces that `send_many` sends."""
_WORDS_BYTES_MAX = 64 * 1024


class Sender(ClientConnection):
    """Writes; `Loop.connect` connects it.

    `last_words`: turns the server's last bytes into an error, or None for no bytes. Leave it out for
    protocols in which the server sends nothing. `secret`: errors quote nothing the server sent, which may
    echo a password. `reset`: the server ended the connection by a reset.
    """

    def __init__(
        self,
        loop: Loop,
        last_words: Callable[[bytes], BrokerError | None] | None = None,
        secret: bool = False,
    ) -> None:
        self._loop = loop
        self._last_words = last_words
        self._secret = secret
        self._received = bytearray()
        self._end = loop.event()
        self._lost: BrokerError | None = None
        self._told = False
        self.reset = False

    async def send(self, data: bytes) -> None:
        """Send; returns when the kernel has the bytes. Raises Disconnected, or the server's last words."""
        if self._lost is None:
            self.transport.write(data)
            await self.transport.drain()
        if self._lost is not None:
            self._told = True
            raise self._lost.with_traceback(None)

    async def send_many(self, parts: Iterable[bytes]) -> None:
        """Send many parts, some hundred KiB at a time."""
        piece: list[bytes] = []
        size = 0
        for part in parts:
            piece.append(part)
            size += len(part)
            if size >= _PIECE_BYTES:
                await self.send(b"".join(piece))
                piece, size = [], 0
        if piece:
            await self.send(b"".join(piece))

    async def finish(self) -> None:
        """Send our end, and wait until the server has read everything and closed. Raises as `send` does."""
        if self._told:
            return
        await self._loop.wait(self._end, LOOK_SECONDS)
        for _ in range(_LOOK_ROUNDS):
            await self._loop.sleep(0)
        if self._end.is_set():
            assert self._lost is not None
            raise self._words() or self._lost
        self.transport.write_eof()
        ended = await self._loop.wait(self._end, CLOSING_SECONDS)
        failure = self._words() or (self._lost if self.reset else None)
        self._lost, self._told = Disconnected("all is sent already"), True
        self.transport.close()
        if not ended:
            raise Disconnected(f"the server has not read everything in {CLOSING_SECONDS:g} s")
        if failure is not None:
            raise failure

    def _words(self) -> BrokerError | None:
        said = bytes(self._received)
        if self._last_words is not None:
            return self._last_words(said)
        if not said:
            return None
        try:
            check_plain(said)
        except Disconnected as error:
            return error
        words = "" if self._secret else f": it says {said[:100]!r}"
        return Disconnected(f"the server is of another protocol{words}")

    # What the loop calls.

    def received(self, data: bytes | bytearray) -> None:
        if len(self._received) < _WORDS_BYTES_MAX:
            self._received += data

    def ended(self, error: Disconnected | None) -> None:
        self.reset = error is not None
        self._lost = (self._words() if self._last_words is not None else None) or error
        if self._lost is None:
            self._lost = Disconnected("the server closed before it had read everything")
        self._end.set()
