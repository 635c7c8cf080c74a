"""Many that have something to do at once: rounds stay short, and what is put off is done in the next."""

import pytest
import structlog
import trio

from shared import turns
from shared.budget import Account
from shared.net.admission import Admission
from shared.net.counters import NetCounters
from shared.net.loop_turn import LoopTurn
from shared.net.outbox import Backlogs, Outbox
from shared.net.settings import NetSettings


class Gone:
    """What `LoopTurn` sees of a connection that has closed, or whose deadline has come."""

    host = ""
    stranger = is_encrypted = False
    deadline = scheduled = float("inf")

    def __init__(self, told: list[object]) -> None:
        self.told = told

    def release_session(self) -> None:
        self.told.append(self)

    def on_deadline(self, now: float) -> None:
        self.told.append(self)

    def drain(self) -> None:
        self.told.append(self)


class Speaker:
    """One that has something to say. `told` gets it each time that it is sent to."""

    closed = False

    def __init__(self, told: list[object], size: int = 1) -> None:
        self.told = told
        self.outbox = Outbox(1 << 30)
        self.outbox.push(bytes(size))

    def send(self) -> None:
        self.told.append(self)


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> LoopTurn:
    """Its clock says that every look at it is a millisecond later."""
    settings = NetSettings()
    clock = iter(range(10_000))
    monkeypatch.setattr(turns.CLOCK, "now", lambda: next(clock) / 1000)
    return LoopTurn(
        settings=settings,
        admission=Admission(settings),
        backlogs=Backlogs(Account("backlogs", 1 << 20)),
        counters=NetCounters(),
        after_turn=lambda: None,
        log=structlog.stdlib.get_logger("test"),
    )


async def test_many_deadlines_of_one_time_are_served_in_several_rounds(made: LoopTurn) -> None:
    told: list[object] = []
    gone = [Gone(told) for _ in range(20)]
    for each in gone:
        made.set_deadline(each, trio.current_time())  # type: ignore[arg-type]
    counts = []
    while len(told) < len(gone):
        made.begin()
        made.end()
        counts.append(len(told))
    assert told == gone
    assert len(counts) > 5


async def test_many_sessions_whose_connections_are_gone_are_told_in_several_rounds(made: LoopTurn) -> None:
    told: list[object] = []
    gone = [Gone(told) for _ in range(20)]
    for each in gone:
        assert made.admission.admit("") is None
        made.forget(each, "reset")  # type: ignore[arg-type]
    made.begin()
    made.end()
    assert told == gone[: len(told)]
    assert 0 < len(told) < 10
    with trio.fail_after(10):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(made.watch_deadlines)
            await made.wait_no_connections()
            nursery.cancel_scope.cancel()
    assert told == gone


async def test_many_are_sent_to_in_several_rounds_and_in_order(made: LoopTurn) -> None:
    told: list[object] = []
    speakers = [Speaker(told) for _ in range(600)]
    made.to_send += speakers  # type: ignore[arg-type]
    counts = []
    while made.to_send:
        made.begin()
        assert made.end() is bool(made.to_send), "others run while there is more"
        counts.append(len(told))
    assert told == speakers
    assert len(counts) > 2
    made.to_send += speakers  # type: ignore[arg-type]
    with trio.fail_after(10):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(made.watch_deadlines)
            made.begin()
            made.end()
            while made.to_send:
                await trio.lowlevel.checkpoint()
            nursery.cancel_scope.cancel()


async def test_a_drain_of_many_connections_leaves_the_rest_to_later_turns(made: LoopTurn) -> None:
    told: list[object] = []
    connections = [Gone(told) for _ in range(100)]
    made.connections.update(connections)  # type: ignore[arg-type]
    made.time = lambda: 0.0
    made.drain()
    assert 0 < len(told) < 50
    while len(told) < 100:
        before = len(told)
        made.begin()
        assert made.end() == (len(told) < 100), "others have their turn"
        assert before < len(told) < before + 50
    assert set(told) == set(connections)
