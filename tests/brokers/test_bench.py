"""`brokers bench` measures what it says; how fast that is here is not for a test to say."""

import json
import os
import random
import select
import socket
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import product
from pathlib import Path
from time import sleep
from types import SimpleNamespace
from typing import Any

import pytest

from brokers.bench import (
    bridge,
    compare,
    dmp,
    dms,
    floor,
    kqmsgq,
    load,
    login,
    logmq,
    net,
    pubsub,
    recording,
    servers,
    sweep,
)
from brokers.bench.datagrams import bare_receiver, flood
from brokers.bench.load import Consumer, FanOut, Producer, Talk
from brokers.bench.servers import nats_fan_out
from brokers.errors import ExitCode, Failure
from brokers.render import Following
from dmp import wire as dmp_wire
from dms import wire as dms_wire
from dms.wire import Type
from kqmsgq import wire as kqmsgq_wire
from pubsub import wire as pubsub_wire
from shared.access import SALT_BYTES, Rule, Secret, User, written_users
from shared.recording.recorder import Recording
from shared.recording.settings import RecordSettings
from shared.storage.settings import Durability
from tests.shared.recording.test_recorder import LOG
from tests.support import forked
from tests.support.server import SMALL_JOURNAL, Process, until
from tests.support.stores import open_store


@pytest.fixture
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load, "WARM_UP_SECONDS", 0.02)
    monkeypatch.setattr(load, "SILENCE_SECONDS", 0.03)
    monkeypatch.setattr(logmq, "PRELOADED_BYTES", 200_000)
    monkeypatch.setattr(recording, "DISK_SECONDS", 0.01)
    monkeypatch.setattr(servers, "subprocess", SimpleNamespace(**vars(subprocess) | {"Popen": _small_server}))


def _small_server(command: Sequence[str], **options: Any) -> Process:
    environ = options.pop("env", os.environ)
    return forked.popen(command, env=SMALL_JOURNAL | environ, **options)


ROUND: dict[str, Any] = {"seconds": 0.05, "rounds": 1}
# Where a message has a least size it is of that.
PROTOCOLS: dict[str, tuple[Callable[..., Any], dict[str, Any], list[tuple[Any, ...]], set[str]]] = {
    "logmq": (
        logmq.bench,
        {"connections": 3, "window": 4, "topics": 5, "readers": 2, "size": 24},
        [
            ("produce", 1, 1),
            ("produce", 3, 4),
            ("topics", 5, 4),
            ("topics", 5, 4),
            ("checkpoint", 5, 1),
            ("consume", 1, 1),
            ("consume", 1, 4),
            ("consume", 3, 4),
            ("fetch", 1, 1),
            ("fetch", 4, 1),
            ("tail", 1, 4),
            ("tail", 2, 4),
        ],
        {"fdatasync", "floor", "redis", "one", "quiet", "-"},
    ),
    "dms": (
        dms.bench,
        {"connections": 3, "window": 4, "queues": 50, "size": 1000},
        [("memory", 3, 1), ("memory", 8, 4), ("synced", 1, 1), ("synced", 64, 4), ("queues", 8, 4)],
        {"beanstalkd", "beanstalkd -f 0", "redis lists", "one alone", "-"},
    ),
    "kqmsgq": (
        kqmsgq.bench,
        {"size": 28, "window": 64, "queues": 6, "many": 3, "consumers": 4},
        [("one", 1, 1, 64), ("one", 1, 1, 1000), ("queues", 3, 3, 64), ("fan-out", 1, 4, 6)],
        {"nats-server", "-"},
    ),
    "dmp": (
        dmp.bench,
        {"readers": 3, "window": 64},
        [("direct", 1, 1), ("direct", 1, 64), ("direct", 3, 64)],
        {"basic", "redis", "nats"},
    ),
    "pubsub": (
        pubsub.bench,
        {"size": 28, "window": 64, "matching": 4, "subscribers": 6, "rate": 2000},
        [("fan-out", 6, 4), ("intake", 1, 1)],
        {"mosquitto", "recvfrom", "-"},
    ),
}


