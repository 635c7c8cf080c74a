"""Whom the look at TCP's own counters finds dead. Times are in seconds, the limit is 15."""

import math
import os
import shutil
import socket
import subprocess
import sys

import attrs
import pytest

from shared.net.liveness import WAITING, is_dead


@attrs.define(eq=False)
class Peer:
    unacked: int | None = 0
    last_ack_ms: int = 0
    probes: int = 0
    stalled_since: float = math.inf

    def tcp_info(self) -> bytes | None:
        return None if self.unacked is None else WAITING.pack(self.probes, self.unacked, self.last_ack_ms)

    def abort(self, reason: str) -> None: ...


def look_every_three_seconds(peer: Peer, until: float, *, acks: bool) -> list[float]:
    """At what times it is found dead."""
    found = []
    for number in range(int(until) // 3 + 1):
        now = 1000.0 + 3 * number
        peer.last_ack_ms = 1 if acks else 3_600_000 + 3000 * number
        if is_dead(peer, now, 15):
            found.append(now - 1000)
    return found


def test_data_in_flight_and_no_acknowledgement_for_the_whole_time_is_dead() -> None:
    assert look_every_three_seconds(Peer(unacked=3), 15, acks=False) == [15]


def test_an_old_acknowledgement_alone_does_not_condemn_who_was_idle() -> None:
    assert look_every_three_seconds(Peer(unacked=3), 12, acks=False) == []


def test_who_acknowledges_lives_however_much_is_in_flight() -> None:
    assert look_every_three_seconds(Peer(unacked=100), 300, acks=True) == []


def test_a_closed_window_with_nothing_in_flight_is_alive() -> None:
    assert look_every_three_seconds(Peer(unacked=0), 300, acks=False) == []


def test_a_probe_that_nobody_answers_condemns_though_nothing_can_be_sent() -> None:
    assert look_every_three_seconds(Peer(probes=1), 15, acks=False) == [15]


def test_who_answers_the_probes_of_a_closed_window_lives() -> None:
    peer = Peer()
    for number in range(100):  # an examination may fall between a probe and its answer
        peer.probes, peer.last_ack_ms = number % 2, 30_000
        assert not is_dead(peer, 1000 + 3 * number, 15)


def test_what_is_in_flight_anew_has_its_own_time() -> None:
    peer = Peer(unacked=3, last_ack_ms=3_600_000)
    assert not is_dead(peer, 1000, 15)
    peer.unacked = 0
    assert not is_dead(peer, 1010, 15)
    assert peer.stalled_since == math.inf
    peer.unacked, peer.last_ack_ms = 1, 3_600_000
    assert [is_dead(peer, now, 15) for now in (1020, 1034, 1035)] == [False, False, True]


def test_what_is_not_tcp_is_never_dead() -> None:
    assert not is_dead(Peer(unacked=None), 1e9, 15)


def test_the_fields_are_where_linux_has_them() -> None:
    """An acknowledgement has just come, and nothing is in flight: 0 segments, some milliseconds."""
    with (
        socket.create_server(("127.0.0.1", 0)) as listening,
        socket.create_connection(listening.getsockname()) as client,
    ):
        server, _ = listening.accept()
        with server:
            for _ in range(3):
                server.send(b"x")
                client.recv(1)
                client.send(b"x")
                server.recv(1)
            info = server.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, WAITING.size)
    probes, unacked, last_ack_ms = WAITING.unpack(info)
    assert probes == 0
    assert unacked <= 1
    assert last_ack_ms < 60_000


NETWORK_WITH_A_PEER_THAT_VANISHES = """
ip link set lo up
ip addr add 10.9.9.1/32 dev lo
ip addr add 10.9.9.2/32 dev lo
ip link add v0 type veth peer name v1
ip link set v0 up
ip link set v1 up
ip route add 10.9.9.0/24 dev v0
ip neigh add 10.9.9.2 lladdr 02:00:00:00:00:99 dev v0
exec "$0" -m tests.shared.net.vanishing
"""


def test_a_peer_that_vanishes_is_found_and_one_that_only_stops_reading_is_kept() -> None:
    """On real TCP, in a network of its own: needs root, and `unshare` and `ip`."""
    if os.geteuid() or not shutil.which("unshare") or not shutil.which("ip"):
        pytest.skip("needs root, unshare and ip")
    command = ["unshare", "-n", "sh", "-e", "-c", NETWORK_WITH_A_PEER_THAT_VANISHES, sys.executable]
    trial = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    if any(words in trial.stderr for words in ("not permitted", "RTNETLINK", "Unknown device")):
        pytest.skip(f"no network of our own here: {trial.stderr.strip()}")
    assert trial.stdout.endswith("as promised\n"), trial.stdout + trial.stderr
