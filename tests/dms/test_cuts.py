"""However input is cut, the answers are the same; whatever it is, nobody else notices."""

from hypothesis import example, given
from hypothesis import strategies as st

from dms import records, runs, wire
from dms.settings import DmsSettings
from dms.wire import Status, Type
from tests.dms.world import Peer, World

NAMES = [wire.pack_name("a"), wire.pack_name("b"), wire.pack_name("no such queue")]
DELIVERED = st.integers(wire.DELIVERY_ID_BIT, wire.DELIVERY_ID_BIT + 40)
NAME = st.sampled_from(NAMES)

NUMBER = st.integers(0, 9)
MANY = st.sampled_from([1, 1, 4, 9])


def produce(name: bytes, number: int, size: int, many: int) -> bytes:
    return wire.pack(Type.PRODUCE, number, name + bytes([number]) * size) * many


FRAME = st.one_of(
    st.builds(produce, NAME, NUMBER, st.sampled_from([0, 5, 300]), MANY),
    st.builds(lambda name, n, many: wire.pack(Type.CONSUME, n, name) * many, NAME, st.integers(0, 9), MANY),
    st.builds(
        lambda held, many: b"".join(wire.pack(Type.ACK, held + n) for n in range(many)), DELIVERED, MANY
    ),
    st.builds(lambda held, name: wire.pack(Type.ACK, held, name), DELIVERED, NAME),
    st.builds(lambda held: wire.pack(Type.NACK, held), DELIVERED),
    st.builds(
        lambda held, many, name: b"".join(
            wire.pack(Type.ACK, held + n) + wire.pack(Type.CONSUME, n, name) for n in range(many)
        ),
        DELIVERED,
        st.integers(4, 8),
        NAME,
    ),
    st.builds(
        lambda t, n, payload: wire.pack(t, n, payload),
        st.integers(0, 255),
        st.integers(0, 9),
        st.binary(max_size=9),
    ),
    st.just(wire.HEADER.pack(wire.MAGIC, 5000, Type.PRODUCE, 1, 0, 3) + bytes(5000)),
    st.binary(max_size=20),
)


def world() -> tuple[World, Peer]:
    found = World(DmsSettings(persist=False, depth=30, credits_max=12))
    peer = found.connect()
    peer.create("a")
    peer.create("b")
    return found, peer


@given(st.lists(FRAME, max_size=25), st.randoms(use_true_random=False))
def test_input_cut_anywhere_is_answered_the_same(frames: list[bytes], pick: object) -> None:
    stream = b"".join(frames)
    one, whole = world()
    whole.send(stream)
    expected = whole.take()
    two, cut = world()
    found = []
    while stream and not cut.connection.finished:
        size = pick.randint(1, 200)  # type: ignore[attr-defined]
        cut.send(stream[:size])
        stream = stream[size:]
        found += cut.take()
    assert sorted(found) == sorted(expected)
    assert in_order(found) == in_order(expected)
    assert one.depths() == two.depths()
    assert cut.connection.finished == whole.connection.finished


def test_what_is_behind_a_disconnect_is_not_looked_at() -> None:
    for late in (wire.pack(Type.PRODUCE, 3, NAMES[0] + b"x"), b"\xde\xad" * 8, bytes(20)):
        found, peer = world()
        peer.send(wire.pack(Type.DISCONNECT, 2) + late)
        assert [(type_, number) for type_, _, _, number, _ in peer.take()] == [(Type.DISCONNECT_OK, 2)]
        assert peer.connection.finished
        assert found.depths() == {"a": 0, "b": 0}


def test_an_ack_of_what_only_a_consume_before_it_brings_is_taken_in_its_turn() -> None:
    """A client may guess the ids of deliveries to come; and may be wrong."""
    turns = b"".join(
        wire.pack(Type.ACK, wire.DELIVERY_ID_BIT + n % 4) + wire.pack(Type.CONSUME, n, NAMES[0])
        for n in range(8)
    )
    answers = []
    for pieces in ((turns,), tuple(turns[at : at + 35] for at in range(0, len(turns), 35))):
        _, peer = world()
        peer.send(produce(NAMES[0], 1, 5, 4))
        peer.take()
        found = [frame for piece in pieces for frame in (peer.send(piece), *peer.take())[1:]]
        answers.append([(type_, number) for type_, _, _, number, _ in found])
    first, *later = range(wire.DELIVERY_ID_BIT, wire.DELIVERY_ID_BIT + 4)
    assert sorted(answers[0]) == sorted(answers[1])
    for held in (first, *later):
        assert answers[0].index((Type.DELIVER, held)) < answers[0].index((Type.ACK_OK, held))


