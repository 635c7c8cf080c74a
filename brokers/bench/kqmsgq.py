"""How KqueueMsgQ is loaded: messages from producers to consumers that each get everything of one producer."""

from brokers.bench.adapter import Adapter, Point, fan_out_load
from brokers.bench.load import STAMPED_BYTES_MIN, FanOut, stamped_body
from kqmsgq import wire


def fan_out_of(point: Point) -> FanOut:
    """Each producer has names of its own, and its consumers are subscribed to all of them."""
    names, groups = point.name_list(), point.producers
    body = stamped_body(point.size)
    return FanOut(
        hello_producer=lambda producer: wire.PRODUCE,
        hello_consumer=lambda consumer: (
            wire.CONSUME + b"".join(map(wire.subscribe, names[consumer % groups :: groups]))
        ),
        message=lambda queue, stamp: wire.message(names[queue], body(stamp)),
        delivered_bytes=len(wire.message(names[0], bytes(point.size))),
        stamp_at=point.size,
        queues=len(names) // groups,
        groups=groups,
    )


ADAPTERS = {
    "fan-out": Adapter(
        "kqmsgq",
        "fan-out",
        fan_out_load(fan_out_of),
        STAMPED_BYTES_MIN,
        say_first=lambda who: (wire.account(who.user, who.secret), b""),
    )
}
