"""`brokers bench` measures what it says; how fast that is here is not for a test to say."""

import json
import os
import random
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from time import sleep
from types import SimpleNamespace
from typing import Any, get_args

import pytest

from brokers.bench import adapter, cli, dms, kqmsgq, load, pubsub, servers
from brokers.bench.adapter import Point
from brokers.bench.cli import adapters_of
from brokers.bench.load import Consumer, FanOut, Talk
from brokers.commands.render import Following
from brokers.errors import ExitCode, Failure
from dmp import wire as dmp_wire
from dms import wire as dms_wire
from dms.wire import Type
from kqmsgq import wire as kqmsgq_wire
from pubsub import wire as pubsub_wire
from shared.client.login import NOBODY
from tests.bench import compare, peers, sweep
from tests.bench.bare import FLOORS
from tests.support import forked
from tests.support.server import SMALL_JOURNAL, Process, Server


@pytest.fixture
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load, "WARM_UP_SECONDS", 0.02)
    monkeypatch.setattr(load, "SILENCE_SECONDS", 0.03)
    monkeypatch.setattr(servers, "subprocess", SimpleNamespace(**vars(subprocess) | {"Popen": _small_server}))


def _small_server(command: Sequence[str], **options: Any) -> Process:
    environ = options.pop("env", os.environ)
    return forked.popen(command, env=SMALL_JOURNAL | environ, **options)


ROUND: dict[str, Any] = {"seconds": 0.05, "rounds": 1}


@pytest.mark.usefixtures("_short")
@pytest.mark.parametrize("protocol", get_args(cli.Protocol))
def test_every_mode_of_a_protocol_is_loaded_at_every_point(protocol: cli.Protocol, tmp_path: Path) -> None:
    points: dict[str, Any] = {"sizes": (24,), "names": (1, 3), "clients": (3,), "window": 4}
    disk = tmp_path / "folder that the command makes"
    rows = cli.measure(protocol, **points, **ROUND, data_dir=disk, json=True)
    assert isinstance(rows, Following), "each row is out when it is measured"
    shown = [json.loads(json.dumps(row)) for row in rows]
    assert [(row["mode"], row["names"], row["clients"], row["window"]) for row in shown] == [
        (mode, names, 3, 4) for mode in adapters_of(protocol) for names in (1, 3)
    ]
    for row in shown:
        assert row["messages_per_second"] > 0
        assert 0 < row["median_us"] <= row["p99_us"]
        assert "rate" not in row
    assert list(disk.iterdir()) == []


@pytest.mark.usefixtures("_short")
@pytest.mark.parametrize(
    ("protocol", "mode"), [("logmq", "produce"), ("pubsub", "fan-out"), ("dmp", "direct")]
)
def test_with_a_rate_messages_are_due_by_the_clock(protocol: cli.Protocol, mode: str, tmp_path: Path) -> None:
    (row,) = cli.measure(
        protocol, modes=(mode,), clients=(1,), rate=500, seconds=0.3, rounds=1, data_dir=tmp_path
    )
    assert row["rate"] == 500
    assert row["messages_per_second"] <= 600, "a server that can do more is not asked for more"


def test_an_open_loop_counts_a_latency_from_when_its_request_was_due() -> None:
    begun = 7
    clock = load.DueClock(1000.0, begun)
    assert clock.take(100, begun + 50_000_000) == (50, begun)
    assert clock.take(3, begun + 60_000_000) == (3, begun + 50_000_000), "no more than there is room for"
    assert clock.take(100, begun + 60_000_000) == (7, begun + 53_000_000)
    assert clock.take(100, begun + 60_000_000)[0] == 0


