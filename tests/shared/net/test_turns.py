"""Many that have something to do at once: rounds stay short, and what is put off is done in the next."""

import pytest
import structlog
import trio

from shared.net import rounds
from shared.net.admission import Admission
from shared.net.counters import NetCounters
from shared.net.outbox import OutboxBudget
from shared.net.rounds import Rounds
from shared.net.settings import NetSettings


class Session:
    def __init__(self, told: list[object]) -> None:
        self.told = told

    def connection_lost(self) -> None:
        self.told.append(self)

    def on_deadline(self, now: float) -> None:
        self.told.append(self)


class Gone:
    """What `Rounds` sees of a connection that has closed, or whose deadline has come."""

    closed = True
    peer = "127.0.0.1:1"
    _finishing = False
    deadline = heaped = float("inf")

    def __init__(self, session: Session) -> None:
        self._session = session

    def _part(self) -> Session:
        return self._session


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> Rounds:
    """Its clock says that every look at it is a millisecond later."""
    settings = NetSettings()
    clock = iter(range(10_000))
    monkeypatch.setattr(rounds, "perf_counter", lambda: next(clock) / 1000)
    return Rounds(
        settings=settings,
        admission=Admission(settings),
        budget=OutboxBudget(1 << 20),
        counters=NetCounters(),
        after_round=lambda: None,
        log=structlog.stdlib.get_logger("test"),
    )


async def test_many_deadlines_of_one_time_are_served_in_several_rounds(made: Rounds) -> None:
    told: list[object] = []
    sessions = [Session(told) for _ in range(20)]
    for session in sessions:
        made.set_deadline(Gone(session), trio.current_time())  # type: ignore[arg-type]
    counts = []
    while len(told) < len(sessions):
        made.begin()
        made.end()
        counts.append(len(told))
    assert told == sessions
    assert len(counts) > 5


async def test_many_sessions_whose_connections_are_gone_are_told_in_several_rounds(made: Rounds) -> None:
    told: list[object] = []
    sessions = [Session(told) for _ in range(20)]
    made._lost.extend(Gone(session) for session in sessions)  # type: ignore[misc]
    made.begin()
    made.end()
    assert told == sessions[: len(told)]
    assert 0 < len(told) < 10
    with trio.fail_after(10):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(made.watch_deadlines)
            await made.wait_no_connections()
            nursery.cancel_scope.cancel()
    assert told == sessions
