"""What LogMQ answers, as a dict of lists: the measure for the real thing."""

from collections.abc import Sequence
from typing import Any

import attrs
from hypothesis import strategies as st

from tests.logmq.world import record, records

TOPICS = ("a", "b", "c.d")


@attrs.frozen
class Asked:
    """A request, and the answers it may have (FETCH may give fewer records than there are)."""

    sent: bytes
    answers: tuple[bytes, ...]


class Model:
    """Topics as lists of payloads."""

    def __init__(self) -> None:
        self.topics: dict[str, list[bytes]] = {}
        self.commits: dict[tuple[str, str], int] = {}
        self.batches: dict[tuple[str, str, int], int] = {}

    def produce(self, topic: str, payload: bytes) -> Asked:
        line = b"PRODUCE %b %b\n" % (topic.encode(), payload)
        return Asked(line, (self._write(topic, [payload]),))

    def append(self, topic: str, payload: bytes) -> Asked:
        line = b"APPEND %b %d\n%b" % (topic.encode(), len(payload), payload)
        return Asked(line, (self._write(topic, [payload]),))

    def batch(self, topic: str, seq: int, payloads: Sequence[bytes]) -> Asked:
        blob = records(*payloads)
        line = b"BATCH %b w %d %d\n%b" % (topic.encode(), seq, len(blob), blob)
        known = self.batches.get((topic, "w", seq))
        if known is not None:
            return Asked(line, (b"OK %d\n" % known,))
        self.batches[topic, "w", seq] = self.end(topic)
        return Asked(line, (self._write(topic, payloads),))

    def consume(self, topic: str, offset: int) -> Asked:
        line = b"CONSUME %b %d\n" % (topic.encode(), offset)
        place = self._place(topic, offset)
        if isinstance(place, bytes):
            return Asked(line, (place,))
        payload = self.topics[topic][place]
        return Asked(line, (b"MESSAGE %d %d %b\n" % (offset, len(payload), payload),))

    def fetch(self, topic: str, offset: int, size: int) -> Asked:
        line = b"FETCH %b %d %d\n" % (topic.encode(), offset, size)
        if topic in self.topics and offset > self.end(topic):
            return Asked(line, (b"ERR OUT_OF_RANGE the end is %d\n" % self.end(topic),))
        place = self._place(topic, offset)
        if isinstance(place, bytes):
            return Asked(line, (place,))
        answers, blob = [], b""
        for payload in self.topics[topic][place:]:
            if blob and len(blob) + 4 + len(payload) > size:
                break
            blob += record(payload)
            answers.append(b"CHUNK %d %d %d\n%b" % (offset, len(blob), offset + len(blob), blob))
        return Asked(line, tuple(answers))

    def offsets(self, topic: str) -> Asked:
        line = b"OFFSETS %b\n" % topic.encode()
        if topic not in self.topics:
            return Asked(line, (self._no_topic(topic),))
        return Asked(line, (b"OFFSETS 0 %d\n" % self.end(topic),))

    def list_topics(self) -> Asked:
        rows = [b"TOPIC %b 0 %d\n" % (topic.encode(), self.end(topic)) for topic in sorted(self.topics)]
        return Asked(b"TOPICS\n", (b"".join(rows) + b"END\n",))

    def delete(self, topic: str) -> Asked:
        line = b"DELETE %b\n" % topic.encode()
        if topic not in self.topics:
            return Asked(line, (self._no_topic(topic),))
        del self.topics[topic]
        self.commits = {key: value for key, value in self.commits.items() if key[1] != topic}
        self.batches = {key: value for key, value in self.batches.items() if key[0] != topic}
        return Asked(line, (b"OK\n",))

    def commit(self, group: str, topic: str) -> Asked:
        """Of the end: the commonest."""
        line = b"COMMIT %b %b %d\n" % (group.encode(), topic.encode(), self.end(topic))
        if topic not in self.topics:
            return Asked(line, (self._no_topic(topic),))
        self.commits[group, topic] = self.end(topic)
        return Asked(line, (b"OK %d\n" % self.end(topic),))

    def committed(self, group: str, topic: str) -> Asked:
        line = b"COMMITTED %b %b\n" % (group.encode(), topic.encode())
        if topic not in self.topics:
            return Asked(line, (self._no_topic(topic),))
        offset = self.commits.get((group, topic))
        if offset is None:
            return Asked(line, (f"ERR NO_COMMIT group {group} has committed nothing of {topic}\n".encode(),))
        return Asked(line, (b"OK %d\n" % offset,))

    def end(self, topic: str) -> int:
        return sum(4 + len(payload) for payload in self.topics.get(topic, ()))

    def _write(self, topic: str, payloads: Sequence[bytes]) -> bytes:
        offset = self.end(topic)
        self.topics.setdefault(topic, []).extend(payloads)
        return b"OK %d\n" % offset

    def _place(self, topic: str, offset: int) -> int | bytes:
        """Which record stands at `offset`, or the answer where none does."""
        if offset >= self.end(topic):
            return b"EOF\n"
        at = below = 0
        for place, payload in enumerate(self.topics[topic]):
            if at == offset:
                return place
            if at > offset:
                break
            below = at
            at += 4 + len(payload)
        return b"ERR BAD_OFFSET not the start of a record; the nearest below is %d\n" % below

    def _no_topic(self, topic: str) -> bytes:
        return f"ERR NO_TOPIC {topic} does not exist; the first write makes it\n".encode()


topics = st.sampled_from(TOPICS)
line_payloads = st.binary(max_size=20).map(lambda data: data.translate(None, b"\r\n"))
payloads = st.binary(max_size=20)
steps = st.one_of(
    st.tuples(st.just("produce"), topics, line_payloads),
    st.tuples(st.just("produce"), st.just("a"), line_payloads),
    st.tuples(st.just("produce"), st.just("a"), st.just(b"12345")),
    st.tuples(st.just("append"), topics, payloads),
    st.tuples(st.just("batch"), topics, st.integers(0, 5), st.lists(payloads, min_size=1, max_size=3)),
    st.tuples(st.just("consume"), topics, st.integers(0, 60)),
    st.tuples(st.just("consume"), st.just("a"), st.integers(0, 12).map(lambda count: 9 * count)),
    st.tuples(st.just("fetch"), topics, st.integers(0, 60), st.integers(0, 60)),
    st.tuples(st.just("offsets"), topics),
    st.tuples(st.just("list_topics")),
    st.tuples(st.just("delete"), topics),
    st.tuples(st.just("commit"), st.sampled_from(("g", "h")), topics),
    st.tuples(st.just("committed"), st.sampled_from(("g", "h")), topics),
)


def strip_answers(answers: bytes, asked: Sequence[Asked]) -> bytes:
    """What is left of `answers` when each request's has been taken off the front, where it must be."""
    at = 0
    for one in asked:
        fitting = [answer for answer in one.answers if answers.startswith(answer, at)]
        assert fitting, (one, answers[at : at + 100])
        at += len(max(fitting, key=len))
    return answers[at:]


def ask_model(steps: list[tuple[Any, ...]]) -> list[Asked]:
    """What each of `steps` is asked and answered, by a model of its own."""
    plain = Model()
    return [getattr(plain, what)(*arguments) for what, *arguments in steps]