@pytest.mark.usefixtures("_short")
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_every_mode_gives_rows_beside_a_named_baseline(protocol: str, tmp_path: Path) -> None:
    bench, arguments, cases, baselines = PROTOCOLS[protocol]
    if protocol in ("logmq", "dms"):
        arguments = arguments | {"data_dir": tmp_path}
    rows = [json.loads(json.dumps(row)) for row in bench(**arguments, **ROUND)]
    # Rows of the same case follow each other, one for each baseline that is installed.
    found = [tuple(row.values())[: len(cases[0])] for row in rows]
    assert list(dict.fromkeys(found)) == list(dict.fromkeys(cases))
    for row in rows:
        (rate,) = (row[name] for name in row if name.endswith("per_second") and "mega" not in name)
        assert rate > 0
        if row["mode"] == "intake":  # its messages have no time in them
            assert (row["dropped_percent"], row["baseline_dropped_percent"]) == (0, 0), "200 fit a buffer"
        else:
            assert 0 < row["median_us"] <= row["p99_us"]
            assert (row["ratio"] is None) == (row.get("p99_ratio", row["ratio"]) is None)
        assert row["baseline"] in baselines
        assert (row["ratio"] is None) == (row["baseline"] == "-")  # on a busy machine it may round to 0
    if protocol == "logmq":
        first = next(row for row in rows if row["mode"] == "consume")
        assert (first["baseline"], first["ratio"]) == ("one", 1.0)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("bench", "wrong", "said"),
    [
        (logmq.bench, {"size": 10}, "24 bytes"),
        (logmq.bench, {"size": (1 << 20) + 1}, "1048576 at most"),
        (logmq.bench, {"sweep": sweep.Sweep(sweep=True, picture=Path("/none/x.png"))}, "no folder /none"),
        (dms.bench, {"size": 5000}, "1 to 4000"),
        (dmp.bench, {"size": 0}, "4 to 100000"),
        (kqmsgq.bench, {"size": 20}, "28 bytes"),
        (kqmsgq.bench, {"queues": 10, "many": 4}, "a multiple of --many"),
        (pubsub.bench, {"size": 20}, "28 to 1500"),
        (pubsub.bench, {"size": 1501}, "28 to 1500"),
        (pubsub.bench, {"matching": 5, "subscribers": 4}, "--matching"),
        (recording.bench, {"size": 0}, "1 to 1500"),
        (recording.bench, {"size": 1501}, "1 to 1500"),
        (bridge.bench, {"size": 27}, "28 to 1500"),
    ],
)
def test_what_cannot_be_measured_is_refused(
    bench: Callable[..., Any], wrong: dict[str, Any], said: str
) -> None:
    with pytest.raises(Failure, match=said) as refused:
        bench(**wrong)
    assert refused.value.code is ExitCode.USAGE


# -- requests and their answers


def test_answers_of_several_lines_are_counted_as_they_end() -> None:
    answers = load.lines(2)
    assert [answers(data) for data in (b"$1", b"5\r\n12", b"-3\r\n$2\r\n", b"x\r\n")] == [0, 0, 1, 1]


def test_round_trips_are_taken_oldest_first() -> None:
    trips = load.histogram()
    sent = deque([(2, 1_000_000), (3, 5_000_000)])
    load.record_trips(trips, sent, 3, 10_000_000)
    assert list(sent) == [(2, 5_000_000)]
    assert trips.get_total_count() == 3
    assert abs(trips.get_max_value() - 9000) < 20
    assert abs(trips.get_min_value() - 5000) < 20


def dms_answers(number: int, body: bytes) -> bytes:
    frames = [dms_wire.pack(Type.HANDSHAKE_ACK, 0, b"server")]
    for each in range(number):
        frames += [dms_wire.pack(Type.PRODUCE_OK, 1), dms_wire.pack(Type.DELIVER, 0x80000000 + each, body)]
        frames.append(dms_wire.pack(Type.ACK_OK, 0x80000000 + each))
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
        source, one, count, data = random.Random(seed), talk(20, 4), 0, answers(7, b"x" * 20)
        while data:
            cut = source.randint(1, len(data))
            found = one.answers(data[:cut])
            one.requests(found)
            count += found
            data = data[cut:]
        assert count == 7


def test_what_is_delivered_is_acknowledged_along_with_the_next() -> None:
    talk = dms.dms_talk(5, 2)
    first, _ = dms_wire.decode(talk.greeting + talk.requests(2))
    assert [frame[0] for frame in first] == [Type.HANDSHAKE] + [Type.PRODUCE] * 2 + [Type.CONSUME] * 2
    assert talk.answers(dms_wire.pack(Type.DELIVER, 0x80000007, b"xxxxx")) == 1
    second, _ = dms_wire.decode(talk.requests(1))
    assert [(frame[0], frame[3]) for frame in second] == [
        (Type.ACK, 0x80000007),
        (Type.PRODUCE, 1),
        (Type.CONSUME, 2),
    ]


