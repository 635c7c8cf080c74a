"""A batch that is sent again is answered again and written once."""

import errno

import pytest

from logmq.settings import LogmqSettings
from logmq.wire import Refusal
from logmq.writers import WINDOW
from shared.access import Access, Rule, User
from shared.storage.format import PUT
from tests.logmq.world import Peer, World, record
from tests.support.stores import ALWAYS


def batch(seq: int, payload: bytes = b"one", topic: bytes = b"t", writer: bytes = b"w") -> bytes:
    blob = record(payload)
    return b"BATCH %b %b %d %d\n%b" % (topic, writer, seq, len(blob), blob)


def test_a_repeated_batch_gets_the_same_answer_and_writes_nothing(peer: Peer) -> None:
    assert peer.ask(batch(1) + batch(2) + batch(1) + batch(2)) == b"OK 0\nOK 7\nOK 0\nOK 7\n"
    assert peer.world.log("t").end == 14
    assert peer.world.broker.counts.batches_repeated == 2


def test_writers_and_topics_are_apart(peer: Peer) -> None:
    sent = batch(1) + batch(1, writer=b"v") + batch(1, topic=b"u")
    assert peer.ask(sent + sent) == b"OK 0\nOK 7\nOK 0\n" * 2


def test_a_repetition_is_answered_only_once_the_first_is_durable(world: World) -> None:
    peer, again = world.connect(), world.connect()
    peer.send(batch(1))
    again.send(batch(1))
    assert again.take() == b""
    world.commit()
    assert (peer.take(), again.take()) == (b"OK 0\n", b"OK 0\n")


def test_repetitions_are_known_after_a_restart(peer: Peer) -> None:
    peer.ask(batch(1) + batch(2))
    peer.world.restart()
    peer = peer.world.connect()
    assert peer.ask(batch(1) + batch(2) + batch(3)) == b"OK 0\nOK 7\nOK 14\n"
    assert peer.world.broker.counts.batches_repeated == 2


def test_the_newest_batches_are_remembered_and_older_ones_refused(peer: Peer) -> None:
    peer.ask(b"".join(batch(seq) for seq in range(WINDOW + 10)))
    end = peer.world.log("t").end
    assert peer.ask(batch(10) + batch(WINDOW + 9)) == b"OK 70\nOK %d\n" % (7 * (WINDOW + 9))
    answer = peer.ask(batch(9))
    assert answer.startswith(b"ERR LIMIT seq 9 of writer w is too old to tell")
    assert peer.world.log("t").end == end


def test_numbers_may_be_left_out(peer: Peer) -> None:
    """What was written is answered or refused, whatever lies between; only the same slot forgets."""
    seqs = [3, 40, 41, 500, 10 * WINDOW + 7, 1 << 60]
    assert len({seq % WINDOW for seq in seqs}) == len(seqs)
    answers = peer.ask(b"".join(batch(seq) for seq in seqs))
    end = peer.world.log("t").end
    assert peer.ask(b"".join(batch(seq) for seq in seqs)) == answers
    assert peer.world.log("t").end == end
    assert peer.ask(batch(3 + 5 * WINDOW)).startswith(b"OK ")
    assert peer.ask(batch(3)).startswith(b"ERR LIMIT seq 3 of writer w is too old to tell")
    assert peer.ask(batch(40)) == b"OK 7\n"


def test_the_longest_silent_writer_is_forgotten_for_a_new_one() -> None:
    world = World(LogmqSettings(writers_max=3))
    peer = world.connect()
    for writer in (b"a", b"b", b"c"):
        peer.ask(batch(1, writer=writer))
    peer.ask(batch(1, writer=b"a"))  # a repetition counts as speaking
    peer.ask(batch(1, writer=b"d"))
    assert len(world.broker.writers) == 3
    assert peer.ask(batch(1, writer=b"a")) == b"OK 0\n"
    assert peer.ask(batch(1, writer=b"b")) == b"OK 28\n"
    world.restart()
    assert len(world.broker.writers) == 3


