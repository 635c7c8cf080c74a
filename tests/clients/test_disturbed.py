"""Clients that are cancelled at every await, interrupted at every line, and answered with garbage."""

import asyncio
import gc
import itertools
import random
import sys
from collections.abc import Awaitable, Callable, Generator, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import attrs
import pytest
import trio

import brokers
from brokers import aio, sync
from shared.errors import BrokerError
from tests.clients.programs import PROGRAMS, Told, begin, check, rest
from tests.support.cutting_proxy import CuttingProxy, Garble
from tests.support.ends import Connect, End, Plain, run_to_end

Url = Callable[[str], str]
OURS = (
    *("/dms/client.py", "/dms/link.py", "/dms/consumer.py", "/logmq/client.py"),
    *("/dmp/client.py", "/dmp/amqp_client.py", "/dmp/principal.py"),
)
PATIENCE_SECONDS = 60.0
SAMPLES = 10
"""So many attempts a test; thousands were made once."""
STEPS = 7
"""Between two awaits at which a program is cancelled; which, is chance."""
numbers = itertools.count()
protocols = pytest.mark.parametrize("protocol", sorted(PROGRAMS))


@attrs.define(eq=False)
class CancelledAt:
    """Awaits `work`, and calls `cancel` the time before it waits for the `at`th time."""

    work: Awaitable[None]
    at: int
    cancel: Callable[[], object]
    waited: int = 0

    def __await__(self) -> Generator[Any, Any, None]:
        steps = self.work.__await__()
        go_on: Callable[[], Any] = lambda: steps.send(None)  # noqa: E731
        while True:
            try:
                wanted = go_on()
            except StopIteration:
                return
            self.waited += 1
            if self.waited == self.at:
                self.cancel()
            try:
                value = yield wanted
                go_on = lambda value=value: steps.send(value)  # noqa: E731
            except BaseException as error:
                go_on = lambda error=error: steps.throw(error)  # noqa: E731


async def cancelled_on_trio(work: Awaitable[None], at: int) -> bool:
    with trio.CancelScope() as scope:
        await CancelledAt(work, at, scope.cancel)
    return scope.cancel_called


async def cancelled_on_asyncio(work: Awaitable[None], at: int) -> bool:
    async def run() -> None:
        task = asyncio.current_task()
        assert task is not None
        await CancelledAt(work, at, task.cancel)

    try:
        await asyncio.create_task(run())
    except asyncio.CancelledError:
        return True
    return False


@protocols
@pytest.mark.parametrize("end", ["trio", "asyncio"])
def test_a_program_that_is_cancelled_anywhere_leaves_the_client_good(
    protocol: str, end: str, url: Url
) -> None:
    chance = random.Random()
    connect = brokers.connect if end == "trio" else aio.connect
    cancelled = cancelled_on_trio if end == "trio" else cancelled_on_asyncio

    async def program(at: int) -> bool:
        told, name = Told(), f"cancelled-{next(numbers)}"
        async with connect(url(protocol)) as client:
            await begin(client, protocol, name)
            more = await cancelled(PROGRAMS[protocol](client, name, told), at)
            check(protocol, told, await rest(client, protocol, name))
        return more

    async def all_on_trio() -> None:
        for at in itertools.count(1 + chance.randrange(STEPS), STEPS):
            with trio.fail_after(PATIENCE_SECONDS):
                if not await program(at):
                    return

    async def all_on_asyncio() -> None:
        for at in itertools.count(1 + chance.randrange(STEPS), STEPS):
            if not await asyncio.wait_for(program(at), PATIENCE_SECONDS):
                return

    trio.run(all_on_trio) if end == "trio" else asyncio.run(all_on_asyncio())


@contextmanager
def interrupted(at: int) -> Iterator[list[int]]:
    """Ctrl-C at the `at`th line of the clients' code. Yields how many there were."""
    lines = [0]

    def in_file(frame: FrameType, event: str, _: object) -> Any:
        if event == "line":
            lines[0] += 1
            if lines[0] == at:
                raise KeyboardInterrupt
        return in_file

    def trace(frame: FrameType, event: str, argument: object) -> Any:
        name = frame.f_code.co_filename
        ours = "/shared/client/" in name or name.endswith(OURS)
        return in_file if ours else None

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        yield lines
    finally:
        sys.settrace(before)


def blocking(url: str) -> Any:
    return Plain(sync.connect(url))


# A coroutine or a socket that is left half-way is closed by Python, which warns of it.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning", "ignore:coroutine")
@protocols
def test_blocking_code_that_is_interrupted_anywhere_is_told_so_and_loses_nothing(
    protocol: str, url: Url
) -> None:
    def attempt(at: int) -> int:
        told, name = Told(), f"interrupted-{next(numbers)}"

        async def program() -> None:
            async with blocking(url(protocol)) as client:
                await PROGRAMS[protocol](client, name, told)

        async def before() -> None:
            async with blocking(url(protocol)) as client:
                await begin(client, protocol, name)

        async def after() -> None:
            async with blocking(url(protocol)) as client:
                check(protocol, told, await rest(client, protocol, name))

        run_to_end(before())
        try:
            with interrupted(at) as lines:
                run_to_end(program())
        except (KeyboardInterrupt, BrokerError):
            pass
        run_to_end(after())
        return lines[0]

    chance = random.Random(protocol)
    count = attempt(0)
    for _ in range(SAMPLES):
        attempt(chance.randint(1, count))
    gc.collect()  # here, where these warnings are expected


@protocols
def test_a_garbled_answer_is_an_error_with_a_type_and_nothing_hangs(
    protocol: str, end: End, proxy_to: Callable[[str], CuttingProxy], url: Url
) -> None:
    chance = random.Random(f"{protocol} {end.name}")
    proxy = proxy_to(protocol)

    async def program(connect: Connect) -> None:
        for _ in range(SAMPLES):
            name, told = f"garbled-{next(numbers)}", Told()
            async with connect(url(protocol)) as client:
                await begin(client, protocol, name)
            proxy.garble = Garble(chance)
            try:
                async with connect(f"{protocol}://127.0.0.1:{proxy.port}?retry-seconds=0") as client:
                    await PROGRAMS[protocol](client, name, told)
            except (BrokerError, ConnectionError):
                pass

    end.run(program)