def test_a_refusal_is_told() -> None:
    with pytest.raises(Failure, match="full"):
        dms.dms_talk(5, 2).answers(dms_wire.pack(Type.ERROR, 1, b"the queue is full", 1))


# -- messages that are handed on

STAMP = b"%020d" % 7
FOUR = [b"bench-%03d" % number for number in range(4)]


def delivered_by_kqmsgq(fan: FanOut) -> bytes:
    return kqmsgq_wire.message(b"bench-000", STAMP + b"x" * 30)


def delivered_by_nats(fan: FanOut) -> bytes:
    return b"MSG bench-000 000 50\r\n" + STAMP + b"x" * 30 + b"\r\n"


def delivered_by_pubsub(fan: FanOut) -> bytes:
    sent = fan.message(3, STAMP)
    return pubsub_wire.frame(b"127.0.0.1:9", sent[:50].rstrip(b"\0"), sent[50], sent[51:])


def delivered_by_mqtt(fan: FanOut) -> bytes:
    return fan.message(3, STAMP)


def lines_of(fan: FanOut) -> bytes:
    return b"MSG 10 " + STAMP + b"x" * 30 + b"\n"


@pytest.mark.parametrize(
    ("fan", "delivered"),
    [
        (kqmsgq.fan_out_of(FOUR, 50, share=2), delivered_by_kqmsgq),
        (nats_fan_out(FOUR, 50, share=2), delivered_by_nats),
        (pubsub.pubsub_fan_out(50, 4), delivered_by_pubsub),
        (pubsub.mqtt_fan_out(50, 4), delivered_by_mqtt),
        (FanOut(lambda queue, stamp: b"", delivered_bytes=0, stamp_at=51), lines_of),
    ],
)
def test_a_delivery_is_found_however_it_is_cut(fan: FanOut, delivered: Callable[[FanOut], bytes]) -> None:
    one = delivered(fan)
    assert fan.delivered_bytes in (len(one), 0)
    sent = one * 5 + fan.aside + one * 5
    for step in (1, 7, 100, 1000, len(one) + 3):
        near, far = socket.socketpair()
        with near, far:
            consumer = Consumer(near, fan)
            stamps = []
            for at in range(0, len(sent), step):
                far.sendall(sent[at : at + step])
                stamps.append(consumer.read()[0])
            assert consumer.received == 10
            assert set(stamps) <= {0, 7}
            assert stamps[-1] == 7


@contextmanager
def pairs(count: int) -> Iterator[list[tuple[socket.socket, socket.socket]]]:
    with ExitStack() as stack:
        made = [socket.socketpair() for _ in range(count)]
        for pair in made:
            for end in pair:
                stack.enter_context(end)
        yield made


@pytest.mark.usefixtures("_short")
def test_no_more_than_a_window_is_on_its_way_and_every_delivery_is_counted() -> None:
    """A stand-in that passes messages on to two readers, and looks how far they are behind."""
    message = dmp_wire.message(dmp_wire.Message(b"", b"k", bytes(10)))
    most = passed = 0

    def stand_in(inside: socket.socket, outs: list[socket.socket]) -> None:
        nonlocal most, passed
        while data := inside.recv(1 << 20):
            most = max(most, len(data))
            passed += len(data)
            for out in outs:
                out.sendall(data)

    with pairs(3) as ((writer, inside), *outs):
        thread = threading.Thread(target=stand_in, args=(inside, [out for _, out in outs]))
        thread.start()
        fan = FanOut(lambda queue, stamp: message, len(message), 0)
        measured = load.pass_on(fan, [writer], [reader for reader, _ in outs], 8, 0.05)
        writer.close()
        thread.join()
    assert most <= 8 * len(message)
    assert 0 < measured.rate * 0.05 <= 2 * passed / len(message)


