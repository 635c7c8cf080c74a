"""`brokers bench pubsub` measures what it says; how fast that is here is not for a test to say."""

import socket

import pytest

from brokers.bench import fan_out, pubsub
from brokers.bench.datagrams import bare_receiver, flood
from brokers.bench.fan_out import FanOut, _Consumer, _Producer
from brokers.errors import ExitCode, Refusal
from pubsub import wire
from pubsub.wire import FRAME_BYTES
from tests.support.server import until


def test_every_mode_gives_a_row_beside_a_named_baseline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fan_out, "WARM_UP_SECONDS", 0.02)
    fan, intake = pubsub.bench(
        size=50, window=64, matching=4, subscribers=6, rate=2000, seconds=0.1, rounds=1
    )
    assert (fan.mode, fan.subscribers, fan.matching, fan.dropped_percent) == ("fan-out", 6, 4, None)
    assert fan.baseline in ("mosquitto", "-")
    assert (fan.ratio is None) == (fan.p99_ratio is None) == (fan.baseline == "-")
    assert fan.median_us is not None
    assert fan.p99_us is not None
    assert 0 < fan.median_us <= fan.p99_us
    assert (intake.mode, intake.matching, intake.baseline) == ("intake", 1, "recvfrom")
    for row in (fan, intake):
        assert row.per_second > 0
    assert (intake.dropped_percent, intake.baseline_dropped_percent) == (0, 0), "200 fit into any buffer"


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"size": 20}, "28 to 1500"),
        ({"size": 1501}, "28 to 1500"),
        ({"matching": 5, "subscribers": 4}, "--matching"),
    ],
)
def test_what_cannot_be_measured_is_refused(wrong: dict[str, int], said: str) -> None:
    with pytest.raises(Refusal, match=said) as refused:
        pubsub.bench(**wrong)  # type: ignore[arg-type]
    assert refused.value.code is ExitCode.USAGE


def test_a_delivery_is_found_however_it_is_cut() -> None:
    fan = pubsub.pubsub_fan_out(50, 4)
    sent = fan.message(3, b"%020d" % 7)
    topic, kind, payload = sent[:50].rstrip(b"\0"), sent[50], sent[51:]
    frames = wire.frame(b"127.0.0.1:9", topic, kind, payload) * 5
    found(fan, frames, 5)


def test_deliveries_of_mqtt_are_found_too() -> None:
    fan = pubsub.mqtt_fan_out(50, 4)
    found(fan, fan.message(3, b"%020d" % 7) * 5, 5)


def found(fan: FanOut, sent: bytes, count: int) -> None:
    assert len(sent) == count * fan.delivered_bytes
    for step in (1, 7, 1000, FRAME_BYTES + 3):
        near, far = socket.socketpair()
        with near, far:
            consumer = _Consumer(near)
            stamps = []
            for at in range(0, len(sent), step):
                far.sendall(sent[at : at + step])
                stamps.append(fan_out._receive(fan, consumer)[0])
            assert (consumer.received, consumer.rest) == (count, b"")
            assert set(stamps) <= {0, 7}
            assert stamps[-1] == 7


def test_each_message_of_a_publisher_is_a_datagram() -> None:
    import select

    fan = pubsub.pubsub_fan_out(50, 4)
    with (
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as server,
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock,
        select.epoll() as poll,
    ):
        server.bind(("127.0.0.1", 0))
        sock.connect(server.getsockname())
        poll.register(sock, 0)
        producer = _Producer(sock, len(fan.message(0, bytes(20))))
        producer.unsent = memoryview(fan.messages(1))
        fan_out._send(producer, poll)
        assert not producer.unsent
        topics = [server.recv(2000)[:50].rstrip(b"\0") for _ in pubsub.TOPICS]
    assert tuple(topics) == pubsub.TOPICS


def test_a_flood_says_what_it_sent_and_the_bare_loop_what_it_had() -> None:
    with bare_receiver() as (address, received), flood(address, b"x", rate=5000, seconds=0.1) as sent:
        told = sent()
        until(lambda: received() == told.datagrams)
    assert 0 < told.datagrams <= 5000 * told.seconds
    assert told.seconds >= 0.1
