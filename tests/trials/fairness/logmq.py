"""What clients of LogMQ do."""

import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager

from tests.trials.fairness.peers import Logmq, crowd, ping
from tests.trials.fairness.served import MESSAGES, OBJECTS, Served, until

EMPTY, ONE_BYTE = b"\0\0\0\0", b"\0\0\0\1y"
"""Records."""


def to_each(text: bytes = b"x", count: int = OBJECTS) -> list[bytes]:
    """A message to each topic."""
    return [b"PRODUCE topic-%d %s\n" % (number, text) for number in range(count)]


def topics(served: Served, count: int = OBJECTS) -> Logmq:
    peer = Logmq(served)
    peer.ask(to_each(count=count))
    return peer


def connected(served: Served) -> AbstractContextManager[list[Logmq]]:
    """Many clients, each of which has had an answer."""

    def connect(_: int) -> Logmq:
        peer = Logmq(served, b"PING\n")
        peer.hear(b"\n")
        return peer

    return crowd(OBJECTS, connect)


def _answered(peers: Sequence[Logmq], answer: bytes, count: int = 1) -> None:
    for peer in peers:
        peer.hear(answer, count)


# -- topics and connections


def logmq_topics_are_made_and_the_server_stops(served: Served) -> None:
    served.begin()
    topics(served).close()
    served.stop()


def logmq_topics_are_listed_under_rules(served: Served) -> None:
    topics(served).close()
    served.allow(*(f"logmq:read:topic-*{number}" for number in range(20)))
    with Logmq(served) as peer:
        served.begin()
        peer.ask_at_once(b"TOPICS\n" * 3, 3, b"END\n")


def logmq_topics_are_checkpointed_lose_what_retention_drops_and_are_deleted(served: Served) -> None:
    with topics(served) as peer:
        peer.ask(to_each(b"x" * 1000))
        time.sleep(3)  # what was made is checkpointed
        served.begin()
        served.reload_with("[logmq]\nretention_bytes = 100\n")
        peer.ask(to_each(b"x" * 200))
        path = "/api/v1/topics?sort=-bytes&limit=1"
        until(lambda: served.ask("GET", path)["items"][0]["bytes"] < 500)
        peer.ask([b"DELETE topic-%d\n" % number for number in range(OBJECTS)])


def logmq_a_topic_with_many_groups_is_deleted(served: Served) -> None:
    with topics(served, 1) as peer:
        peer.ask([b"COMMIT group-%d topic-0 0\n" % number for number in range(MESSAGES)])
        served.begin()
        peer.ask([b"DELETE topic-0\n"])
        ping(served)
        time.sleep(1)


def logmq_connections_end_at_once(served: Served) -> None:
    with connected(served) as peers:
        served.begin()
        with served.paused():
            for peer in peers:
                peer.close()
    until(lambda: not served.get("connections?protocol=logmq&limit=1")["items"])


def logmq_connections_are_there_when_the_server_stops(served: Served) -> None:
    with connected(served):
        served.begin()
        served.stop()


# -- many requests in one go


def _batches(seqs: Iterable[int], records: bytes = ONE_BYTE) -> bytes:
    return b"".join(b"BATCH topic-0 w %d %d\n" % (seq, len(records)) + records for seq in seqs)


def logmq_batches_of_one_record_that_are_repeated(served: Served) -> None:
    with topics(served, 1) as peer:
        served.begin()
        for seqs in (range(1, MESSAGES + 1), [MESSAGES] * MESSAGES):
            peer.ask_at_once(_batches(seqs), MESSAGES)


def logmq_messages_of_0_and_1_byte_and_commits(served: Served) -> None:
    with topics(served, 1) as peer:
        served.begin()
        for line in (b"PRODUCE topic-0 \nPRODUCE topic-0 y\n", b"COMMIT g topic-0 0\n" * 2):
            peer.ask_at_once(line * MESSAGES, 2 * MESSAGES)


# -- readers that wait


@contextmanager
def _fetching(served: Served, wait_ms: int = 60_000) -> Iterator[list[Logmq]]:
    """Many connections, each with a FETCH that waits behind the first record of topic-0."""
    with crowd(OBJECTS, lambda _: Logmq(served)) as peers:
        with served.paused():
            for peer in peers:
                peer.send(b"FETCH topic-0 5 1000 %d\n" % wait_ms)
        time.sleep(2)
        ping(served)
        served.begin()
        yield peers


def logmq_fetches_wait_for_one_record(served: Served) -> None:
    with topics(served, 1) as peer, _fetching(served) as readers:
        peer.ask([b"PRODUCE topic-0 yyy\n"])
        _answered(readers, b"CHUNK")


def logmq_fetches_time_out_at_once(served: Served) -> None:
    with topics(served, 1), _fetching(served, 5000) as readers:
        _answered(readers, b"EOF")


def logmq_a_topic_that_fetches_wait_for_is_deleted(served: Served) -> None:
    with topics(served, 1) as peer, _fetching(served) as readers:
        peer.ask([b"DELETE topic-0\n"])
        _answered(readers, b"NO_TOPIC")


def logmq_one_record_for_many_tails_and_their_topic_is_deleted(served: Served) -> None:
    with topics(served, 1) as peer, crowd(OBJECTS, lambda _: Logmq(served, b"TAIL topic-0 0\n")) as tails:
        _answered(tails, b"MESSAGE")
        served.begin()
        for count in range(2, 7):
            peer.ask([b"PRODUCE topic-0 x\n"])
            _answered(tails, b"MESSAGE", count)
        peer.ask([b"DELETE topic-0\n"])
        _answered(tails, b"NO_TOPIC")


# -- large batches of small records


def logmq_a_batch_of_260000_empty_records_is_written_and_read(served: Served) -> None:
    count = 260_000
    served.begin()
    with Logmq(served) as peer, Logmq(served, b"TAIL topic-0 0\n") as tail:
        peer.ask_at_once(_batches([1], EMPTY * count), 1)
        tail.hear(b"\n", count)
        consume = b"".join(b"CONSUME topic-0 %d\n" % (4 * number) for number in range(MESSAGES))
        peer.ask_at_once(consume, MESSAGES)


def logmq_places_all_over_a_batch_of_232000_records_of_0_and_1_byte(served: Served) -> None:
    offsets = [4 * number + number // 2 for number in range(232_000)]
    places = offsets[1::1999]
    with Logmq(served) as peer:
        served.begin()
        records = b"".join(EMPTY if start % 9 == 0 else ONE_BYTE for start in offsets)
        peer.ask_at_once(_batches(range(5), records), 5)
        for _ in range(2):  # in memory, and then in the file
            for request in (b"COMMIT g topic-0 %d\n", b"CONSUME topic-0 %d\n", b"FETCH topic-0 %d 1\n"):
                peer.ask_at_once(b"".join(request % place for place in places[::-1]), len(places))
            time.sleep(3)
        for back in (1, 100_001, 231_000):
            served.ask("POST", "/api/v1/topics/topic-0/records", {"records_back": back, "limit": 1000})