def test_each_message_of_a_publisher_is_a_datagram() -> None:
    fan = pubsub.pubsub_fan_out(50, 4)
    with (
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as server,
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock,
        select.epoll() as poll,
    ):
        server.bind(("127.0.0.1", 0))
        sock.connect(server.getsockname())
        poll.register(sock, 0)
        producer = Producer(sock, fan)
        producer.take(len(pubsub.TOPICS))
        producer.write(poll)
        assert not producer.unsent
        topics = [server.recv(2000)[:50].rstrip(b"\0") for _ in pubsub.TOPICS]
    assert tuple(topics) == pubsub.TOPICS


def test_a_flood_says_what_it_sent_and_the_bare_loop_what_it_had() -> None:
    with bare_receiver() as (address, received), flood(address, b"x", rate=5000, seconds=0.1) as sent:
        told = sent()
        until(lambda: received() == told.datagrams)
    assert 0 < told.datagrams <= 5000 * told.seconds
    assert told.seconds >= 0.1


# -- sweeps


def swept(bench: Callable[..., Any], **options: Any) -> list[load.Row]:
    points = sweep.Sweep(**({"sweep": True, "sizes": (16,), "names": (4,), "clients": (2, 5)} | options))
    rows = bench(window=4, sweep=points, json=True, seconds=0.02, rounds=1)
    assert isinstance(rows, Following), "each row is out when it is measured"
    return list(rows)


@pytest.mark.usefixtures("_short")
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_sweep_has_a_row_for_every_point_and_peer(protocol: str) -> None:
    rows = swept(PROTOCOLS[protocol][0], clients=(5,) if protocol in ("pubsub", "dmp") else (2, 5))
    # Fewer clients than names are tried with answers and with deliveries; a connection of DMS has one queue.
    clients = (2, 5) if protocol in ("logmq", "kqmsgq") else (5,)
    assert {(row["size"], row["names"], row["clients"]) for row in rows} == set(product((16,), (4,), clients))
    for row in rows:
        assert row["protocol"] == protocol
        assert row["window"] == 4
        assert row["messages_per_second"]
        assert row["cpu_us"]
        assert row["floor_ratio"]
        assert (row["ratio"] is None) == (row["baseline"] == "-")


@pytest.mark.usefixtures("_short")
def test_later_rounds_of_dms_use_the_queues_of_the_first(tmp_path: Path) -> None:
    found = sweep.rounds_at(dms.SWEPT["memory"], sweep.Point(16, 1, 1, 1), 0.02, 2, tmp_path)
    assert all(found["dms"])


def test_a_round_that_failed_says_why(capsys: pytest.CaptureFixture[str]) -> None:
    def refused(*_: object) -> load.Measured:
        raise Failure("the queue is full")

    adapter: Any = SimpleNamespace(servers={"slow": (servers.same_server, refused)}, floor=None)
    assert sweep.rounds_at(adapter, sweep.Point(16, 1, 1, 1), 0.02, 1, None) == {"slow": [None]}
    assert (
        capsys.readouterr().err == "brokers: a round of slow failed and does not count: the queue is full\n"
    )


def test_a_round_that_begins_within_a_message_is_refused_and_not_a_crash() -> None:
    ours, theirs = socket.socketpair()
    fan = load.FanOut(message=lambda queue, stamp: stamp, delivered_bytes=100, stamp_at=100)
    with ours, theirs:
        theirs.sendall(b"x" * 100)
        with pytest.raises(Failure, match="too busy"):
            load.Consumer(ours, fan).read()


NAMES = [b"%03d\n" % number for number in range(20)]


def slow_at_first(sock: socket.socket, into: socket.socket, seen: set[bytes]) -> None:
    """Each line goes on; the first of its name takes longer than a round of 0.05 s does for a few of them."""
    with sock.makefile("rb") as lines:
        for line in lines:
            if line not in seen:
                sleep(0.01)
                seen.add(line)
            into.sendall(line)


@pytest.mark.usefixtures("_short")
def test_the_clock_starts_when_each_name_was_written_once() -> None:
    seen: set[bytes] = set()
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            sock, _ = server.accept()
            with sock:
                slow_at_first(sock, sock, seen)

        thread = threading.Thread(target=serve)
        thread.start()
        asked = sweep.request_load(lambda point, client: Talk.repeating(NAMES, 1, point.window))
        asked(server.getsockname(), sweep.Point(4, len(NAMES), 1, 2), 0.05)
        thread.join()
    assert seen == set(NAMES)


