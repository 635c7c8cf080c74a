"""A client's loop for blocking code, and what makes a blocking client of an asynchronous one.

`BlockingLoop.run` runs a coroutine to its end in the caller's thread. While the coroutine waits, the thread
waits for its sockets, so a call costs no thread and no other loop. Between calls nothing runs.
"""

import functools
import select
import socket
import ssl
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Generator, Iterator
from contextlib import AbstractAsyncContextManager, AbstractContextManager, contextmanager, suppress
from math import inf
from time import monotonic
from types import CoroutineType, coroutine
from typing import Any, Concatenate, Generic, ParamSpec, TypeAlias, TypeVar, cast

import attrs

from shared.client.dial import CONNECT_SECONDS, Address, Disconnected, broke, not_reached, probe, tls_failed
from shared.client.loop import RECEIVE_BYTES, ClientConnection, Event, Loop, Place, Transport

P = ParamSpec("P")
Core = TypeVar("Core")
Core_co = TypeVar("Core_co", covariant=True)
Result = TypeVar("Result")
Shown = TypeVar("Shown")


class BlockingEvent:
    """An event that a coroutine under `BlockingLoop.run` waits for."""

    __slots__ = ("_set",)

    def __init__(self) -> None:
        self._set = False

    def set(self) -> None:
        self._set = True

    def is_set(self) -> bool:
        return self._set

    async def wait(self) -> None:
        if not self._set:
            await _until(_Wait(self, inf))


@attrs.frozen
class _Wait:
    """What a coroutine waits for: an event, or a time."""

    event: Event
    deadline: float


@coroutine
def _until(wait: _Wait) -> Generator[_Wait, None, None]:
    yield wait


_Work: TypeAlias = "CoroutineType[_Wait, None, Any]"


@attrs.define(eq=False)
class _Task:
    """A coroutine, and its outcome once `done`."""

    work: "_Work"
    done: bool = False
    result: Any = None
    error: BaseException | None = None


