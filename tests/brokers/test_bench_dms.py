"""`brokers bench dms` measures what it says; how fast that is here is not for a test to say."""

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from brokers.bench import dms, load
from brokers.bench.load import Talk
from brokers.errors import ExitCode, Refusal
from dms import wire
from dms.wire import Type


def test_every_mode_gives_rows_beside_a_named_baseline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(load, "WARM_UP_SECONDS", 0.02)
    rows = dms.bench(connections=3, window=4, queues=50, seconds=0.05, rounds=1, size=1000, data_dir=tmp_path)
    cases = {(row.mode, row.connections, row.window) for row in rows}
    assert cases == {
        ("memory", 3, 1),
        ("memory", 8, 4),
        ("synced", 1, 1),
        ("synced", 64, 4),
        ("queues", 8, 4),
    }
    for row in rows:
        assert row.messages_per_second > 0
        assert 0 < row.median_us <= row.p99_us
        assert row.baseline in ("beanstalkd", "beanstalkd -f 0", "redis lists", "one alone", "-")
        assert (row.ratio is None) == (row.baseline == "-")
    assert list(tmp_path.iterdir()) == []


def test_a_message_fits_a_frame() -> None:
    with pytest.raises(Refusal, match="1 to 4000") as refused:
        dms.bench(size=5000)
    assert refused.value.code is ExitCode.USAGE


def in_pieces(talk: Talk, data: bytes, seed: int) -> int:
    """How many answers are found in `data`, however it is cut."""
    source = random.Random(seed)
    count = 0
    while data:
        cut = source.randint(1, len(data))
        found = talk.answers(data[:cut])
        talk.requests(found)
        count += found
        data = data[cut:]
    return count


def dms_answers(number: int, body: bytes) -> bytes:
    frames = [wire.pack(Type.HANDSHAKE_ACK, 0, b"server")]
    for each in range(number):
        frames += [wire.pack(Type.PRODUCE_OK, 1), wire.pack(Type.DELIVER, 0x80000000 + each, body)]
        frames.append(wire.pack(Type.ACK_OK, 0x80000000 + each))
    return b"".join(frames)


def beanstalk_answers(number: int, body: bytes) -> bytes:
    return b"".join(
        b"INSERTED %d\r\nRESERVED %d %d\r\n%b\r\nDELETED\r\n" % (each, each, len(body), body)
        for each in range(number)
    )


def redis_answers(number: int, body: bytes) -> bytes:
    return b":1\r\n$%d\r\n%b\r\n" % (len(body), body) * number


@pytest.mark.parametrize(
    ("talk", "answers"),
    [
        (dms.dms_talk, dms_answers),
        (dms.beanstalk_talk, beanstalk_answers),
        (dms.redis_talk, redis_answers),
    ],
)
def test_answers_are_counted_wherever_they_are_cut(
    talk: Callable[[int, int], Talk], answers: Callable[[int, bytes], bytes]
) -> None:
    for seed in range(300):
        assert in_pieces(talk(20, 4), answers(7, b"x" * 20), seed) == 7


def test_what_is_delivered_is_acknowledged_along_with_the_next() -> None:
    talk = dms.dms_talk(5, 2)
    first, _ = wire.decode(talk.requests(2))
    assert [frame[0] for frame in first] == [Type.HANDSHAKE] + [Type.PRODUCE] * 2 + [Type.CONSUME] * 2
    assert talk.answers(wire.pack(Type.DELIVER, 0x80000007, b"xxxxx")) == 1
    second, _ = wire.decode(talk.requests(1))
    assert [(frame[0], frame[3]) for frame in second] == [
        (Type.ACK, 0x80000007),
        (Type.PRODUCE, 1),
        (Type.CONSUME, 2),
    ]


def test_a_refusal_is_told() -> None:
    with pytest.raises(Refusal, match="full"):
        dms.dms_talk(5, 2).answers(wire.pack(Type.ERROR, 1, b"the queue is full", 1))