@pytest.mark.usefixtures("_short")
def test_the_clock_starts_when_a_message_of_each_name_was_delivered() -> None:
    seen: set[bytes] = set()
    fan = FanOut(message=lambda queue, stamp: NAMES[queue], delivered_bytes=4, stamp_at=0, queues=len(NAMES))
    with ExitStack() as stack:
        outward, taken, given, inward = (
            stack.enter_context(each) for _ in range(2) for each in socket.socketpair()
        )
        thread = threading.Thread(target=slow_at_first, args=(taken, given, seen))
        thread.start()
        load.pass_on(fan, [outward], [inward], 4, 0.05)
        outward.close()
        thread.join()
    assert seen == set(NAMES)


def test_a_server_that_never_takes_a_name_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load, "COLD_SECONDS", 0.0)
    monkeypatch.setattr(load, "CLOSE_SECONDS", 0.1)  # nobody is there to close
    with socket.create_server(("127.0.0.1", 0)) as server, pytest.raises(Failure, match="each name"):
        load.run(server.getsockname(), [Talk.repeating(NAMES, 1, 1)], 0.05, cold=1)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_sweep_without_a_point_is_refused(protocol: str) -> None:
    with pytest.raises(Failure, match="no point"):
        swept(PROTOCOLS[protocol][0], sizes=(2 << 20,))


FAST, SLOW = (load.Measured(rate, 1e6 / rate, 2e6 / rate) for rate in (300.0, 100.0))


def test_a_row_is_the_middle_round_beside_each_peer_that_managed_one() -> None:
    point = sweep.Point(16, 2, 3, 4)
    found = {
        "logmq": [SLOW, FAST, FAST],
        "redis": [None, SLOW, None],
        "other": [None, None, None],
        sweep.FLOOR: [FAST, FAST, SLOW],
    }
    redis, other = sweep.beside_peers(logmq.SWEPT, point, found)
    assert (redis["baseline"], redis["messages_per_second"], redis["ratio"]) == ("redis", 300, 3)
    assert redis["median_ratio"] == redis["p99_ratio"] == pytest.approx(1 / 3, abs=0.01)
    assert (other["baseline"], other["messages_per_second"], other["ratio"]) == ("other", 300, None)
    assert redis["floor_ratio"] == other["floor_ratio"] == 1, "beside each peer"
    (alone,) = sweep.beside_peers(logmq.SWEPT, point, {"logmq": [None]})
    assert (alone["baseline"], alone["messages_per_second"], alone["ratio"]) == ("-", None, None)


def test_clients_share_names_evenly_and_no_more_is_on_its_way_than_is_safe() -> None:
    many = sweep.Point(16, 7, 3, 1)
    assert [len(many.names_of(client)) for client in range(3)] == [3, 2, 2]
    said = sorted(name for client in range(3) for name in many.names_of(client))
    assert said == [*many.name_list(), b"bench-006"]
    few = sweep.Point(16, 2, 5, 1)
    assert [few.names_of(client) for client in range(5)] == [[b"bench-%03d" % (n % 2)] for n in range(5)]
    points = logmq.SWEPT.points(sweep.Sweep(sizes=(16, 65536), names=(1,), clients=(1, 1000)), 10_000)
    assert [point.window for point in points] == [10_000, 262, 64, 1]


def test_the_picture_has_a_panel_for_each_size_and_peer() -> None:
    pytest.importorskip("matplotlib")
    from brokers.bench import picture

    found = {"logmq": [FAST], "redis": [SLOW], "other": [None]}
    rows = [
        row
        for size, names, clients in product((16, 300), (1, 3), (2, 5))
        for row in sweep.beside_peers(logmq.SWEPT, sweep.Point(size, names, clients, 1), found)
    ]
    figure = picture.figure_of(rows)
    first, _ = figure.axes
    assert [axes.get_title() for axes in figure.axes] == ["messages of 16 B", "messages of 300 B"]
    assert first.get_ylabel().split("\n") == ["logmq", "produce", "beside", "redis"], (
        "the other was not there"
    )
    assert first.get_xlabel() == "clients"
    assert [text.get_text() for text in first.texts] == ["3"] * 4
    assert [bar.get_y() for bar in first.patches] == [1] * 4, "bars stand on the peer's line"
    (legend,) = figure.legends
    said = [text.get_text() for text in legend.get_texts()]
    assert said == ["names: 1", "names: 3", "the other server (1)", "a bare loop of system calls, no broker"]
    assert picture.draw(rows).startswith(b"\x89PNG")
    alone = [{**row, "ratio": None} for row in rows]
    assert not any(axes.texts for axes in picture.figure_of(alone).axes), "a point that failed has no number"


