"""Datagrams put into frames."""

import select
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from shared.net.datagram_sink import Layout
from shared.net.slots import Slots
from tests.support.memory import growth_bytes

LAYOUT = Layout(frame_bytes=60, parts=((24, 5), (30, 20)), sender=(0, 22))
Pair = tuple[socket.socket, socket.socket]


@pytest.fixture(params=[socket.AF_INET, socket.AF_INET6])
def pair(request: pytest.FixtureRequest) -> Iterator[Pair]:
    host = "127.0.0.1" if request.param == socket.AF_INET else "::1"
    with (
        socket.socket(request.param, socket.SOCK_DGRAM) as near,
        socket.socket(request.param, socket.SOCK_DGRAM) as far,
    ):
        try:
            far.bind((host, 0))
        except OSError:
            pytest.skip("no IPv6 here")
        far.setblocking(False)
        near.connect(far.getsockname())
        yield near, far


def expected(data: bytes, near: socket.socket) -> bytes:
    frame = bytearray(60)
    host, port = near.getsockname()[:2]
    sender = (f"[{host}]:{port}" if ":" in host else f"{host}:{port}").encode()[:22]
    frame[: len(sender)] = sender
    frame[24 : 24 + len(data[:5])] = data[:5]
    frame[30 : 30 + len(data[5:25])] = data[5:25]
    return bytes(frame)


def received(
    slots: Slots, far: socket.socket, count: int, is_allowed: Callable[[str], bool] | None = None
) -> tuple[bytes, list[int]]:
    """Frames and lengths of so many datagrams; not all of them need be there at once."""
    frames, lengths = b"", list[int]()
    while count > 0:
        select.select([far], [], [])
        taken, some, more = slots.receive(far, is_allowed)
        assert len(more) <= taken <= 4
        frames, lengths, count = frames + some, lengths + list(more), count - taken
    assert count == 0
    return frames, lengths


@given(batches=st.lists(st.lists(st.binary(max_size=30), min_size=1, max_size=6), max_size=6))
@example([[b"x" * 20] * 4, [b"y" * 20, b"y"], [b"z" * 6] * 4])  # shorter ones behind a longer batch
@example([[b"x" * 20] * 4, [b"y" * 9, b"y"], [b"z" * 6] * 4])
@example([[b"x" * 20] * 4, [b"y" * 9] * 2, [b"z" * 9] * 4])
@example([[b"x" * 20] * 4, [b"y" * 9] * 2, [b"z" * 7] * 4])
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_frames_hold_the_datagram_its_sender_and_nothing_of_earlier_ones(
    pair: Pair, batches: list[list[bytes]]
) -> None:
    near, far = pair
    slots = Slots(LAYOUT, 4)
    for batch in batches:
        for data in batch:
            near.send(data)
        found, lengths = received(slots, far, len(batch))
        assert found == b"".join(expected(data, near) for data in batch)
        for data, length in zip(batch, lengths, strict=True):
            assert length == len(data) if len(data) <= 25 else length > 25
    with pytest.raises(BlockingIOError):
        slots.receive(far, None)


def test_no_more_senders_are_remembered_than_that(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shared.net.slots.SENDERS_MAX", 3)
    _, far = pair
    slots = Slots(LAYOUT, 4)

    def hear_of_new_senders(count: int) -> None:
        with ExitStack() as stack:
            for number in range(count):
                other = stack.enter_context(socket.socket(far.family, socket.SOCK_DGRAM))
                other.connect(far.getsockname())
                other.send(b"%d" % number)
                assert received(slots, far, 1)[0] == expected(b"%d" % number, other)

    hear_of_new_senders(8)
    one_sender_bytes = 100
    assert growth_bytes(lambda: hear_of_new_senders(200)) < 100 * one_sender_bytes


def test_what_is_not_allowed_is_left_out(pair: Pair) -> None:
    near, far = pair
    slots = Slots(LAYOUT, 4)
    near.send(b"one")
    assert received(slots, far, 1, lambda host: host not in ("127.0.0.1", "::1")) == (b"", [])
    near.send(b"two")
    assert received(slots, far, 1, lambda host: True) == (expected(b"two", near), [3])
