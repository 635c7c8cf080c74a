"""Lines of other programs become messages: from datagrams, from syslog over TCP, from `logger` itself."""

import shutil
import socket
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest
import structlog

from pubsub.fanout import Fanout
from pubsub.intake import DATAGRAM_BYTES_MAX, LAYOUT, Intake, LineSink, SyslogSession
from pubsub.lines import LINES, MESSAGE_BYTES_MAX, STATSD, SYSLOG, LineKind
from pubsub.settings import PubsubSettings
from pubsub.wire import Command, encode_command
from shared.access import Access, Guard, Rule, User
from shared.turns import CLOCK
from tests.pubsub.test_served import heard, subscribed, topics_of
from tests.pubsub.world import World
from tests.support.connections import MemoryConnection
from tests.support.hand_peer import HandPeer
from tests.support.server import Server, run, until

LOG = structlog.stdlib.get_logger("test")
SENDER = b"[2001:db8::7]:514"


class LineWorld:
    """Its sink, its connections, and a subscriber of everything."""

    def __init__(self, kind: LineKind, gate: Guard | None = None) -> None:
        self.world = World()
        fanout = Fanout(self.world.sessions, None, gate)
        self.gate = gate
        self.intake = Intake(kind, fanout, self.world.counts, LOG)
        self.sink = LineSink(self.intake)
        self.subscriber = self.world.subscriber(b"A", b"*")

    def receive(self, *datagrams: bytes) -> int:
        """As one read; how many turns it took."""
        frames = bytearray(len(datagrams) * LAYOUT.frame_bytes)
        for at, data in enumerate(datagrams):
            start = at * LAYOUT.frame_bytes
            frames[start : start + len(SENDER)] = SENDER
            start += LAYOUT.sender[1]
            data = data[:DATAGRAM_BYTES_MAX]
            frames[start : start + len(data)] = data
        left = self.sink.receive_frames(bytes(frames), [len(each) for each in datagrams])
        turns = 1
        while left is not None:
            left = self.sink.receive_frames(*left)
            turns += 1
        return turns

    def connect(self) -> HandPeer:
        connection = MemoryConnection(peer=SENDER.decode())
        return HandPeer(connection, SyslogSession(connection, self.intake, 30.0, self.gate))

    def got(self) -> list[tuple[bytes, bytes]]:
        return [(message.topic, message.value) for message in self.subscriber.messages()]


def guard(required: bool = False, **rules: Sequence[str]) -> Guard:
    users = {name: User(name, tuple(map(Rule.parse, each))) for name, each in rules.items()}
    return Access(users).guard("pubsub", "always" if required else "never")


def test_lines_of_a_datagram_are_messages_in_their_order() -> None:
    lines = LineWorld(STATSD)
    lines.receive(b"a:1|c\nb.c:2|g\n", b"", b"a:3|c")
    assert lines.got() == [(b"statsd/a", b"a:1|c"), (b"statsd/b/c", b"b.c:2|g"), (b"statsd/a", b"a:3|c")]
    assert lines.world.counts.lines == {"statsd": 3}


def test_a_message_shows_who_has_sent_the_line() -> None:
    lines = LineWorld(LINES)
    lines.receive(b"hello")
    (message,) = lines.subscriber.messages()
    assert (message.sender, message.topic) == (SENDER.decode(), b"lines/2001_db8__7")


def test_what_is_no_message_is_dropped_counted_by_reason_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    lines = LineWorld(STATSD)
    with structlog.testing.capture_logs() as logged:
        lines.receive(
            b"nonsense\na:1|c\n" + b"n" * 60 + b":1|c",
            b"a:" + b"1" * 1500 + b"|c",
            b"a:1|c\n" * DATAGRAM_BYTES_MAX,
        )
    assert lines.got() == [(b"statsd/a", b"a:1|c")]
    assert lines.world.counts.lines_dropped == {"malformed": 1, "topic": 1, "long": 2}
    (line,) = logged
    assert (line["kind"], line["sender"], line["malformed"], line["long"]) == ("statsd", SENDER, 1, 2)


