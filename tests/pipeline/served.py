"""Logs of servers, as the source reads them: what tests of it write, and how they read it back."""

from collections.abc import Iterator
from contextlib import closing, contextmanager

from brokers.pipeline.source.options import Reach, TopicChoice
from brokers.pipeline.source.options import Server as Address
from brokers.pipeline.source.ranges import LogRange
from brokers.pipeline.source.reader import LossPolicy
from brokers.pipeline.source.servers import ServerReader
from logmq.runs import encode
from tests.support.server import Server, speak

IMPATIENT = Reach(retry_seconds=0.05)
MESSAGES = [b"%d:" % number + b"x" * (number % 500) for number in range(4000)]
LOG, LENGTHS = encode(MESSAGES)
ORDERS = TopicChoice(("orders",))


class LostError(Exception):
    pass


def lose(text: str) -> None:
    raise LostError(text)


STRICT = LossPolicy(True, lose)
TRUSTING = LossPolicy(False, lose)


def telling(lost: list[str]) -> LossPolicy:
    """Goes on behind what is lost, and notes it."""
    return LossPolicy(True, lost.append)


def where(server: Server) -> str:
    """What the option `servers` says of it."""
    return str(Address(*server.address("logmq")))


def produce(server: Server, topic: str, messages: list[bytes]) -> None:
    lines = b"".join(b"PRODUCE %b %b\n" % (topic.encode(), message) for message in messages)
    assert speak(server.address("logmq"), lines).count(b"OK ") == len(messages)


def log(server: Server, topic: str) -> bytes:
    """All of it, by FETCH."""
    found = b""
    while True:
        answer = speak(server.address("logmq"), b"FETCH %b %d %d\n" % (topic.encode(), len(found), 64 << 20))
        if answer == b"EOF\n":
            return found
        found += answer.partition(b"\n")[2]


@contextmanager
def opened(server: Server, reach: Reach = IMPATIENT) -> Iterator[ServerReader]:
    with closing(ServerReader(Address(*server.address("logmq")), reach)) as served:
        yield served


def whole(served: ServerReader, start: int = 0, stop: int = len(LOG)) -> LogRange:
    return served.logs(ORDERS)["orders"].part(start, stop)


def read(served: ServerReader, span: LogRange, policy: LossPolicy = STRICT) -> bytes:
    """What the chunks hold of the span."""
    data = b""
    for chunk in served.chunks(span, policy):
        low, high = max(span.start - chunk.offset, 0), min(span.stop - chunk.offset, len(chunk.data))
        data += chunk.data[low:high]
    return data
