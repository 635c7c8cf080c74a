"""How LogMQ is loaded: PRODUCE, and TAIL of what is produced."""

from time import perf_counter_ns

from brokers.bench.adapter import Adapter, Point, fan_out_load, request_load
from brokers.bench.load import STAMPED_BYTES_MIN, FanOut, Talk, lines, repeated, stamped_body
from logmq.connector import auth
from shared.client.login import Login


def _produce(point: Point, client: int) -> Talk:
    body = b"x" * point.size
    requests = [b"PRODUCE %b %b\n" % (topic, body) for topic in point.names_of(client)]
    return Talk(repeated(requests), lines(), point.window)


def _tail(point: Point) -> FanOut:
    prefix, groups = perf_counter_ns(), point.producers  # each round has topics of its own
    body = stamped_body(point.size)
    topics = [b"bench-%d-%03d" % (prefix, number) for number in range(groups)]
    return FanOut(
        hello_consumer=lambda consumer: b"TAIL %b 0\n" % topics[consumer % groups],
        message=lambda queue, stamp: b"PRODUCE %b %b\n" % (topics[queue], body(stamp)),
        delivered_bytes=0,
        stamp_at=point.size + 1,
        groups=groups,
    )


def _say_first(who: Login) -> tuple[bytes, bytes]:
    return auth(who), b"OK\n"


ADAPTERS = {
    "produce": Adapter("logmq", "produce", request_load(_produce), say_first=_say_first),
    "tail": Adapter(
        *("logmq", "tail", fan_out_load(_tail), STAMPED_BYTES_MIN), one_name_each=True, say_first=_say_first
    ),
}