def users_peer(world: World, user: str) -> Peer:
    """A client that has logged in."""
    access = Access({user: User(user, (Rule.parse("logmq:*:*"),))})
    access.check_password = lambda user, password, peer, done: done(True)
    world.broker.access = access.guard("logmq")
    peer = world.connect()
    assert peer.ask(b"AUTH %b secret\n" % user.encode()) == b"OK\n"
    return peer


def test_a_writer_of_that_name_of_another_user_is_another_writer(world: World) -> None:
    anonymous, ann, bob = world.connect(), users_peer(world, "ann"), users_peer(world, "bob")
    for _ in range(2):
        answers = [
            peer.ask(batch(1, payload))
            for peer, payload in ((anonymous, b"one"), (ann, b"two"), (bob, b"six"))
        ]
        assert answers == [b"OK 0\n", b"OK 7\n", b"OK 14\n"], (
            "each has an offset of its own, also when it asks again"
        )
        world.restart()
        anonymous, ann, bob = world.connect(), users_peer(world, "ann"), users_peer(world, "bob")
    assert world.messages("t") == [b"one", b"two", b"six"]


def test_no_user_has_anothers_writers_forgotten() -> None:
    world = World(LogmqSettings(writers_max=2))
    ann, bob = users_peer(world, "ann"), users_peer(world, "bob")
    ann.ask(batch(1, writer=b"a") + batch(1, writer=b"b"))
    bob.ask(b"".join(batch(1, writer=b"%d" % number) for number in range(5)))
    assert len(world.broker.writers) == 4
    assert ann.ask(batch(1, writer=b"a") + batch(1, writer=b"b")) == b"OK 0\nOK 7\n"
    assert ann.ask(batch(1, topic=b"u", writer=b"c") + batch(1, writer=b"b")) == b"OK 0\nOK 7\n", (
        "its own made room"
    )
    bob.ask(b"DELETE t\n")
    assert len(world.broker.writers) == 1


def test_writers_without_a_user_of_an_older_folder_are_anonymous_own(world: World) -> None:
    """The key on disk of before: the log's id, the writer's name, the slot."""
    world.connect().ask(b"PRODUCE t one\n")
    key = world.log("t").id.to_bytes(8, "big") + b"w" + (1).to_bytes(2, "big")
    written = (1).to_bytes(8, "big") + (0).to_bytes(8, "big")  # seq 1, at offset 0
    change = bytes([PUT]) + len(key).to_bytes(2, "big") + key + written
    world.store.namespace("logmq-tables", ALWAYS).logs["writers"].append(record(change), 1)
    world.commit()
    world.restart()
    assert world.connect().ask(batch(1)) == b"OK 0\n"
    assert users_peer(world, "ann").ask(batch(1)) == b"OK 7\n"


def test_writers_of_a_topic_that_is_not_there_stay_until_its_end_is_on_record(peer: Peer) -> None:
    peer.ask(batch(1) + batch(1, topic=b"u"))
    world, log_id = peer.world, peer.world.log("u").id
    world.store.namespace("logmq", ALWAYS).delete("u")  # nothing says that LogMQ did it
    world.commit()
    world.restart()
    assert len(world.broker.writers) == 2
    assert world.broker.writers.orphaned(world.broker.topics.by_id().get) == 1
    world.broker.writers.forget(log_id)
    world.commit()
    world.restart()
    assert len(world.broker.writers) == 1


def test_a_batch_that_could_not_be_written_is_not_remembered(peer: Peer) -> None:
    peer.ask(batch(1))
    peer.world.fail_disk(errno.ENOSPC, times=1)
    assert peer.ask(batch(2)).startswith(b"ERR STORAGE ")
    assert peer.ask(batch(2) + batch(2)) == b"OK 7\nOK 7\n"


def test_a_refusal_of_a_seq_names_what_is_remembered(peer: Peer) -> None:
    peer.ask(batch(WINDOW * 2))
    with pytest.raises(Refusal, match=f"{WINDOW * 2} was, and the newest {WINDOW}"):
        peer.world.broker.writers.write(peer.world.log("t"), "anonymous", "w", WINDOW, [(record(b"x"), 1)])
