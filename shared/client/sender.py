"""A client's writing side in protocols without answers: any number of tasks share one stream.

What tasks send during a send goes out together in the next. A failed or cancelled send may have sent half a
message, so it ends the connection.
"""

from collections.abc import Callable, Iterable

import trio

from shared.client.dial import Disconnected, broken, check_plain
from shared.client.nursery import open_nursery
from shared.errors import BrokerError

CLOSING_SECONDS = 30.0
"""How long the server may take to read the last bytes."""
LOOK_SECONDS = 0.001
"""How long to look whether the server has closed, or said something, before our end: a refusal or a stop."""
_LOOK_ROUNDS = 5
"""How many rounds of trio's loop a look goes on after that: TLS takes three to read what has arrived.

On a busy loop LOOK_SECONDS alone pass before the socket is read, and a refusal would look like success.
"""
_PIECE_BYTES = 256 * 1024
"""The size of the pieces that `send_many` sends."""
_RECEIVE_BYTES = 64 * 1024


class Sender:
    """Writes to `stream`, which the caller closes.

    `last_words`: turns the server's last bytes into an error, or None for no bytes. Leave it out for
    protocols in which the server sends nothing. `secret`: errors quote nothing the server sent, which may
    echo a password.
    """

    def __init__(
        self,
        stream: trio.abc.Stream,
        last_words: Callable[[bytes], BrokerError | None] | None = None,
        secret: bool = False,
    ) -> None:
        self._stream = stream
        self._last_words = last_words
        self._secret = secret
        self._pending: list[bytes] = []
        self._sending = trio.Lock()
        self._lost: BrokerError | None = None

    async def send(self, data: bytes) -> None:
        """Send; returns when the kernel has the bytes. Raises Disconnected, or the server's last words."""
        pending = self._pending
        pending.append(data)
        try:
            await self._sending.acquire()
        except trio.Cancelled:
            if pending is self._pending:  # else another task sends it
                pending[:] = [other for other in pending if other is not data]
            raise
        try:
            if self._lost is not None:
                raise self._lost.with_traceback(None)
            if not self._pending:  # the task before this one has sent it
                return
            pending, self._pending = self._pending, []
            try:
                await self._stream.send_all(b"".join(pending))
            except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
                self._lost = broken(error, "closed")
                if self._last_words is not None:
                    try:
                        self._lost = await self._read_rest() or self._lost
                    except (trio.BrokenResourceError, trio.ClosedResourceError):
                        pass
                raise self._lost.with_traceback(None) from error
            except trio.Cancelled:
                self._lost = Disconnected("a send was cancelled")
                await trio.aclose_forcefully(self._stream)
                raise
        finally:
            self._sending.release()

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
        async with self._sending:
            if self._lost is not None:
                return
            self._lost = Disconnected("all is sent already")
            received = bytearray()
            try:
                async with open_nursery() as looking:
                    looking.start_soon(_end_look, looking.cancel_scope)
                    await self._read_to_end(received)
                    early = Disconnected("the server closed before it had read everything")
                    raise self._words(received) or early
                with trio.fail_after(CLOSING_SECONDS):
                    if isinstance(self._stream, trio.abc.HalfCloseableStream):
                        await self._stream.send_eof()
                        await self._read_to_end(received)
                    else:  # under TLS both ends close with a TLS alert
                        assert isinstance(self._stream, trio.SSLStream)
                        transport, _ = await self._stream.unwrap()
                        await transport.aclose()
            except trio.TooSlowError:
                why = f"the server has not read everything in {CLOSING_SECONDS:g} s"
                raise Disconnected(why) from None
            except trio.BrokenResourceError as error:
                raise self._words(received) or broken(error) from error
            words = self._words(received)
            if words is not None:
                raise words

    async def _read_rest(self) -> BrokerError | None:
        received = bytearray()
        await self._read_to_end(received)
        return self._words(received)

    async def _read_to_end(self, received: bytearray) -> None:
        while data := await self._stream.receive_some(_RECEIVE_BYTES):
            if len(received) < _RECEIVE_BYTES:
                received += data

    def _words(self, said: bytearray) -> BrokerError | None:
        if self._last_words is not None:
            return self._last_words(bytes(said))
        if not said:
            return None
        check_plain(said)
        words = "" if self._secret else f": it says {bytes(said[:100])!r}"
        return Disconnected(f"the server is of another protocol{words}")


async def _end_look(scope: trio.CancelScope) -> None:
    await trio.sleep(LOOK_SECONDS)
    for _ in range(_LOOK_ROUNDS):
        await trio.sleep(0)  # noqa: ASYNC115 - trio.lowlevel is the drivers' alone
    scope.cancel()
