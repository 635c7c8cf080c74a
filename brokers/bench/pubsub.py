"""How pub/sub is loaded: datagrams from publishers to subscribers with a wildcard each.

No more than a window is on its way, so that datagrams are not lost for want of a buffer; those that are lost
are given up. With `--rate` the clock decides, and the rate that is shown is that of what arrived.
"""

from brokers.bench import load
from brokers.bench.adapter import Adapter, Point, fan_out_load
from brokers.bench.load import STAMPED_BYTES_MIN, FanOut, stamped_body
from pubsub import wire
from pubsub.wire import Command, Kind


def topics_of(point: Point) -> list[bytes]:
    """The topics of a point. The first level is the publisher's, so one wildcard has all of its topics."""
    groups = point.producers
    return [b"%03d/%b" % (number % groups, name) for number, name in enumerate(point.name_list())]


def fan_out_of(point: Point) -> FanOut:
    """Each publisher has topics of its own, and its subscribers a wildcard for all of them."""
    topics, groups = topics_of(point), point.producers
    body = stamped_body(point.size)
    return FanOut(
        hello_consumer=lambda number: (
            _identified(b"b%d" % number)
            + wire.encode_command(Command.SUBSCRIBE, b"%03d/*" % (number % groups))
        ),
        message=lambda queue, stamp: wire.datagram(topics[queue], Kind.STRING, body(stamp)),
        delivered_bytes=wire.FRAME_BYTES,
        stamp_at=wire.FRAME_BYTES - wire.DATA_AT,
        queues=len(topics) // groups,
        groups=groups,
        datagrams=True,
    )


def _identified(client_id: bytes) -> bytes:
    who = load.who
    return wire.encode_id(client_id) + (wire.encode_login(who.user, who.secret) if who else b"")


ADAPTERS = {
    "fan-out": Adapter(
        "pubsub",
        "fan-out",
        fan_out_load(fan_out_of),
        STAMPED_BYTES_MIN,
        wire.PAYLOAD_BYTES_MAX,
        under_way_bytes=128 << 10,  # or datagrams are lost for want of a buffer
    )
}
