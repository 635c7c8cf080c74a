"""`brokers bench kqmsgq` measures what it says; how fast that is here is not for a test to say."""

import socket

import pytest

from brokers.bench import fan_out, kqmsgq
from brokers.bench.fan_out import FanOut
from brokers.errors import ExitCode, Refusal
from kqmsgq import wire


def test_every_mode_gives_rows_beside_a_named_baseline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fan_out, "WARM_UP_SECONDS", 0.02)
    rows = kqmsgq.bench(size=50, window=64, queues=6, many=3, consumers=4, seconds=0.1, rounds=1)
    assert [(row.mode, row.producers, row.consumers, row.window) for row in rows] == [
        ("one", 1, 1, 64),
        ("one", 1, 1, 1000),
        ("queues", 3, 3, 64),
        ("fan-out", 1, 4, 6),
    ]
    for row in rows:
        assert row.deliveries_per_second > 0
        assert 0 < row.median_us <= row.p99_us
        assert row.baseline in ("nats-server", "-")
        assert (row.ratio is None) == (row.p99_ratio is None) == (row.baseline == "-")


@pytest.mark.parametrize(
    ("wrong", "said"), [({"size": 20}, "28 bytes"), ({"queues": 10, "many": 4}, "a multiple of --many")]
)
def test_what_cannot_be_measured_is_refused(wrong: dict[str, int], said: str) -> None:
    with pytest.raises(Refusal, match=said) as refused:
        kqmsgq.bench(**wrong)  # type: ignore[arg-type]
    assert refused.value.code is ExitCode.USAGE


@pytest.mark.parametrize("speak", [kqmsgq._kqmsgq, kqmsgq._nats])
def test_a_delivery_is_found_however_it_is_cut(speak: object) -> None:
    fan: FanOut = speak(50, 4, 2)  # type: ignore[operator]
    stamp = b"%020d" % 7
    if fan.aside:
        one = b"MSG bench-000 000 50\r\n" + stamp + b"x" * 30 + b"\r\n"
    else:
        one = wire.message(b"bench-000", stamp + b"x" * 30)
    assert len(one) == fan.delivered_bytes
    sent = one * 5 + fan.aside + one * 5
    for step in (1, 7, 100, 1000):
        near, far = socket.socketpair()
        with near, far:
            consumer = fan_out._Consumer(near)
            stamps = []
            for at in range(0, len(sent), step):
                far.sendall(sent[at : at + step])
                stamps.append(fan_out._receive(fan, consumer)[0])
            assert (consumer.received, consumer.rest) == (10, b"")
            assert set(stamps) <= {0, 7}
            assert stamps[-1] == 7
