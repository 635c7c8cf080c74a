"""A served server takes up what changed: limits, patterns, allow lists, log level, certificates."""

import socket
import ssl
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import attrs
import pytest
import trustme

from brokers.commands import control
from brokers.errors import ExitCode, Failure
from dms import wire as dms_wire
from shared.access import SALT_BYTES, Rule, Secret, User
from tests.e2e.users import write_users
from tests.support.server import Server, run_here, speak, until

SETTINGS = """
[serve]
log_level = "error"
[logmq]
topics_max = 1
[dms.queues.'short*']
depth = 1
[dmp]
queues_max = 1
"""
CHANGED = """
[serve]
log_level = "info"
[logmq]
topics_max = 2
[net]
backlog = 9
[dms.queues.'short*']
depth = 2
[pubsub]
allow = ["10.0.0.0/8"]
[dmp]
queues_max = 2
"""


@attrs.frozen
class Reloaded:
    server: Server
    file: Path

    def reload(self, settings: str) -> str:
        self.file.write_text(settings)
        done = run_here("reload", "--data-dir", str(self.server.data))
        assert done.returncode == 0, done.stderr
        return str(done.stdout)

    def metric(self, name: str) -> float:
        text = control.request(self.server.data, "GET", "/metrics")
        (line,) = (line for line in text.splitlines() if line.startswith(name + " "))
        return float(line.rpartition(" ")[2])


@pytest.fixture(scope="module")
def it(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Reloaded]:
    folder = tmp_path_factory.mktemp("reload")
    file = folder / "brokers.toml"
    file.write_text(SETTINGS)
    with Server(folder, "--config", str(file)) as server:
        yield Reloaded(server, file)


def _dms(it: Reloaded, *requests: tuple[dms_wire.Type, bytes]) -> list[int]:
    """The types of the answers."""
    frames = [dms_wire.pack(kind, number, payload) for number, (kind, payload) in enumerate(requests, 1)]
    answers, _ = dms_wire.decode(speak(it.server.address("dms"), b"".join(frames)))
    return [answer[0] for answer in answers]


def test_limits_patterns_allow_lists_and_the_log_level_are_taken_up_and_what_takes_a_restart_is_named(
    it: Reloaded,
) -> None:
    logmq = it.server.address("logmq")
    produce = [(dms_wire.Type.PRODUCE, dms_wire.pack_name("short1") + b"x")] * 2
    hello = (dms_wire.Type.HANDSHAKE, b"")
    assert speak(logmq, b"PRODUCE one x\nPRODUCE two x\n").startswith(b"OK 0\nERR LIMIT")
    made = _dms(it, hello, (dms_wire.Type.CREATE_QUEUE, dms_wire.pack_name("short1")), *produce)
    assert made[-1] != made[-2]  # the second finds no room
    datagrams = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    datagrams.sendto(b"x" * 64, it.server.address("pubsub", "pubsub-udp"))
    filtered = 'brokers_net_datagrams_filtered_total{protocol="pubsub"}'

    said = it.reload(CHANGED).splitlines()
    assert said[0] == "reloaded: 0 users"
    assert set(said[1].removeprefix("changed: ").split(", ")) == {
        "serve.log_level",
        "logmq.topics_max",
        "dms.queues",
        "pubsub.allow",
        "dmp.queues_max",
    }
    assert said[2] == "these take a restart: net.backlog"
    assert speak(logmq, b"PRODUCE two x\nPRODUCE three x\n").startswith(b"OK 0\nERR LIMIT")
    assert _dms(it, hello, produce[0])[-1] == made[-2]
    assert it.metric(filtered) == 0
    datagrams.sendto(b"x" * 64, it.server.address("pubsub", "pubsub-udp"))
    until(lambda: it.metric(filtered) == 1)
    it.server.signal(1)
    until(lambda: "reloaded; to stop the server send SIGTERM" in it.server.said)
    datagrams.close()


def test_what_is_wrong_changes_nothing_and_says_what(it: Reloaded) -> None:
    it.reload("[logmq]\ntopics_max = 9\n")
    it.file.write_text("[logmq]\ntopics_max = 1\n[dms]\nqueues_max = 0\n")
    done = run_here("reload", "--data-dir", str(it.server.data))
    assert done.returncode == ExitCode.CONFIGURATION
    assert "dms.queues_max" in done.stderr
    assert speak(it.server.address("logmq"), b"PRODUCE nine x\n") == b"OK 0\n"
    # Users are taken up all the same: to remove one must not wait for somebody's edit.
    done = run_here("user", "add", "anonymous", "--allow", "logmq:read:*", "--data-dir", str(it.server.data))
    assert "the server knows" in done.stdout
    assert speak(it.server.address("logmq"), b"PRODUCE nine x\n").startswith(b"ERR DENIED")


