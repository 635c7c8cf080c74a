"""What makes a blocking client of an asynchronous one: each call runs a coroutine to its end.

A call costs no thread. Between calls nothing runs.
"""

import functools
from collections.abc import Callable, Coroutine, Iterator
from contextlib import AbstractAsyncContextManager, AbstractContextManager, closing, contextmanager
from time import monotonic
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, TypeVar

if TYPE_CHECKING:  # asyncio is imported where somebody connects
    from shared.client.blocking_loop import BlockingLoop

P = ParamSpec("P")
Core = TypeVar("Core")
Core_co = TypeVar("Core_co", covariant=True)
Result = TypeVar("Result")
Shown = TypeVar("Shown")


class Blocking(Generic[Core_co]):
    """A client's object for blocking code. `core`: the asynchronous one, whose methods `loop` runs."""

    def __init__(self, core: Core_co, loop: "BlockingLoop") -> None:
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
    shown: "Callable[[Result, BlockingLoop], Shown]",
) -> Callable[Concatenate[Blocking[Core], P], AbstractContextManager[Shown]]:
    """The blocking form of a method that opens an `async with` block. `shown` wraps what the block gets."""

    @functools.wraps(of_core)
    def call(self: Blocking[Core], /, *args: P.args, **kwargs: P.kwargs) -> AbstractContextManager[Shown]:
        return _entered(of_core(self.core, *args, **kwargs), self.loop, shown)

    return call


def opener(
    of_module: Callable[P, AbstractAsyncContextManager[Result]],
    shown: "Callable[[Result, BlockingLoop], Shown]",
) -> Callable[P, AbstractContextManager[Shown]]:
    """The blocking form of a function that connects. The block has a loop of its own."""

    @functools.wraps(of_module)
    @contextmanager
    def call(*args: P.args, **kwargs: P.kwargs) -> Iterator[Shown]:
        from shared.client.blocking_loop import BlockingLoop

        with closing(BlockingLoop()) as loop, _entered(of_module(*args, **kwargs), loop, shown) as client:
            yield client

    return call


def following(
    of_core: Callable[[Core], Coroutine[Any, Any, Result]],
    shown: "Callable[[Result, BlockingLoop], Shown]",
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


def as_it_is(result: Result, _: "BlockingLoop") -> Result:
    """What needs no blocking form."""
    return result


@contextmanager
def _entered(
    manager: AbstractAsyncContextManager[Result],
    loop: "BlockingLoop",
    shown: "Callable[[Result, BlockingLoop], Shown]",
) -> Iterator[Shown]:
    core = loop.run(manager.__aenter__())
    try:
        yield shown(core, loop)
    except BaseException as error:
        if not loop.run(manager.__aexit__(type(error), error, error.__traceback__)):
            raise
    else:
        loop.run(manager.__aexit__(None, None, None))
