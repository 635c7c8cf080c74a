"""A table of what is legal when, as a picture: each PROTOCOL.md shows one, and a test compares the two."""

from collections.abc import Iterator, Mapping
from enum import Enum
from typing import TypeVar

S = TypeVar("S", bound=Enum)


def diagram(table: Mapping[S, Mapping[Enum, S]], first: S, last: S) -> Iterator[str]:
    """The lines of a Mermaid diagram; a state's value says what it means, an event's what happens."""
    yield "stateDiagram-v2"
    for state in table:
        yield f"    {state.name} : {state.name}<br/>{state.value}"
    yield f"    [*] --> {first.name}"
    for state, moves in table.items():
        for event, after in moves.items():
            yield f"    {state.name} --> {after.name} : {event.value}"
    yield f"    {last.name} --> [*]"
