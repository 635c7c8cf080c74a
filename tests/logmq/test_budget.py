"""What LogMQ remembers is taken from the budget; what is durable is served whatever a limit says."""

import pytest

from logmq.groups import COMMIT_BYTES
from logmq.settings import LogmqSettings
from logmq.writers import SLOT_BYTES
from shared.budget import Account
from tests.logmq.test_writers import batch
from tests.logmq.world import World


def test_commits_end_in_a_refusal_and_go_with_their_topic() -> None:
    budget = Account("process", 3 * COMMIT_BYTES)
    world = World(budget=budget)
    peer = world.connect()
    peer.ask(b"PRODUCE t one\n")
    assert peer.ask(b"".join(b"COMMIT %d t 0\n" % group for group in range(3))) == b"OK 0\n" * 3
    assert peer.ask(b"COMMIT 3 t 0\n").startswith(b"ERR LIMIT ")
    assert peer.ask(b"COMMIT 0 t 7\n") == b"OK 7\n", "one that is there takes no more"
    assert budget.account("commits").refused + budget.refused == 1
    peer.ask(b"DELETE t\n")
    assert budget.used_bytes == 0
    peer.ask(b"PRODUCE t one\n")
    assert peer.ask(b"COMMIT 3 t 0\n") == b"OK 0\n"


def test_slots_of_writers_end_in_a_refusal_and_who_is_silent_longest_makes_room() -> None:
    budget = Account("process", 3 * SLOT_BYTES)
    world = World(LogmqSettings(writers_max=2), budget=budget)
    peer = world.connect()
    assert peer.ask(batch(1) + batch(2) + batch(1, writer=b"v")) == b"OK 0\nOK 7\nOK 14\n"
    assert peer.ask(batch(3)).startswith(b"ERR LIMIT ")
    assert peer.ask(batch(1)) == b"OK 0\n", "a repetition takes nothing"
    assert world.log("t").end == 21, "what is refused is not written"
    peer.ask(b"DELETE t\n")
    assert budget.used_bytes == 0
    for number in range(3):
        assert peer.ask(batch(1, writer=b"%d" % number)).startswith(b"OK ")
    assert budget.used_bytes == 2 * SLOT_BYTES


@pytest.mark.parametrize("budget", [None, Account("process", 10)])
def test_a_start_serves_all_that_is_durable_under_smaller_limits(budget: Account | None) -> None:
    world = World()
    peer = world.connect()
    for topic in (b"t", b"u", b"v"):
        peer.ask(batch(1, topic=topic))
        peer.ask(b"COMMIT g %b 7\nCOMMIT h %b 7\n" % (topic, topic))
    if budget is not None:
        world.budget = budget
    world.settings = LogmqSettings(topics_max=1, commits_max=1, writers_max=1)
    world.restart()
    peer = world.connect()
    for topic in ("t", "u", "v"):
        assert len(world.messages(topic)) == 1
        assert world.broker.groups.committed("h", world.log(topic)) == (7, None)
        assert peer.ask(batch(1, topic=topic.encode())) == b"OK 0\n", "it was written before"
    assert peer.ask(b"PRODUCE w one\n").startswith(b"ERR LIMIT ")
    assert peer.ask(b"COMMIT i t 7\n").startswith(b"ERR LIMIT ")
    assert peer.ask(b"COMMIT h t 0\n") == b"OK 0\n"


def test_answers_behind_one_that_waits_count_with_backlogs() -> None:
    """They count where large input does: above the bound of all, who has the most of it is closed."""
    world = World()
    peer = world.connect()
    peer.ask(b"PRODUCE t one\nCOMMIT g t 0\n")
    peer.send(b"FETCH missing 0 100 60000\n")
    peer.send(b"COMMITTED g t\n" * 1000)
    assert 1000 * 50 < peer.connection.held_bytes < 1000 * 120
    peer.advance(61)
    assert peer.take() == b"EOF\n" + b"OK 0\n" * 1000
    assert peer.connection.held_bytes == 0