@pytest.mark.usefixtures("_short")
def test_a_running_server_is_loaded_as_the_user_of_the_environment(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    password = tmp_path / "password"
    password.write_text("swordfish\n")
    monkeypatch.setenv("BROKERS_USER", "ann")
    monkeypatch.setenv("BROKERS_PASSWORD_FILE", str(password))
    monkeypatch.setattr(load, "SAID_FIRST", dict[Any, Any]())
    monkeypatch.setattr(load, "who", NOBODY)
    host, port = server.address("logmq")
    with pytest.raises(Failure, match="refuses the login"):  # there is no such user
        list(cli.measure("logmq", host=host, port=port, clients=(1,), **ROUND))
    assert load.SAID_FIRST[host, port] == (b"AUTH ann swordfish\n", b"OK\n")
    assert b'"user": "ann", "password": "swordfish"' in dms.dms_talk(24, 1).greeting
    hello = pubsub.fan_out_of(Point(24, 1, 1, 1)).hello_consumer(0)
    assert pubsub_wire.encode_login("ann", "swordfish") in hello
    monkeypatch.delenv("BROKERS_USER")
    load.SAID_FIRST.clear()
    (row,) = cli.measure("logmq", modes=("produce",), host=host, port=port, clients=(2,), **ROUND)
    assert row["messages_per_second"] > 0


@pytest.mark.parametrize(
    ("protocol", "wrong", "said"),
    [
        ("logmq", {"modes": ("nix",)}, "there is produce, tail"),
        ("logmq", {"modes": ("tail",), "sizes": (10,)}, "24 to 1048576 bytes"),
        ("dms", {"sizes": (5000,)}, "1 to 4000 bytes"),
        ("dms", {"names": (9,), "clients": (2,)}, "a client uses one name"),
        ("dms", {"modes": ("memory",), "port": 1}, "as it is set"),
        ("kqmsgq", {"sizes": (20,)}, "24 to 1048576 bytes"),
        ("pubsub", {"sizes": (1501,)}, "24 to 1500 bytes"),
        ("dmp", {"sizes": (1,)}, "24 to 100000 bytes"),
        ("kqmsgq", {"port": 1}, r"no server answers at 127\.0\.0\.1:1"),
    ],
)
def test_what_cannot_be_loaded_is_refused(protocol: cli.Protocol, wrong: dict[str, Any], said: str) -> None:
    with pytest.raises(Failure, match=said) as refused:
        cli.measure(protocol, **wrong)
    assert refused.value.code is (ExitCode.UNAVAILABLE if "answers" in said else ExitCode.USAGE)


# -- requests and their answers


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
        (peers.beanstalk_talk, beanstalk_answers),
        (peers.redis_talk, redis_answers),
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


# -- messages that are handed on

STAMP = b"%020d" % 7
POINT = Point(50, 4, 4, 1)


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
        (kqmsgq.fan_out_of(POINT), delivered_by_kqmsgq),
        (peers.nats_fan_out(POINT), delivered_by_nats),
        (pubsub.fan_out_of(POINT), delivered_by_pubsub),
        (peers.mqtt_fan_out(POINT), delivered_by_mqtt),
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
    message = dmp_wire.message(dmp_wire.Message(b"", b"k", STAMP + bytes(10)))
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
        fan = FanOut(lambda queue, stamp: message, len(message), 30)
        measured = load.pass_on(fan, [writer], [reader for reader, _ in outs], 8, 0.05)
        writer.close()
        thread.join()
    assert most <= 8 * len(message)
    assert 0 < measured.rate * 0.05 <= 2 * passed / len(message)


NAMES = [b"%03d\n" % number for number in range(20)]


def slow_at_first(sock: socket.socket, into: socket.socket, seen: set[bytes]) -> None:
    """Each line goes on; the first of its name takes longer than a round of 0.05 s does for a few of them."""
    with sock.makefile("rb") as lines:
        for line in lines:
            if line[:3] not in seen:
                sleep(0.01)
                seen.add(line[:3])
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
        asked = adapter.request_load(
            lambda point, client: Talk(load.repeated(NAMES), load.lines(), point.window)
        )
        asked(server.getsockname(), Point(4, len(NAMES), 1, 2), 0.05)
        thread.join()
    assert seen == {name[:3] for name in NAMES}


def test_a_server_that_never_takes_a_name_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load, "COLD_SECONDS", 0.0)
    monkeypatch.setattr(load, "CLOSE_SECONDS", 0.1)  # nobody is there to close
    with socket.create_server(("127.0.0.1", 0)) as server, pytest.raises(Failure, match="each name"):
        load.run(server.getsockname(), [Talk(load.repeated(NAMES), load.lines(), 1)], 0.05, cold=1)