# -- two environments


def rounds_of(*rates: float) -> list[load.Measured]:
    return [load.Measured(rate, 1e6 / rate, 2e6 / rate) for rate in rates]


def compared(
    *points: tuple[list[load.Measured], list[load.Measured]],
) -> dict[str, list[load.Row]]:
    measured = [
        (sweep.Point(100, 1, clients, 1), list(zip(base, ours, strict=True)))
        for clients, (base, ours) in enumerate(points, 1)
    ]
    found: dict[str, list[load.Row]] = {}
    for row in compare.changes(logmq.SWEPT, measured):
        found.setdefault(row["figure"], []).append(row)
    return found


def test_a_change_counts_when_it_is_larger_than_what_the_rounds_differ_by() -> None:
    still = rounds_of(100, 104, 96, 100, 102), rounds_of(102, 99, 101, 98, 100)
    better = rounds_of(100, 104, 96, 100, 102), rounds_of(151, 153, 147, 149, 150)
    rates = compared(still, better)["rate"]
    assert [row["beyond_noise"] for row in rates] == [False, True, False]
    assert (rates[1]["base"], rates[1]["ours"]) == (100, 150)
    assert 45 < rates[1]["change_percent"] < 55
    assert 0 < rates[1]["noise_percent"] < 10
    assert [row["clients"] for row in rates] == [1, 2, None], "the last is all points together"
    median = compared(still, better)["median_us"][1]
    assert median["beyond_noise"]
    assert -37 < median["change_percent"] < -30, "shorter is less"


def test_rounds_that_agree_by_chance_are_held_to_the_usual_noise() -> None:
    noisy = rounds_of(100, 140, 70, 120, 90), rounds_of(120, 80, 100, 130, 95)
    agreeing = rounds_of(*[100] * 5), rounds_of(*[103] * 5)
    assert compared(agreeing)["rate"][0]["beyond_noise"]
    assert not compared(noisy, agreeing, noisy)["rate"][1]["beyond_noise"]


def test_a_single_round_and_rounds_that_failed_change_nothing() -> None:
    assert not any(row["beyond_noise"] for row in compared((rounds_of(100), rounds_of(900)))["rate"])
    point = sweep.Point(100, 1, 1, 1)
    assert list(compare.changes(logmq.SWEPT, [(point, [(None, *rounds_of(1)), (None, None)])])) == []
    assert "cpu_us" not in compared((rounds_of(1, 2), rounds_of(1, 2))), "the system did not say"


@pytest.mark.usefixtures("_short")
def test_another_environments_server_is_loaded_beside_ours(tmp_path: Path) -> None:
    rows = compare.bench(
        Path(sys.executable),
        protocols=("kqmsgq",),
        sizes=(100,),
        names=(2,),
        clients=(2,),
        all_figures=True,
        data_dir=tmp_path,
        seconds=0.02,
        rounds=2,
    )
    assert [(row["figure"], row["size"]) for row in rows] == [
        (each, size) for each in compare.FIGURES for size in (100, None)
    ]
    assert all(row["base"] and row["ours"] for row in rows if row["size"])
    assert list(tmp_path.iterdir()) == []


# -- the machine, the network layer, and recording


def test_the_floor_is_disk_loopback_and_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(floor, "COPIED_BYTES", 100_000)
    rows = floor.bench(seconds=0.02, data_dir=tmp_path)
    assert [row.unit for row in rows] == ["us", "us", "us", "MB/s"]
    for row in rows:
        assert row.samples
        assert row.median
        assert row.median > 0
    sync, both, *_ = rows
    assert sync.median is not None
    assert both.median is not None
    assert sync.median < both.median, "the write comes with it"
    assert list(tmp_path.iterdir()) == []


