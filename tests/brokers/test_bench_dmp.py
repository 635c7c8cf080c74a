"""`brokers bench dmp` measures what it says; how fast that is here is not for a test to say."""

import socket
import threading

import pytest

from brokers.bench import dmp
from brokers.errors import ExitCode, Refusal
from dmp import wire


def test_every_case_gives_rows_beside_a_named_baseline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dmp, "WARM_UP_SECONDS", 0.02)
    rows = dmp.bench(readers=3, window=64, seconds=0.1, rounds=1)
    assert {(row.readers, row.window) for row in rows} == {(1, 1), (1, 64), (3, 64)}
    assert {row.baseline for row in rows} >= {"basic"}
    for row in rows:
        assert row.deliveries_per_second > 0
        assert 0 < row.median_us <= row.p99_us
        assert row.ratio is not None  # on a busy machine it may round to 0


def test_a_body_has_a_size() -> None:
    with pytest.raises(Refusal, match="1 to 100000") as refused:
        dmp.bench(size=0)
    assert refused.value.code is ExitCode.USAGE


def test_no_more_than_a_window_is_on_its_way_and_every_delivery_is_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A stand-in that passes messages on to two readers, and looks how far they are behind."""
    monkeypatch.setattr(dmp, "WARM_UP_SECONDS", 0.01)
    message = wire.message(wire.Message(b"", b"k", bytes(10)))
    pairs = [socket.socketpair() for _ in range(3)]
    (writer, inside), *outs = pairs
    most = passed = 0

    def stand_in() -> None:
        nonlocal most, passed
        while data := inside.recv(1 << 20):
            most = max(most, len(data))
            passed += len(data)
            for _, out in outs:
                out.sendall(data)

    thread = threading.Thread(target=stand_in)
    thread.start()
    way = dmp.Way(writer, [reader for reader, _ in outs], message, len(message))
    measured = dmp.run(way, 8, 0.05)
    writer.close()
    thread.join()
    assert most <= 8 * len(message)
    assert 0 < measured.rate * 0.05 <= 2 * passed / len(message)
    for pair in pairs:
        for end in pair:
            end.close()
