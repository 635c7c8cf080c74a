"""What each PROTOCOL.md shows, held against the code: its states, its limits, and a session."""

from collections.abc import Iterator, Mapping
from enum import Enum
from pathlib import Path
from typing import TypeVar

ROOT = Path(__file__).parent.parent.parent

S = TypeVar("S", bound=Enum)
E = TypeVar("E", bound=Enum)


def protocol_document(protocol: str) -> str:
    return (ROOT / protocol / "PROTOCOL.md").read_text()


def block(document: str, kind: str) -> list[str]:
    """The lines of its first block of this kind."""
    return document.partition(f"```{kind}\n")[2].partition("```")[0].splitlines()


def diagram(table: Mapping[S, Mapping[E, S]]) -> Iterator[str]:
    """The lines of a Mermaid diagram; a state's value says what it means, an event's what happens."""
    first, *_, last = type(next(iter(table)))
    yield "stateDiagram-v2"
    for state in table:
        yield f"    {state.name} : {state.name}<br/>{state.value}"
    yield f"    [*] --> {first.name}"
    for state, moves in table.items():
        for event, after in moves.items():
            yield f"    {state.name} --> {after.name} : {event.value}"
    yield f"    {last.name} --> [*]"


def check_states(table: Mapping[S, Mapping[E, S]], ends_by: str | None) -> None:
    """Every state is in the table and can be reached, every event is good for something, and the last state
    is the end, to which the event of the name `ends_by` leads from every other."""
    first, *_, last = type(next(iter(table)))
    assert set(table) == set(type(first))
    reached = {first}
    while more := {after for state in reached for after in table[state].values()} - reached:
        reached |= more
    assert reached == set(table)
    events = {event for moves in table.values() for event in moves}
    assert events == set(type(next(iter(events))))
    for state, moves in table.items():
        assert (moves == {}) == (state is last)
        if ends_by and moves:
            assert {event.name: after for event, after in moves.items()}[ends_by] is last


def check_diagram(document: str, table: Mapping[S, Mapping[E, S]]) -> None:
    """One of its diagrams is the table."""
    assert "```mermaid\n" + "\n".join(diagram(table)) + "\n```" in document
