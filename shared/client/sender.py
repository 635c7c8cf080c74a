"""A client's writing side in protocols without answers: any number of tasks share one stream.

What tasks send while a send is under way goes out in one piece. A failed or cancelled send may have left half
a message behind, so it is the end of the connection.
"""

from collections.abc import Callable, Iterable

import trio

from shared.client.dial import Disconnected, broken, check_plain
from shared.errors import BrokerError

CLOSING_SECONDS = 30.0
"""For the server to read what was sent at the end."""
LOOK_SECONDS = 0.001
"""For finding that the server has closed or said something before our end: it refuses something, or stops."""
_PIECE_BYTES = 256 * 1024
"""`send_many` sends pieces of this size."""
_RECEIVE_BYTES = 64 * 1024


class Sender:
    """Writes to `stream`, which the caller closes.

    `last_words`: makes an error of what the server said before it closed; None for nothing. Without it the
    protocol has nothing that a server could say. `secret`: no error shows what the server said, for it may
    be what it was sent.
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
        """Returns once the bytes are the kernel's. Raises Disconnected, or the server's last words."""
        pending = self._pending
        pending.append(data)
        try:
            await self._sending.acquire()
        except trio.Cancelled:
            if pending is self._pending:  # else it is on its way
                pending[:] = [other for other in pending if other is not data]
            raise
        try:
            if self._lost is not None:
                raise self._lost
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
                raise self._lost from error
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
        """End what is sent, and wait until the server has read it and closed. Raises as `send` does."""
        async with self._sending:
            if self._lost is not None:
                return
            self._lost = Disconnected("all is sent already")
            said = bytearray()
            try:
                with trio.move_on_after(LOOK_SECONDS):
                    await self._read_to_end(said)
                    raise self._words(said) or Disconnected("the server closed before it had read everything")
                with trio.fail_after(CLOSING_SECONDS):
                    if isinstance(self._stream, trio.abc.HalfCloseableStream):
                        await self._stream.send_eof()
                        await self._read_to_end(said)
                    else:  # TLS: our end is said in it, and so is the server's
                        assert isinstance(self._stream, trio.SSLStream)
                        transport, _ = await self._stream.unwrap()
                        await transport.aclose()
            except trio.TooSlowError:
                why = f"the server has not read everything in {CLOSING_SECONDS:g} s"
                raise Disconnected(why) from None
            except trio.BrokenResourceError as error:
                raise self._words(said) or broken(error) from error
            words = self._words(said)
            if words is not None:
                raise words

    async def _read_rest(self) -> BrokerError | None:
        said = bytearray()
        await self._read_to_end(said)
        return self._words(said)

    async def _read_to_end(self, said: bytearray) -> None:
        while data := await self._stream.receive_some(_RECEIVE_BYTES):
            if len(said) < _RECEIVE_BYTES:
                said += data

    def _words(self, said: bytearray) -> BrokerError | None:
        if self._last_words is not None:
            return self._last_words(bytes(said))
        if not said:
            return None
        check_plain(said)
        words = "" if self._secret else f": it says {bytes(said[:100])!r}"
        return Disconnected(f"the server is of another protocol{words}")
