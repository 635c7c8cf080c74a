"""Any course of events, against a dict of sets and the specification's own table."""

from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import pubsub.fanout
import shared.fanout
from pubsub.wire import Command, Kind, datagram, encode_command, encode_id, payload_of, value_text
from tests.pubsub.world import Peer, World
from tests.support.turns import short_turns

LEVELS = st.sampled_from([b"a", b"", b"*", b"+"])
TOPICS = st.lists(LEVELS, min_size=1, max_size=3).map(b"/".join)
CLIENTS = st.sampled_from([b"A", b"B"])
STEPS = st.one_of(
    st.tuples(st.just("connect"), CLIENTS),
    st.tuples(st.just("leave"), CLIENTS),
    st.tuples(st.sampled_from(["subscribe", "keep", "unsubscribe"]), CLIENTS, TOPICS),
    st.tuples(st.just("publish"), st.lists(TOPICS, min_size=1, max_size=8)),
)
COMMANDS = {"subscribe": Command.SUBSCRIBE, "keep": Command.KEEP, "unsubscribe": Command.UNSUBSCRIBE}


def table_matches(pattern: bytes, topic: bytes) -> bool:
    """The specification's dynamic-programming table, as it is written there."""
    rows, columns = pattern.split(b"/"), topic.split(b"/")
    found = [[False] * (len(columns) + 1) for _ in range(len(rows) + 1)]
    found[0][0] = True
    for i, level in enumerate(rows, start=1):
        found[i][0] = found[i - 1][0] and level == b"*"
        for j, name in enumerate(columns, start=1):
            if level == b"*":
                found[i][j] = found[i - 1][j] or found[i][j - 1]
            else:
                found[i][j] = found[i - 1][j - 1] and level in (b"+", name)
    return found[-1][-1]


@pytest.fixture(params=["all at once", "in the smallest turns"])
def turns(request: pytest.FixtureRequest) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        if request.param != "all at once":
            short_turns(patch, 1, 1)
            patch.setattr(pubsub.fanout, "ITEMS", 1)
            patch.setattr(shared.fanout, "ROUTES_MEMBERS_MAX", 1)
        yield


@given(st.lists(STEPS, min_size=10, max_size=60))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_every_client_gets_what_the_model_says(turns: None, steps: list[tuple]) -> None:  # type: ignore[type-arg]
    world = World()
    connected: dict[bytes, Peer] = {}
    topics: dict[bytes, dict[bytes, bool]] = {client: {} for client in (b"A", b"B")}
    due: dict[bytes, list[bytes]] = {client: [] for client in topics}
    for what, first, *rest in steps:
        if what == "publish":
            world.publish(*first)
            for topic in first:
                for client, held in topics.items():
                    matching = [keeps for pattern, keeps in held.items() if table_matches(pattern, topic)]
                    if matching and (client in connected or any(matching)):
                        due[client].append(topic)
        elif what == "connect":
            peer = world.connect(encode_id(first))
            assert peer.closed is (first in connected)
            connected.setdefault(first, peer)
        elif first in connected:
            if what == "leave":
                assert connected[first].topics() == due[first]
                due[first] = []
                connected.pop(first).lose()
                continue
            (topic,) = rest
            connected[first].send(encode_command(COMMANDS[what], topic))
            if what == "unsubscribe":
                topics[first].pop(topic, None)
            else:
                topics[first][topic] = what == "keep"
    for client, peer in connected.items():
        assert peer.topics() == due[client]
    assert world.sessions.subscriptions == sum(map(len, topics.values()))


@given(st.lists(st.binary(max_size=1600), min_size=1, max_size=10))
def test_any_datagram_is_a_message_or_counted_and_harms_nobody(datagrams: list[bytes]) -> None:
    world = World()
    peer = world.subscriber(b"A", b"*")
    least = {0: 5, 1: 2, 2: 6, 3: 0}
    good = [
        each
        for each in datagrams
        if 51 <= len(each) <= 1551 and each[50] in least and len(each) - 51 >= least[each[50]]
    ]
    world.receive([*datagrams, datagram(b"last", Kind.STRING, b"")])
    seen = peer.messages()
    assert [(each.topic, each.kind, each.data) for each in seen[:-1]] == [
        (each[:50].partition(b"\0")[0], each[50], each[51:].ljust(1501, b"\0")) for each in good
    ]
    assert seen[-1].topic == b"last"
    assert sum(world.counts.datagrams_bad.values()) == len(datagrams) - len(good)


@given(st.integers(-(2**32) + 1, 2**32 - 1), st.integers(0, 255))
def test_a_number_prints_as_it_was_given(number: int, decimals: int) -> None:
    digits = str(abs(number)).rjust(decimals + 1, "0")
    text = ("-" if number < 0 else "") + digits[: len(digits) - decimals]
    text += "." + digits[len(digits) - decimals :] if decimals else ""
    assert value_text(Kind.FLOAT, payload_of(Kind.FLOAT, text)).decode() == text
    assert value_text(Kind.INT, payload_of(Kind.INT, str(number))).decode() == str(number)


def test_a_number_may_be_written_with_its_power_of_ten() -> None:
    for text, printed in (("12E2", b"1200"), ("1.5e1", b"15"), ("-15E-1", b"-1.5")):
        assert value_text(Kind.FLOAT, payload_of(Kind.FLOAT, text)) == printed


def test_a_zero_has_no_minus() -> None:
    assert value_text(Kind.INT, b"\1" + bytes(4)) == b"0"
    assert value_text(Kind.FLOAT, b"\1" + bytes(4) + b"\3") == b"0.000"
    assert value_text(Kind.SHORT_REAL, b"\0\5") == b"0.05"