def test_a_consume_cut_off_its_ack_keeps_its_place_and_is_counted() -> None:
    turns = b"".join(
        wire.pack(Type.ACK, wire.DELIVERY_ID_BIT + n) + wire.pack(Type.CONSUME, n, NAMES[0])
        for n in range(13)
    )
    _, peer = world()
    peer.send(turns[: 4 * 35 + 16])  # four of them, and the ACK of a fifth
    peer.send(turns[4 * 35 + 16 :])
    refused = [(status, number) for _, _, status, number, _ in peer.take() if number <= 13]
    assert refused == [(Status.INTERNAL, 12)]
    waiting = [int.from_bytes(n) for credit in peer.session.consumer.credits for n in credit.ids[credit.at :]]
    assert waiting == list(range(12))


def in_order(frames: list[wire.Frame]) -> list[wire.Frame]:
    """All but what is pushed."""
    return [frame for frame in frames if frame[0] != Type.DELIVER]


@given(st.binary(max_size=400), st.booleans())
def test_garbage_harms_nobody_else(garbage: bytes, handshake: bool) -> None:
    found, neighbour = world()
    bad = found.connect(handshake=handshake)
    bad.send(garbage)
    bad.lose()
    assert [f[0] for f in neighbour.produce("a", b"x")] == [Type.PRODUCE_OK]
    assert [body for _, body in neighbour.consume("a")] == [b"x"]


@given(
    st.lists(st.tuples(NAME, st.binary(max_size=3), st.integers(0, 2**32 - 1)), min_size=1, max_size=12),
    st.integers(0, 3),
)
@example(
    [(b"\x00\x03abc", b"", 0)] * 4 + [(b"\x00\x01a", b"", 0)], 0
)  # its last frame is less than the others
@example([(b"\x00\x01a", b"", 0)] * 4 + [(b"\x00\x01a", b"x", 0)], 0)  # and longer
@example([(b"\x00\x01a", b"bc", 0)] * 4 + [(b"\x00\x03abc", b"", 0)] * 2, 0)  # and as long, of a longer name
def test_a_run_is_found_only_where_all_frames_are_alike(
    frames: list[tuple[bytes, bytes, int]], rest: int
) -> None:
    data = b"".join(wire.pack(Type.PRODUCE, n, name + body) for name, body, n in frames)
    name, body, _ = frames[0]
    like = [len(other + text) == len(name + body) and other.startswith(name[:2]) for other, text, _ in frames]
    run = runs.produced(data + data[:rest], 0, len(name + body), len(name))
    if run is not None:
        ids, names, bodies = run
        count = len(ids)
        assert count == [*like, False].index(False), "a run ends with the first frame that is not alike"
        assert ids == tuple(n.to_bytes(4) for _, _, n in frames[:count])
        assert names == tuple((other + text)[2 : len(name)] for other, text, _ in frames[:count])
        assert [name[:2] + each + body for each, body in zip(names, bodies, strict=True)] == [
            other + text for other, text, _ in frames[:count]
        ]
    else:
        assert not all(like) or len(frames) < runs.RUN_LEAST


@given(
    st.lists(st.integers(0, 2**32 - 1), min_size=1, max_size=40),
    st.lists(st.binary(max_size=5), min_size=1, max_size=20),
)
def test_what_is_built_at_once_is_what_is_built_one_by_one(ids: list[int], bodies: list[bytes]) -> None:
    packed_ids = [n.to_bytes(4) for n in ids]
    replies = runs.answers(runs.ACK_OK, packed_ids)
    assert replies == b"".join(wire.pack(Type.ACK_OK, n) for n in ids)
    assert runs.answered(replies) == packed_ids
    first = wire.DELIVERY_ID_BIT + 5
    assert runs.deliveries(runs.counted(first, len(bodies)), bodies) == b"".join(
        wire.pack(Type.DELIVER, n, body) for n, body in enumerate(bodies, first)
    )
    packed = records.pack_bodies(bodies)
    assert packed == b"".join(len(body).to_bytes(4, "big") + body for body in bodies)
    assert records.split_bodies(packed, 0, len(bodies)) == bodies
