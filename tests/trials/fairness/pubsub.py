"""What clients of pub/sub do."""

import socket
import time
from collections.abc import Callable, Sequence

from pubsub import wire
from pubsub.wire import Command, Kind
from tests.trials.fairness.peers import Pubsub, crowd, ping
from tests.trials.fairness.served import OBJECTS, Served, until


def _subscriber(served: Served, name: bytes, topics: Sequence[bytes], command: Command) -> Pubsub:
    peer = Pubsub(served, wire.encode_id(name))
    last = b"joined/" + name
    peer.send(b"".join(wire.encode_command(command, topic) for topic in topics))
    peer.send(wire.encode_command(Command.SUBSCRIBE, last))
    _datagram_until(served, last, peer.has_heard)
    return peer


def _sender(served: Served) -> socket.socket:
    sender = socket.socket(type=socket.SOCK_DGRAM)
    sender.connect(served.address("pubsub-udp"))
    return sender


def _datagram_until(served: Served, topic: bytes, done: Callable[[], bool]) -> None:
    with _sender(served) as sender:
        until(lambda: (sender.send(wire.datagram(topic, Kind.STRING, b"x\0")) and done()) or done())


def pubsub_a_session_of_1000_patterns_comes_and_goes(served: Served) -> None:
    deep = [b"%03d/" % number + b"/".join([b"+"] * 23) for number in range(249)]  # as deep as a topic may be
    patterns = deep + [b"plain/%d" % number for number in range(749)]
    first = _subscriber(served, b"a", patterns, Command.SUBSCRIBE)
    served.begin()
    for _ in range(5):
        first.close()
        first = _subscriber(served, b"a", (), Command.SUBSCRIBE)
    first.send(b"".join(wire.encode_command(Command.UNSUBSCRIBE, each) for each in patterns))
    first.send(wire.encode_command(Command.DISCONNECT))
    first.close()
    ping(served)


def pubsub_one_datagram_for_all_subscribers(served: Served) -> None:
    wish = wire.encode_command(Command.SUBSCRIBE, b"*")
    with crowd(OBJECTS, lambda number: Pubsub(served, wire.encode_id(b"%d" % number) + wish)) as peers:
        _datagram_until(served, b"t", peers[-1].has_heard)
        served.begin()
        with _sender(served) as sender:
            for _ in range(200):
                sender.send(wire.datagram(b"t", Kind.STRING, b"x\0"))
        peers[-1].read(wire.FRAME_BYTES * 50)
        ping(served)


def pubsub_subscribers_are_there_when_the_server_stops(served: Served) -> None:
    def subscriber(number: int) -> Pubsub:
        name = b"%d" % number
        return Pubsub(served, wire.encode_id(name) + wire.encode_command(Command.SUBSCRIBE, name))

    with crowd(OBJECTS, subscriber):
        ping(served)
        served.begin()
        served.stop()


def pubsub_10000_kept_messages_for_one_who_comes_back(served: Served) -> None:
    _subscriber(served, b"a", [b"kept"], Command.KEEP).close()
    with _sender(served) as sender:
        for _ in range(11_000):
            sender.send(wire.datagram(b"kept", Kind.STRING, b"x\0"))
            time.sleep(0.0001)
    ping(served)
    served.begin()
    with Pubsub(served, wire.encode_id(b"a")) as peer:
        peer.read(wire.FRAME_BYTES * 9_000)
    ping(served)


def _way(number: int) -> bytes:
    """Each level is `a` or `+`, in all ways."""
    return b"/".join(b"+" if number >> level % 14 & 1 else b"a" for level in range(20))


def pubsub_a_datagram_under_many_deep_patterns(served: Served) -> None:
    def session(number: int) -> Pubsub:
        patterns = [_way(number * 245 + each) for each in range(245)]
        return _subscriber(served, b"s%d" % number, patterns, Command.SUBSCRIBE)

    with crowd(OBJECTS // 245, session):
        served.begin()
        with _sender(served) as sender:
            for number in range(200):
                sender.send(wire.datagram(b"/".join([b"a"] * 20), Kind.STRING, b"%d\0" % number))
        ping(served)
        ping(served)