class BlockingLoop(Loop):
    """Runs coroutines that wait for nothing but this loop's events. One thread at a time may use it."""

    def __init__(self) -> None:
        self._ready: deque[_Task] = deque()
        self._waiting: dict[_Task, _Wait] = {}
        self._beside: set[_Task] = set()
        self._transports: dict[int, BlockingTransport] = {}
        self._poller = select.poll()
        self._using = threading.RLock()
        self._stepped: _Task | None = None
        """The coroutine that runs, or ran last."""
        self._resting = False
        self.deadline = inf
        """When calls raise TimeoutError; see `Blocking.timeout`."""

    def run(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Run to the end. Other threads' calls wait meanwhile. Ctrl-C is raised where the coroutine waits.

        Where an interrupt comes at work, not while the thread waits, something may be half done. Then all
        connections are lost, and what runs beside the caller ends.
        """
        with self._using:
            if self.is_running:
                work.close()
                raise RuntimeError("a client is called from within one of its own callbacks")
            before = _current.loop
            try:
                _current.loop = self
                result: Result = self._run(_Task(cast("_Work", work)))
                return result
            finally:
                _current.loop = before

    @property
    def is_running(self) -> bool:
        """Whether one of its coroutines calls this."""
        return self._stepped is not None and self._stepped.work.cr_running

    def _run(self, main: _Task) -> Any:
        self._ready.append(main)
        interrupt: BaseException | None = None
        while not main.done:
            self._resting = False
            if interrupt is not None and main.work.cr_frame is None:
                raise interrupt  # it came as the call had ended, and its outcome is lost
            try:
                if interrupt is not None:
                    self._step(main, interrupt)
                self._turn(main)
                interrupt = None
            except BaseException as error:
                if error is not interrupt and not self._resting:
                    self._lose_all(main, error)
                self._forget(main)
                interrupt = error
        for transport in tuple(self._transports.values()):
            transport.send()  # also what the call did not wait for
        if self._waiting:  # what runs beside the caller moves on
            self._poll(wait=False)
            self._wake()
        if interrupt is not None and main.error is not interrupt:
            raise interrupt  # it came beside a call that had ended: what runs beside the caller is gone
        if (failure := main.error) is not None:
            raise failure
        return main.result

    def _turn(self, main: _Task) -> None:
        """Run what is ready; then wait until more is."""
        while self._ready:
            self._step(self._ready.popleft())
        if not main.done:
            self._poll()
            self._wake()

    def _step(self, task: _Task, error: BaseException | None = None) -> None:
        """Run a coroutine until it waits, or ends. Raises what interrupts it."""
        self._stepped = task
        try:
            wait = task.work.send(None) if error is None else task.work.throw(error)
        except StopIteration as stop:
            task.done, task.result = True, stop.value
        except BaseException as raised:
            task.done, task.error = True, raised
            if not isinstance(raised, Exception):
                raise
        else:
            self._waiting[task] = wait

    def _lose_all(self, main: _Task, error: BaseException) -> None:
        """Something was interrupted half-way: give up the connections, and what runs beside the caller."""
        for transport in tuple(self._transports.values()):
            transport.end(Disconnected("a call was interrupted"))
        for task in tuple(self._beside):
            self._forget(task)
            if not task.done:
                with suppress(type(error)):
                    self._step(task, error)

    def _forget(self, task: _Task) -> None:
        """It is not run until it is stepped."""
        self._waiting.pop(task, None)
        if task in self._ready:
            self._ready.remove(task)

    def _poll(self, *, wait: bool = True) -> None:
        """Send what is written, and wait until something has happened."""
        for transport in tuple(self._transports.values()):
            transport.send()
        if any(each.event.is_set() for each in self._waiting.values()):
            return
        for transport in self._transports.values():
            transport.watch(self._poller)
        deadline = min(self.deadline, *(each.deadline for each in self._waiting.values()))
        milliseconds = None if deadline == inf else max(0.0, deadline - monotonic()) * 1000
        self._resting = True
        happened = self._poller.poll(milliseconds if wait else 0)
        self._resting = False
        for number, _ in happened:
            if number in self._transports:
                self._transports[number].happened()
        if wait and self.deadline <= monotonic():
            self._resting = True
            raise TimeoutError("the call took longer than its timeout")

    def _wake(self) -> None:
        now = monotonic()
        for task, wait in tuple(self._waiting.items()):
            if wait.event.is_set() or wait.deadline <= now:
                del self._waiting[task]
                self._ready.append(task)

    # What clients call.

    def now(self) -> float:
        return monotonic()

    def event(self) -> Event:
        return BlockingEvent()

    async def wait(self, event: Event, seconds: float | None = None, *, shield: bool = False) -> bool:
        if not event.is_set():
            await _until(_Wait(event, inf if seconds is None else monotonic() + seconds))
        return event.is_set()

    def start_soon(self, work: Callable[[], Awaitable[None]]) -> Callable[[], None]:
        async def run() -> None:
            await work()

        task = _Task(cast("_Work", run()))
        self._beside.add(task)
        self._ready.append(task)

        def cancel() -> None:
            self._beside.discard(task)
            self._forget(task)
            task.work.close()

        return cancel

    async def connect(self, address: Address, connection: ClientConnection) -> None:
        try:
            place = address.host, address.port
            sock = socket.create_connection(place, CONNECT_SECONDS, all_errors=True)
        except ExceptionGroup as errors:
            raise not_reached(address, errors.exceptions) from None
        except (OSError, UnicodeError) as error:
            raise not_reached(address, [error]) from None
        try:
            probe(sock)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if address.ssl_context is not None:
                name = address.server_hostname or address.host
                sock = address.ssl_context.wrap_socket(sock, server_hostname=name)
            sock.setblocking(False)
        except BaseException as error:
            sock.close()
            if isinstance(error, ssl.SSLError):
                raise tls_failed(address, error) from None
            if isinstance(error, OSError):
                raise not_reached(address, [error]) from None
            raise
        connection.transport = transport = BlockingTransport(sock, connection, self._gone)
        self._transports[transport.number] = transport

    async def resolve(self, host: str, port: int) -> list[Place]:
        return list(socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM))

    def _gone(self, transport: "BlockingTransport") -> None:
        if self._transports.pop(transport.number, None) is not None and transport.watched:
            self._poller.unregister(transport.number)

    def close(self) -> None:
        for transport in tuple(self._transports.values()):
            transport.close()


class BlockingTransport(Transport):
    """A socket that does not block, plain or TLS. What is written goes out when the client next waits."""

    def __init__(
        self, sock: socket.socket, connection: ClientConnection, gone: Callable[["BlockingTransport"], None]
    ) -> None:
        self.number = sock.fileno()
        self.watched = 0
        """The events that the poller looks for."""
        self._socket = sock
        self._connection = connection
        self._gone = gone
        self._outgoing = bytearray()
        self._drained = BlockingEvent()
        self._drained.set()
        self._paused = False
        self._eof = False
        self._closed = False

    def write(self, data: bytes) -> None:
        if not self._closed:
            self._outgoing += data
            self._drained = BlockingEvent()

    async def drain(self) -> None:
        await self._drained.wait()

    def write_eof(self) -> None:
        self._eof = True

    def pause_reading(self) -> None:
        self._paused = True

    def resume_reading(self) -> None:
        self._paused = False

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._drained.set()
            self._gone(self)
            self._socket.close()

    # What the loop calls.

    def watch(self, poller: select.poll) -> None:
        events = select.POLLOUT if self._outgoing else 0
        if not self._paused:
            events |= select.POLLIN
        if events == self.watched:
            return
        if events:
            poller.register(self.number, events)
        else:  # registered it would be reported again and again once the server has closed
            poller.unregister(self.number)
        self.watched = events

    def happened(self) -> None:
        """It can be read or written, or it is broken."""
        self.send()
        if not self._closed and not self._paused:
            self._receive()

    def send(self) -> None:
        """Send as much as the kernel takes."""
        try:
            while self._outgoing:
                del self._outgoing[: self._socket.send(self._outgoing)]
            self._drained.set()
            if self._eof:
                self._send_eof()
        except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
            pass
        except OSError as error:
            self._outgoing.clear()
            self._receive()  # the server takes no more: what it has said is read before the end
            self.end(broke(error))

    def _send_eof(self) -> None:
        if isinstance(self._socket, ssl.SSLSocket):  # both ends close with a TLS alert
            self._socket.unwrap()
            self.end(None)
        else:
            self._socket.shutdown(socket.SHUT_WR)
            self._eof = False

    def _receive(self) -> None:
        try:
            while not self._closed:
                received = self._socket.recv(RECEIVE_BYTES)
                if not received:
                    return self.end(None)
                self._connection.received(received)
                if not isinstance(self._socket, ssl.SSLSocket) or not self._socket.pending():
                    return None
        except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
            return None
        except OSError as error:
            return self.end(broke(error))

    def end(self, error: Disconnected | None) -> None:
        if not self._closed:
            self.close()
            self._connection.ended(error)


class _Current(threading.local):
    """The loop that this thread runs."""

    loop: BlockingLoop | None = None


_current = _Current()


def current_loop() -> BlockingLoop | None:
    """The loop whose `run` calls this; None outside of any."""
    loop = _current.loop
    return loop if loop is not None and loop.is_running else None


# -- blocking clients


class Blocking(Generic[Core_co]):
    """A client's object for blocking code. `core`: the asynchronous one, whose methods `loop` runs."""

    def __init__(self, core: Core_co, loop: BlockingLoop) -> None:
        self.core = core
        self.loop = loop

    @contextmanager
    def timeout(self, seconds: float) -> Iterator[None]:
        """Calls of this client and of all it made raise TimeoutError once the block is so old.

        A call that ends so may or may not have been done. The connection stays good.
        """
        before, self.loop.deadline = self.loop.deadline, min(self.loop.deadline, monotonic() + seconds)
        try:
            yield
        finally:
            self.loop.deadline = before


def method(
    of_core: Callable[Concatenate[Core, P], Coroutine[Any, Any, Result]],
) -> Callable[Concatenate[Blocking[Core], P], Result]:
    """The blocking form of a core's method."""

    @functools.wraps(of_core)
    def call(self: Blocking[Core], /, *args: P.args, **kwargs: P.kwargs) -> Result:
        return self.loop.run(of_core(self.core, *args, **kwargs))

    return call


def block(
    of_core: Callable[Concatenate[Core, P], AbstractAsyncContextManager[Result]],
    shown: Callable[[Result, BlockingLoop], Shown],
) -> Callable[Concatenate[Blocking[Core], P], AbstractContextManager[Shown]]:
    """The blocking form of a method that opens an `async with` block. `shown` wraps what the block gets."""

    @functools.wraps(of_core)
    def call(self: Blocking[Core], /, *args: P.args, **kwargs: P.kwargs) -> AbstractContextManager[Shown]:
        return _entered(of_core(self.core, *args, **kwargs), self.loop, shown)

    return call


def opener(
    of_module: Callable[P, AbstractAsyncContextManager[Result]],
    shown: Callable[[Result, BlockingLoop], Shown],
) -> Callable[P, AbstractContextManager[Shown]]:
    """The blocking form of a function that connects. The block has a loop of its own."""

    @functools.wraps(of_module)
    def call(*args: P.args, **kwargs: P.kwargs) -> AbstractContextManager[Shown]:
        return _entered(of_module(*args, **kwargs), BlockingLoop(), shown)

    return call


def following(
    of_core: Callable[[Core], Coroutine[Any, Any, Result]],
    shown: Callable[[Result, BlockingLoop], Shown],
) -> Callable[[Blocking[Core]], Shown]:
    """`__next__` for a core's `__anext__`."""

    def call(self: Blocking[Core]) -> Shown:
        try:
            return shown(self.loop.run(of_core(self.core)), self.loop)
        except StopAsyncIteration:
            raise StopIteration from None

    return call


def itself(iterator: Shown) -> Shown:
    """`__iter__` of what iterates itself."""
    return iterator


def as_it_is(result: Result, _: BlockingLoop) -> Result:
    """What needs no blocking form."""
    return result


@contextmanager
def _entered(
    manager: AbstractAsyncContextManager[Result],
    loop: BlockingLoop,
    shown: Callable[[Result, BlockingLoop], Shown],
) -> Iterator[Shown]:
    core = loop.run(manager.__aenter__())
    try:
        yield shown(core, loop)
    except BaseException as error:
        if not loop.run(manager.__aexit__(type(error), error, error.__traceback__)):
            raise
    else:
        loop.run(manager.__aexit__(None, None, None))
