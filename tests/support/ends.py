"""Programs of clients, written once with `await`, run on trio, asyncio and uvloop, and blocking."""

import asyncio
from collections.abc import Awaitable, Callable, Generator
from typing import Any, Self

import attrs
import pytest
import trio
import uvloop

import brokers
from brokers import aio, sync
from shared.client.blocking import Blocking

PATIENCE_SECONDS = 60.0
Connect = Callable[..., Any]
Program = Callable[[Connect], Awaitable[None]]
"""It gets `connect(url, **options)`, whose result is for `async with`."""


@attrs.frozen
class End:
    """`trio`, `asyncio`, `uvloop` or `sync`."""

    name: str

    def run(self, program: Program) -> None:
        if self.name == "trio":
            trio.run(_on_trio, program)
        elif self.name == "asyncio":
            asyncio.run(asyncio.wait_for(_awaited(program(aio.connect)), PATIENCE_SECONDS))
        elif self.name == "uvloop":
            uvloop.run(asyncio.wait_for(_awaited(program(aio.connect)), PATIENCE_SECONDS))
        else:
            run_to_end(_awaited(program(lambda *args, **options: Plain(sync.connect(*args, **options)))))


async def _on_trio(program: Program) -> None:
    with trio.fail_after(PATIENCE_SECONDS):
        await program(brokers.connect)


async def _awaited(work: Awaitable[None]) -> None:
    await work


def run_to_end(work: Any) -> None:
    with pytest.raises(StopIteration):
        work.send(None)


class Plain:
    """What a blocking client returns, in a form that can be awaited, entered and iterated over."""

    def __init__(self, value: Any) -> None:
        self._value = value

    def __await__(self) -> Generator[Any, None, Any]:
        return _shown(self._value)
        yield

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._value, name)
        if not callable(value):
            return value
        return lambda *args, **options: Plain(value(*map(_plain, args), **options))

    async def __aenter__(self) -> Any:
        return _shown(self._value.__enter__())

    async def __aexit__(self, *error: Any) -> Any:
        return self._value.__exit__(*error)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Any:
        try:
            return _shown(next(self._value))
        except StopIteration:
            raise StopAsyncIteration from None


def _shown(value: Any) -> Any:
    if isinstance(value, list):
        return [_shown(each) for each in value]
    return Plain(value) if isinstance(value, Blocking) else value


def _plain(value: Any) -> Any:
    return value._value if isinstance(value, Plain) else value


@pytest.fixture(params=["trio", "asyncio", "uvloop", "sync"])
def end(request: pytest.FixtureRequest) -> End:
    return End(request.param)