def test_a_round_that_begins_within_a_message_is_refused_and_not_a_crash() -> None:
    ours, theirs = socket.socketpair()
    fan = load.FanOut(message=lambda queue, stamp: stamp, delivered_bytes=100, stamp_at=100)
    with ours, theirs:
        theirs.sendall(b"x" * 100)
        with pytest.raises(Failure, match="too busy"):
            load.Consumer(ours, fan).read()


# -- beside peers


@pytest.mark.usefixtures("_short")
@pytest.mark.parametrize(("protocol", "mode"), peers.PEERS)
def test_a_point_is_measured_beside_a_bare_loop_and_every_peer_that_is_installed(
    protocol: cli.Protocol, mode: str
) -> None:
    point, key = Point(24, 4, 5, 4), (protocol, mode)
    beside = {**peers.PEERS[key], sweep.FLOOR: FLOORS[key]}
    taken = sweep.rounds_at(adapters_of(protocol)[mode], beside, point, 0.02, 1)
    rows = list(sweep.beside_peers(adapters_of(protocol)[mode], point, taken))
    assert rows
    for row in rows:
        assert row["messages_per_second"]
        assert row["floor_ratio"]
        assert (row["ratio"] is None) == (row["baseline"] == "-")


PRODUCE = adapters_of("logmq")["produce"]
FAST, SLOW = (load.Measured(rate, 1e6 / rate, 2e6 / rate) for rate in (300.0, 100.0))


def test_a_row_is_the_middle_round_beside_each_peer_that_managed_one() -> None:
    point = Point(16, 2, 3, 4)
    found = {
        "logmq": [SLOW, FAST, FAST],
        "redis": [None, SLOW, None],
        "other": [None, None, None],
        sweep.FLOOR: [FAST, FAST, SLOW],
    }
    redis, other = sweep.beside_peers(PRODUCE, point, found)
    assert (redis["baseline"], redis["messages_per_second"], redis["ratio"]) == ("redis", 300, 3)
    assert redis["median_ratio"] == redis["p99_ratio"] == pytest.approx(1 / 3, abs=0.01)
    assert (other["baseline"], other["messages_per_second"], other["ratio"]) == ("other", 300, None)
    assert redis["floor_ratio"] == other["floor_ratio"] == 1, "beside each peer"
    (alone,) = sweep.beside_peers(PRODUCE, point, {"logmq": [None]})
    assert (alone["baseline"], alone["messages_per_second"], alone["ratio"]) == ("-", 0, None)


# -- two environments


def rounds_of(*rates: float) -> list[load.Measured]:
    return [load.Measured(rate, 1e6 / rate, 2e6 / rate) for rate in rates]


def compared(
    *points: tuple[list[load.Measured], list[load.Measured]],
) -> dict[str, list[sweep.Row]]:
    measured = [
        (Point(100, 1, clients, 1), list(zip(base, ours, strict=True)))
        for clients, (base, ours) in enumerate(points, 1)
    ]
    found: dict[str, list[sweep.Row]] = {}
    for row in compare.changes(PRODUCE, measured):
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


def test_a_single_round_and_rounds_that_failed_change_nothing() -> None:
    assert not any(row["beyond_noise"] for row in compared((rounds_of(100), rounds_of(900)))["rate"])
    point = Point(100, 1, 1, 1)
    assert list(compare.changes(PRODUCE, [(point, [(None, *rounds_of(1)), (None, None)])])) == []
    assert "cpu_us" not in compared((rounds_of(1, 2), rounds_of(1, 2))), "the system did not say"


@pytest.mark.usefixtures("_short")
def test_another_environments_server_is_loaded_beside_ours(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    point = ["--sizes", "100", "--names", "2", "--clients", "2", "--seconds", "0.02", "--rounds", "2"]
    compare.main(["--protocols", "kqmsgq", *point, "--all", "--data-dir", str(tmp_path)])
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(row["figure"], row["size"]) for row in rows] == [
        (figure, size) for figure in compare.FIGURES for size in (100, None)
    ]
    assert all(row["base"] and row["ours"] for row in rows if row["size"])
    assert list(tmp_path.iterdir()) == []