def test_many_lines_take_several_turns_and_keep_their_order(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(range(1_000_000))
    monkeypatch.setattr(CLOCK, "now", lambda: float(next(clock)))  # each look at it ends a turn
    lines = LineWorld(LINES)
    assert lines.receive(*[b"%d\n%d" % (number, number + 1) for number in range(0, 60, 2)]) >= 30
    assert [value for _, value in lines.got()] == [b"%d" % number for number in range(60)]


def test_one_datagram_of_many_lines_takes_several_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(range(1_000_000))
    monkeypatch.setattr(CLOCK, "now", lambda: float(next(clock)))
    lines = LineWorld(LINES)
    assert lines.receive(b"\n".join(b"%d" % number for number in range(1000)), b"1000") > 10
    assert [value for _, value in lines.got()] == [b"%d" % number for number in range(1001)]


def test_datagrams_of_lines_go_where_the_user_udp_may_write() -> None:
    lines = LineWorld(SYSLOG, guard(udp=["pubsub:write:syslog/auth/*"]))
    lines.receive(b"<32>su: x", b"<8>su: x")
    assert [topic for topic, _ in lines.got()] == [b"syslog/auth/2001_db8__7/su"]
    assert lines.world.counts.datagrams_bad == {"denied": 1}


def test_syslog_over_tcp_is_taken_in_both_framings() -> None:
    lines = LineWorld(SYSLOG)
    peer = lines.connect()
    data = b"<13>a: one\n11 <13>b: two\n<13>c: three\r\n"
    peer.send(*(data[at : at + 1] for at in range(len(data))))
    assert [value for _, value in lines.got()] == [b"<13>a: one", b"<13>b: two", b"<13>c: three"]
    peer.send(b"<13>never ends")
    peer.close_input()
    assert lines.got() == []
    assert peer.connection.finished
    assert lines.world.counts.lines_dropped == {"cut": 1}


def test_a_message_that_is_too_long_is_dropped_and_those_behind_it_are_taken() -> None:
    lines = LineWorld(SYSLOG)
    peer = lines.connect()
    peer.send(b"2000 <13>" + b"x" * 1996 + b"<13>" + b"x" * 2000 + b"\n6 <13>ok")
    assert [value for _, value in lines.got()] == [b"<13>ok"]
    assert lines.world.counts.lines_dropped == {"long": 2}


@pytest.mark.parametrize("data", [b"POST / HTTP/1.1\r\n", b"<13>" + b"x" * MESSAGE_BYTES_MAX, b"70000 "])
def test_a_connection_whose_messages_cannot_be_found_is_closed(data: bytes) -> None:
    lines = LineWorld(SYSLOG)
    peer = lines.connect()
    peer.send(b"<13>a: x\n" + data)
    assert peer.closed
    assert len(lines.got()) == 1
    assert lines.world.counts.faults == {"syslog": 1}


def test_a_message_that_does_not_end_in_time_closes_the_connection() -> None:
    lines = LineWorld(SYSLOG)
    peer = lines.connect()
    peer.send(b"20 <13>")
    peer.advance(31)
    assert peer.closed
    assert lines.world.counts.faults == {"too_late": 1}


def test_syslog_over_tcp_goes_where_its_user_may_write() -> None:
    lines = LineWorld(SYSLOG, guard(anonymous=["pubsub:write:syslog/auth/*"]))
    lines.connect().send(b"<32>su: x\n<8>su: x\n")
    assert [topic for topic, _ in lines.got()] == [b"syslog/auth/2001_db8__7/su"]
    assert lines.world.counts.lines_dropped == {"denied": 1}


def test_syslog_over_tcp_is_closed_where_a_login_is_asked_for() -> None:
    lines = LineWorld(SYSLOG, guard(required=True, udp=["pubsub:write:*"]))
    peer = lines.connect()
    peer.send(b"<13>a: x\n")
    assert peer.closed
    assert lines.got() == []
    assert lines.world.counts.faults == {"login": 1}


def test_no_port_for_lines_is_open_unless_it_is_set() -> None:
    settings = PubsubSettings()
    assert settings.lines_port is settings.syslog_port is settings.statsd_port is None


LOGGER = shutil.which("logger")
WORDS = ("-p", "local3.err", "-t", "backup", "it is done")
SENT = {  # what logger of util-linux 2.38 sends; used where there is none
    ("-d",): b'<155>1 2026-11-28T23:53:10.5+00:00 vm backup - - [timeQuality tzKnown="1"] it is done',
    ("-d", "--rfc3164"): b"<155>Nov 28 23:53:10 vm backup: it is done",
    ("-T",): b"<155>1 2026-11-28T23:53:10.5+00:00 vm backup - - - it is done\n",
    ("-T", "--octet-count"): b"60 <155>1 2026-11-28T23:53:10.5+00:00 vm backup - - - it is done",
    ("-T", "--rfc3164"): b"<155>Nov 28 23:53:10 vm backup: it is done\n",
}


def say(address: tuple[str, int], *flags: str) -> None:
    host, port = address
    if LOGGER is not None:
        subprocess.run([LOGGER, "-n", host, "-P", str(port), *flags, *WORDS], check=True)
        return
    kind = socket.SOCK_STREAM if "-T" in flags else socket.SOCK_DGRAM
    with socket.socket(socket.AF_INET, kind) as sock:
        sock.connect(address)
        sock.sendall(SENT[flags])


BRIDGE = """
[[bridge]]
name = "backups"
from = "pubsub:syslog/local3/+/backup"
to = "logmq:backups-{name.2}"
"""


def test_logger_reaches_a_subscriber_and_through_a_bridge_a_log(tmp_path: Path) -> None:
    (tmp_path / "brokers.toml").write_text(BRIDGE)
    environ = {"BROKERS_PUBSUB_SYSLOG_PORT": "0"}
    with Server(tmp_path, "--config", str(tmp_path / "brokers.toml"), environ=environ) as server:
        address = server.address("pubsub", "pubsub-syslog")
        assert address == server.address("pubsub", "pubsub-syslog-udp"), "one port number for both"
        pattern = encode_command(Command.SUBSCRIBE, b"syslog/local3/*")
        with subscribed(server.address("pubsub"), b"A", pattern) as sock:
            heard(server.address("pubsub"), sock)
            for flags in SENT:
                say(address, *flags)
                (topic,) = topics_of(sock, 1)
                assert topic.startswith(b"syslog/local3/")
                assert topic.endswith(b"/backup")

        def lines() -> int:
            words = ("logmq", "consume", "backups-local3", "--port", str(server.address("logmq")[1]))
            return run(*words).stdout.count("it is done")

        until(lambda: lines() == len(SENT))
        assert server.stop() == 0