def test_the_floor_of_a_closed_loop_is_a_sync_and_a_round_trip(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(floor, "round_trips", lambda seconds: [30_000] * 99 + [70_000])
    monkeypatch.setattr(floor, "sync_loop", lambda *args: load.Measured(5000, 200, 400))
    assert floor.closed_loop(tmp_path, 100, 1) == load.Measured(1e6 / 230, 230, 470)


def test_both_drivers_are_measured_with_many_clients_and_with_one() -> None:
    rows = net.run(clients=5, seconds=0.05, rounds=1)
    found = [(row["driver"], row["clients"]) for row in rows]
    assert found == [("poll", 5), ("task", 5), ("poll", 1), ("task", 1)]
    for row in rows:
        assert json.loads(json.dumps(row)) == row
        assert row["requests_per_second"] > 0
        assert 0 < row["round_trip_median_us"] <= row["round_trip_p99_us"]
    assert rows[1]["ratio"] == rows[3]["ratio"] == 1
    assert rows[0]["ratio"] == pytest.approx(
        rows[0]["requests_per_second"] / rows[1]["requests_per_second"], abs=0.01, rel=0.05
    )


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_idle_connections_are_weighed() -> None:
    row = net.measure_idle("poll", 200, 0.05)
    assert row["idle_connections"] == 200
    assert 0 < row["bytes_each"] < 10_240, "PROMISES: under 10 KiB each"


@pytest.mark.usefixtures("_short")
def test_each_protocol_gives_a_row_beside_itself_and_no_message_is_unaccounted_for(tmp_path: Path) -> None:
    rows = recording.bench(
        protocols=("kqmsgq", "pubsub"), size=50, rate=2000, seconds=0.05, rounds=1, data_dir=tmp_path
    )
    assert [row["protocol"] for row in rows] == ["kqmsgq", "pubsub"]
    for row in rows:
        assert (row["message_bytes"], row["durability"]) == (50, "interval")
        assert min(row["messages_per_second"], row["baseline_per_second"], row["ratio"]) > 0
        assert row["recorded_percent"] + row["gap_percent"] == pytest.approx(100, abs=0.02)
        assert (row["unaccounted"], row["baseline"]) == (0, recording.BASELINE)
        assert row["disk_megabytes_per_second"] > 0
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("_short")
def test_bridges_are_measured_beside_the_slower_of_their_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bridge, "BACKLOG", 2000)
    modes: tuple[bridge.Mode, ...] = ("dms-logmq", "latency")
    rows = bridge.bench(modes=modes, data_dir=tmp_path, **ROUND)
    assert [row.mode for row in rows] == list(modes)
    for row in rows:
        assert min(row.messages_per_second, row.end_per_second, row.ratio) > 0
        assert row.slower_end in (*row.mode.split("-"), "logmq")
    assert list(tmp_path.iterdir()) == []


async def test_what_a_log_holds_is_counted_by_its_frames_too(tmp_path: Path) -> None:
    store = await open_store(folder=tmp_path)
    recorder = Recording(store, RecordSettings(("echo",), Durability("always")), LOG).of("echo")
    assert recorder is not None
    track = recorder.track(1)
    track.record(3, bytes(30))
    recorder.leave_out("behind", 4, 40)
    track.record(2, bytes(15))  # its head says two
    recorder.flush()
    await store.close()
    assert recording.count(tmp_path, "echo", 10) == recording.Counted(messages=5, missing=4, wrong=2)


@pytest.mark.usefixtures("_short")
def test_a_load_logs_in_where_a_users_file_is_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    users, password = tmp_path / "users.toml", tmp_path / "password"
    secret = Secret.make(b"swordfish", bytes(SALT_BYTES))
    users.write_text(written_users({"ann": User("ann", (Rule.parse("*:*:*"),), secret)}))
    users.chmod(0o600)
    password.write_text("swordfish\n")
    monkeypatch.setenv("BROKERS_ACCESS_USERS_FILE", str(users))
    with pytest.raises(Failure, match="BROKERS_USER"):
        kqmsgq.bench(**ROUND)
    monkeypatch.setenv("BROKERS_USER", "ann")
    monkeypatch.setenv("BROKERS_PASSWORD_FILE", str(password))
    assert kqmsgq.bench(modes=("one",), size=28, window=4, **ROUND)
    # What the others say first is what tests/e2e/test_access.py sends.
    assert login.said_first("logmq") == (b"AUTH ann swordfish\n", b"OK\n")
    assert b'"user": "ann", "password": "swordfish"' in dms.dms_talk(24, 1).greeting
    fan = pubsub.pubsub_fan_out(24, 1)
    assert pubsub_wire.encode_login("ann", "swordfish") in fan.hello_consumer(0)
