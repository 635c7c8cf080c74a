"""What a client stands on: trio, asyncio, or nothing but the caller's thread.

A client's logic is written once, as coroutines that wait for nothing but events. A `Loop` makes the events,
waits for them, tells the time and connects. It calls a `ClientConnection` with what arrives, and that writes
to its `Transport`. There are three loops: `trio_loop`, `asyncio_loop`, and `blocking`, which runs a coroutine
to its end before it returns.
"""

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

from shared.client.dial import Address, Disconnected

Place = tuple[Any, ...]
"""A row of what `socket.getaddrinfo` returns."""
RECEIVE_BYTES = 256 * 1024
"""The most bytes that one read takes."""


class Event(Protocol):
    """As `trio.Event` and `asyncio.Event`: what sets it wakes all who wait."""

    def set(self) -> None: ...

    def is_set(self) -> bool: ...

    def wait(self) -> Awaitable[object]: ...


class Transport(ABC):
    """The writing side of one connection, plain or TLS; made by `Loop.connect`.

    After `close` its connection is not called any more.
    """

    @abstractmethod
    def write(self, data: bytes) -> None:
        """Queue bytes. What is written before the next wait goes out together."""

    @abstractmethod
    async def drain(self) -> None:
        """Wait until the kernel has all that was written, or the connection has ended."""

    @abstractmethod
    def write_eof(self) -> None:
        """Send our end behind all that was written. `ended` follows once the peer has closed."""

    @abstractmethod
    def pause_reading(self) -> None:
        """Read no more until `resume_reading`. The peer is held back."""

    @abstractmethod
    def resume_reading(self) -> None: ...

    @abstractmethod
    def close(self) -> None:
        """Close at once; what is not sent yet is dropped."""


class ClientConnection(ABC):
    """What a loop calls with what happens on a connection. `transport`: set by `Loop.connect`."""

    transport: Transport

    @abstractmethod
    def received(self, data: bytes | bytearray) -> None:
        """Bytes have arrived. Raises nothing."""

    @abstractmethod
    def ended(self, error: Disconnected | None) -> None:
        """The connection broke; None: the peer has closed it. Nothing is called after this."""


class Loop(ABC):
    """Events, time and connections. All it made is closed at the end of its block (`running.open_loop`)."""

    @abstractmethod
    def now(self) -> float:
        """Monotonic seconds."""

    @abstractmethod
    def event(self) -> Event: ...

    @abstractmethod
    async def wait(self, event: Event, seconds: float | None = None, *, shield: bool = False) -> bool:
        """Wait for an event; False: it did not come in so many seconds.

        `shield`: wait also in a task that is cancelled, for goodbyes; only with `seconds`.
        """

    @abstractmethod
    def start_soon(self, work: Callable[[], Awaitable[None]]) -> Callable[[], None]:
        """Run `work` beside the caller; returns what cancels it. Blocking code runs it during its calls."""

    @abstractmethod
    async def connect(self, address: Address, connection: ClientConnection) -> None:
        """Connect, and give the connection its transport.

        Raises ConnectionRefusedError for any reason but TLS's, then ssl.SSLError.
        """

    @abstractmethod
    async def resolve(self, host: str, port: int) -> list[Place]:
        """Where datagrams to a host may go. Raises OSError, UnicodeError."""

    async def sleep(self, seconds: float) -> None:
        await self.wait(self.event(), seconds)


class Wakeup:
    """Wakes all who wait at that moment, again and again. An event is made only where somebody waits."""

    __slots__ = ("_event", "_loop")

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._event: Event | None = None

    def wake(self) -> None:
        event, self._event = self._event, None
        if event is not None:
            event.set()

    async def wait(self, seconds: float | None = None) -> bool:
        """Wait for the next `wake`; False: it did not come in so many seconds."""
        if self._event is None:
            self._event = self._loop.event()
        if seconds is not None:
            return await self._loop.wait(self._event, seconds)
        await self._event.wait()
        return True
