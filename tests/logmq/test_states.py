"""The table of a connection's states, and that the document shows it."""

from pathlib import Path

from logmq.states import TRANSITIONS, Event, State
from tests.support.diagrams import diagram


def test_every_state_is_in_the_table_and_can_be_reached() -> None:
    assert set(TRANSITIONS) == set(State)
    reached = {State.FIRST_LINE}
    while True:
        more = reached | {after for state in reached for after in TRANSITIONS[state].values()}
        if more == reached:
            break
        reached = more
    assert reached == set(State)


def test_every_event_is_good_for_something() -> None:
    assert {event for moves in TRANSITIONS.values() for event in moves} == set(Event)


def test_every_state_can_end_and_only_one_is_the_end() -> None:
    for state, moves in TRANSITIONS.items():
        assert (moves == {}) == (state is State.ENDING)
        assert state is State.ENDING or moves[Event.INPUT_ENDS] is State.ENDING


def test_the_diagram_in_the_document_is_the_table() -> None:
    document = (Path(__file__).parent.parent.parent / "logmq" / "PROTOCOL.md").read_text()
    drawn = document.partition("```mermaid\n")[2].partition("```")[0]
    assert drawn.splitlines() == list(diagram(TRANSITIONS, State.FIRST_LINE, State.ENDING))
