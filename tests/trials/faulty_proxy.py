"""A proxy before a store that speaks S3, which does to requests what networks and stores do.

    lost      done, and the connection ends before the answer
    doubled   done twice; the second answer is told
    cut       half of the request arrives
    503, 409  not done, and answered so (409: only what has a condition)
    slow      done, some time later

While it is `away` every connection ends at once: the machine behind it is alone.
"""

import asyncio
import random
import threading
from collections import Counter
from collections.abc import Callable
from typing import Self

import attrs

FAULTS = ("lost", "doubled", "cut", "503", "409", "slow")
_SLOW_SECONDS = 1.5
_HEAD_BYTES_MAX = 64 << 10
_BUSY = b"HTTP/1.1 %s\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%s"
_ANSWERS = {
    "503": (b"503 Service Unavailable", b"<Error><Code>SlowDown</Code></Error>"),
    "409": (b"409 Conflict", b"<Error><Code>ConditionalRequestConflict</Code></Error>"),
}


@attrs.define(eq=False)
class FaultyProxy:
    """Serves a port of loopback in a thread, while entered. `share`: of requests that something happens to.
    `done`: what did.
    """

    upstream: tuple[str, int]
    source: random.Random
    share: float = 0.0
    away: bool = False
    done: Counter[str] = attrs.Factory(Counter)
    port: int = 0
    _loop: asyncio.AbstractEventLoop = attrs.Factory(asyncio.new_event_loop)
    _thread: threading.Thread | None = None

    def __enter__(self) -> Self:
        ready = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(ready.set,), daemon=True)
        self._thread.start()
        ready.wait()
        return self

    def __exit__(self, *_: object) -> None:
        assert self._thread is not None
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def _run(self, ready: Callable[[], None]) -> None:
        loop = self._loop
        asyncio.set_event_loop(loop)
        server = loop.run_until_complete(
            asyncio.start_server(self._connection, "127.0.0.1", 0, limit=_HEAD_BYTES_MAX)
        )
        self.port = server.sockets[0].getsockname()[1]
        ready()
        loop.run_forever()
        server.close()
        for task in asyncio.all_tasks(loop):
            task.cancel()
        loop.run_until_complete(asyncio.sleep(0))
        loop.close()

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One request, and its answer."""
        try:
            if not self.away:
                answer = await self._answer(await reader.readuntil(b"\r\n\r\n"), reader)
                writer.write(answer)
                await writer.drain()
        except (OSError, EOFError, asyncio.LimitOverrunError):
            pass
        finally:
            writer.close()

    async def _answer(self, head: bytes, reader: asyncio.StreamReader) -> bytes:
        """Nothing: the connection ends."""
        lines = head.lower().split(b"\r\n")
        length = next((int(line[15:]) for line in lines if line.startswith(b"content-length:")), 0)
        body = await reader.readexactly(length)
        fault = self._drawn(has_condition=any(line.startswith(b"if-") for line in lines))
        self.done[fault] += 1
        if fault in _ANSWERS:
            status, text = _ANSWERS[fault]
            return _BUSY % (status, len(text), text)
        if fault == "slow":
            await asyncio.sleep(self.source.uniform(0, _SLOW_SECONDS))
        if fault == "cut":
            body = body[: length // 2]
        answer = await self._forward(head, body, cut=fault == "cut")
        if fault == "doubled":
            answer = await self._forward(head, body)
        return b"" if fault == "lost" or self.away else answer

    def _drawn(self, *, has_condition: bool) -> str:
        if self.source.random() >= self.share:
            return "none"
        fault = self.source.choice(FAULTS)
        return "503" if fault == "409" and not has_condition else fault

    async def _forward(self, head: bytes, body: bytes, *, cut: bool = False) -> bytes:
        reader, writer = await asyncio.open_connection(*self.upstream)
        try:
            writer.write(head[:-2] + b"Connection: close\r\n\r\n" + body)
            await writer.drain()
            return b"" if cut else await reader.read()
        finally:
            writer.close()