def test_new_connections_see_a_new_certificate_on_every_port_and_those_that_stand_go_on(
    tmp_path: Path,
) -> None:
    authority = trustme.CA()

    def issue(**more: Any) -> bytes:
        made = authority.issue_cert("127.0.0.1", **more)
        made.private_key_and_cert_chain_pem.write_to_path(str(tmp_path / "server.pem"))
        return ssl.PEM_cert_to_DER_cert(made.cert_chain_pems[0].bytes().decode())

    context = ssl.create_default_context(cadata=authority.cert_pem.bytes().decode())

    def connect(address: tuple[str, int]) -> ssl.SSLSocket:
        plain = socket.create_connection(address, timeout=30)
        return context.wrap_socket(plain, server_hostname="127.0.0.1")

    old = issue(not_after=datetime.now(UTC) + timedelta(days=13.5))
    file = tmp_path / "brokers.toml"
    file.write_text("[tls]\ncertificate = 'server.pem'\n[serve]\nenable = ['logmq', 'kqmsgq']\n")
    with Server(tmp_path, "--config", str(file)) as server:
        until(lambda: "a certificate ends soon" in server.said)
        assert 'days=13.5 of="logmq, kqmsgq, admin"' in server.said
        page = server.ready["page"].removeprefix("https://").rstrip("/").split(":")
        ports = [server.address("logmq"), server.address("kqmsgq"), (page[0], int(page[1]))]
        standing = connect(ports[0])
        assert standing.getpeercert(True) == old
        new = issue()
        assert run_here("reload", "--data-dir", str(server.data)).returncode == 0
        for address in ports:
            with connect(address) as one:
                assert one.getpeercert(True) == new
        standing.sendall(b"PING\n")
        assert standing.recv(100) == b"PONG\n"
        standing.close()
        metrics = control.request(server.data, "GET", "/metrics")
        assert 'brokers_certificate_days{protocol="admin"}' in metrics
        (tmp_path / "server.pem").write_text("torn")
        with pytest.raises(Failure, match=r"tls\.certificate"):
            control.request(server.data, "POST", "/reload", {})
        with connect(ports[0]) as one:
            assert one.getpeercert(True) == new


def test_no_request_is_decided_by_an_old_rule_or_shown_an_old_certificate_once_a_reload_is_answered(
    tmp_path: Path,
) -> None:
    """Under load: three connections ask without a pause while rules and certificates change."""
    authority = trustme.CA()
    context = ssl.create_default_context(cadata=authority.cert_pem.bytes().decode())
    secret = Secret.make(b"right", bytes(SALT_BYTES))

    def change(allowed: bool) -> bytes:
        """Write another certificate, and rules; return the certificate."""
        made = authority.issue_cert("127.0.0.1")
        made.private_key_and_cert_chain_pem.write_to_path(str(tmp_path / "server.pem"))
        rule = Rule.parse("logmq:write:*" if allowed else "logmq:read:*")
        write_users(tmp_path / "data", {"ann": User("ann", (rule,), secret)})
        return ssl.PEM_cert_to_DER_cert(made.cert_chain_pems[0].bytes().decode())

    def connect(address: tuple[str, int]) -> ssl.SSLSocket:
        sock = context.wrap_socket(socket.create_connection(address, timeout=30), server_hostname="127.0.0.1")
        sock.sendall(b"AUTH ann right\n")
        assert sock.recv(100) == b"OK\n"
        return sock

    def ask(sock: ssl.SSLSocket) -> bool:
        sock.sendall(b"PRODUCE topic x\n")
        answer = sock.recv(200)
        assert answer.startswith((b"OK ", b"ERR DENIED")), answer
        return answer.startswith(b"OK ")

    def load(address: tuple[str, int], asked: list[tuple[float, float, bool]]) -> None:
        with connect(address) as sock:
            while not over.is_set():
                began = time.monotonic()
                allowed = ask(sock)
                asked.append((began, time.monotonic(), allowed))

    change(True)
    file = tmp_path / "brokers.toml"
    file.write_text(
        "[tls]\ncertificate = 'server.pem'\n[serve]\nenable = ['logmq']\n[access]\nrequired = 'always'\n"
        "[logmq]\ndurability = 'none'\n"
    )
    over = threading.Event()
    asked: list[list[tuple[float, float, bool]]] = [[] for _ in range(3)]
    answered: list[tuple[float, float, bool]] = [(0.0, 0.0, True)]  # asked for, answered, what holds then
    with Server(tmp_path, "--config", str(file)) as server:
        address = server.address("logmq")
        threads = [threading.Thread(target=load, args=(address, each)) for each in asked]
        for thread in threads:
            thread.start()
        for number in range(4):
            certificate = change(allowed := bool(number % 2))
            began = time.monotonic()
            control.request(server.data, "POST", "/reload", {})
            answered.append((began, time.monotonic(), allowed))
            with connect(address) as sock:
                assert sock.getpeercert(True) == certificate
                assert ask(sock) is allowed
        over.set()
        for thread in threads:
            thread.join()
    # Behind an answer, and before the next change, only what holds then may be heard.
    ends = [began for began, _, _ in answered[1:]] + [float("inf")]
    sure = 0
    for each in asked:
        for began, ended, allowed in each:
            for (_, since, holds), until_ in zip(answered, ends, strict=True):
                if since < began and ended < until_:
                    assert allowed is holds
                    sure += 1
    assert sure > 20
