"""What LogMQ remembers is taken from the budget; what is durable is served whatever a limit says."""

import pytest

from logmq.groups import COMMIT_BYTES
from logmq.readers import READER_BYTES
from logmq.settings import LogmqSettings
from logmq.topics import TOPIC_BYTES
from logmq.windows import FIRST_READ_BYTES, KEPT_BYTES_MAX
from logmq.writers import SLOT_BYTES
from shared.budget import CACHES_STEP_BYTES, Account
from tests.logmq.test_writers import batch
from tests.logmq.world import Peer, World


def test_commits_end_in_a_refusal_and_go_with_their_topic() -> None:
    budget = Account("process", TOPIC_BYTES + 3 * COMMIT_BYTES)
    world = World(budget=budget)
    peer = world.connect()
    peer.ask(b"PRODUCE t one\n")
    assert peer.ask(b"".join(b"COMMIT %d t 0\n" % group for group in range(3))) == b"OK 0\n" * 3
    assert peer.ask(b"COMMIT 3 t 0\n").startswith(b"ERR LIMIT ")
    assert peer.ask(b"COMMIT 0 t 7\n") == b"OK 7\n", "one that is there takes no more"
    assert budget.account("names").refused + budget.refused == 1
    peer.ask(b"DELETE t\n")
    assert budget.used_bytes == 0
    peer.ask(b"PRODUCE t one\n")
    assert peer.ask(b"COMMIT 3 t 0\n") == b"OK 0\n"


def test_slots_of_writers_end_in_a_refusal_and_who_is_silent_longest_makes_room() -> None:
    budget = Account("process", TOPIC_BYTES + 3 * SLOT_BYTES)
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
    assert budget.used_bytes == TOPIC_BYTES + 2 * SLOT_BYTES


@pytest.mark.parametrize("budget", [None, Account("process", 10)])
def test_a_start_serves_all_that_is_durable_under_smaller_limits(
    world: World, peer: Peer, budget: Account | None
) -> None:
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


def test_readers_that_wait_end_in_a_refusal_and_make_room_when_they_do_not() -> None:
    budget = Account("process", 4 * 3 * READER_BYTES)
    world = World(budget=budget)
    greedy, neighbour, third = world.connect(), world.connect(), world.connect()
    assert third.ask(b"PRODUCE t one\n") == b"OK 0\n"
    assert greedy.ask(b"FETCH a 0 100 60000\n" * 2 + b"TAIL b 0\n") == b""
    assert neighbour.ask(b"FETCH c 0 100 60000\n").startswith(b"ERR LIMIT ")
    assert neighbour.ask(b"TAIL c 0\n").startswith(b"ERR LIMIT ")
    assert budget.account("connections").account("readers").refused + budget.refused == 2
    assert neighbour.ask(b"FETCH t 0 100 60000\n") == b"CHUNK 0 7 7\n\0\0\0\3one"
    greedy.lose()
    assert budget.used_bytes == TOPIC_BYTES
    assert third.ask(b"FETCH a 0 100 60000\n") == b""
    third.advance(61)
    assert third.take() == b"EOF\n"
    assert budget.used_bytes == TOPIC_BYTES


def test_records_read_ahead_are_charged_until_their_readers_go_and_not_kept_without_room() -> None:
    budget = Account("process", 4 * 3 * KEPT_BYTES_MAX)
    world = World(budget=budget)
    record = b"x" * FIRST_READ_BYTES
    assert world.connect().ask(b"PRODUCE t %b\n" % record) == b"OK 0\n"
    readers = [world.connect() for _ in range(60)]
    for reader in readers:
        assert reader.ask(b"CONSUME t 0\n").endswith(record + b"\n")
    caches = budget.account("caches")
    assert 2 * CACHES_STEP_BYTES < caches.used_bytes <= 3 * KEPT_BYTES_MAX + CACHES_STEP_BYTES
    assert 0 < len(world.broker.windows) < len(readers), "all are answered"
    for reader in readers:
        reader.lose()
    assert (len(world.broker.windows), caches.used_bytes) == (0, 0)


def test_topics_end_in_a_refusal_and_are_all_there_after_a_restart() -> None:
    world = World(budget=Account("process", 3 * TOPIC_BYTES))
    peer = world.connect()
    assert peer.ask(b"PRODUCE a x\nPRODUCE b x\nPRODUCE c x\n") == b"OK 0\n" * 3
    assert peer.ask(b"PRODUCE d x\n").startswith(b"ERR LIMIT ")
    assert peer.ask(b"DELETE b\nPRODUCE e x\n") == b"OK\nOK 0\n"
    world.budget = Account("process", 1)
    world.restart()
    peer = world.connect()
    assert peer.ask(b"TOPICS\n") == b"TOPIC a 0 5\nTOPIC c 0 5\nTOPIC e 0 5\nEND\n"
    assert peer.ask(b"PRODUCE a y\n") == b"OK 5\n"
    assert world.budget.used_bytes == 3 * TOPIC_BYTES


def test_a_listing_that_nobody_reads_holds_no_list_of_names(world: World) -> None:
    """It goes on behind the last name that it has said, whatever came and went meanwhile."""
    peer, other = world.connect(bound=1000), world.connect()
    for at in range(0, 2000, 100):
        other.ask(b"".join(b"PRODUCE t%04d x\n" % number for number in range(at, at + 100)))
    peer.send(b"TOPICS\n")
    other.ask(b"DELETE t1999\nDELETE t0001\nPRODUCE t1998b x\nPRODUCE a x\n")
    got = b""
    while more := peer.ask(b""):
        got += more
    names = [line.split()[1] for line in got.splitlines()[:-1]]
    assert got.endswith(b"END\n")
    assert names == [b"t%04d" % number for number in range(1999)] + [b"t1998b"]


def test_a_user_s_readers_that_wait_leave_others_room() -> None:
    budget = Account("process", 100 * READER_BYTES)
    budget.percent_of = lambda user: 50 if user == "mal" else 100
    world = World(budget=budget)
    readers = budget.account("connections").account("readers")
    readers.limit_bytes = 4 * READER_BYTES
    greedy, again, neighbour = world.connect(), world.connect(), world.connect()
    greedy.session.user = again.session.user = "mal"
    assert greedy.ask(b"FETCH a 0 100 60000\n" * 2) == b""
    assert b"mal's share of connections/readers" in again.ask(b"FETCH a 0 100 60000\n")
    assert b"mal's share of connections/readers" in again.ask(b"TAIL a 0\n")
    assert neighbour.ask(b"TAIL c 0\n") == b""
    greedy.lose()
    assert readers.shares.of("mal") == 0
