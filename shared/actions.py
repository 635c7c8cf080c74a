"""Actions and verbs that are declared at the method which does them.

    @changing("purge", "Drop its messages.", answers=("purged",))
    async def purge(self, queue: Queue, arguments: Mapping[str, Any], dry_run: bool) -> Mapping[str, Any]: ...

Read from an object, `purge` is an `Action` that calls the method on that object.
"""

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Generic, TypeVar

import attrs

from shared.objects import Action
from shared.plugin import Verb

T = TypeVar("T", Action, Verb)
Method = Callable[..., Awaitable[Any]]


@attrs.frozen
class Declared(Generic[T]):
    """A descriptor: the result of `make(method)`, where the method is bound to the object that it is read
    from."""

    _make: Callable[[Method], T]
    _method: Method

    def __get__(self, owner: object, _: type[Any]) -> T:
        return self._make(partial(self._method, owner))


def action(name: str, help_: str, **more: Any) -> Callable[[Method], Declared[Action]]:
    """Declare an `Action`; `more`: its other fields."""
    return lambda method: Declared(lambda call: Action(name, help_, call, **more), method)


changing = partial(action, dry_runs=True)
"""Declares an action that can say what it would change."""


def putting(properties: str) -> Callable[[Method], Declared[Action]]:
    """Declare the action that puts a message in a queue, whose arguments `a_body` reads.

    `properties`: the help of the argument of that name.
    """
    return changing(
        "messages",
        "Put one in.",
        takes={
            "text": "the message",
            "base64": "the same, where it is not UTF-8",
            "properties": properties,
        },
        answers=("published",),
    )


def verb(name: str, summary: str, **more: Any) -> Callable[[Method], Declared[Verb]]:
    """Declare a `Verb`; `more`: its other fields."""
    return lambda method: Declared(lambda call: Verb(name, summary, call, **more), method)
