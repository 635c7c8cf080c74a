"""`brokers serve` as an operator has it: ready, asked, stopped, crashed."""

import json
import os
import pty
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import trustme
from prometheus_client.parser import text_string_to_metric_families

from brokers.commands import control
from brokers.errors import ExitCode
from shared.net.tls import client_context
from tests.brokers.asking import Api
from tests.brokers.conftest import Run
from tests.support.echo import install_echo
from tests.support.server import SHORT_LINGER, SMALL_JOURNAL, NotReadyError, Server, speak, until

NewServer = Callable[..., Server]


def test_it_serves_on_ports_of_the_systems_choice_and_tells_them(shared_server: Server) -> None:
    host, port = shared_server.address("logmq")
    assert port != 0
    assert f"listening  protocol=logmq address={host}:{port}" in shared_server.said
    assert shared_server.ready["pid"] == shared_server.pid
    assert shared_server.ready["data_dir"] == str(shared_server.data)
    said = speak((host, port), b"PRODUCE serve hello\nCONSUME serve 0\n")
    assert said == b"OK 0\nMESSAGE 0 5 hello\n"


def test_status_tells_what_runs_and_its_exit_code_that_it_is_well(
    shared_server: Server, command: Run
) -> None:
    folder = ("--data-dir", str(shared_server.data))
    code, out, _ = command("status", "--ready", "--json", *folder)
    assert code == 0
    status = json.loads(out)
    assert (status["state"], status["pid"]) == ("ready", shared_server.pid)
    (logmq,) = (each for each in status["protocols"] if each["protocol"] == "logmq")
    assert logmq["addresses"] == ["{}:{}".format(*shared_server.address("logmq"))]
    assert "logmq" in command("status", *folder)[1]


def test_metrics_are_text_that_prometheus_reads(shared_server: Server, command: Run) -> None:
    with socket.create_connection(shared_server.address("logmq")) as connection:
        connection.sendall(b"PING\n")
        assert connection.recv(5) == b"PONG\n"
        text = command("metrics", "--data-dir", str(shared_server.data))[1]
    families = {family.name: family for family in text_string_to_metric_families(text)}
    value = {
        (sample.name, sample.labels.get("protocol")): sample.value
        for family in families.values()
        for sample in family.samples
    }
    assert value["brokers_connections", "logmq"] == 1
    assert value["brokers_protocol_up", "logmq"] == 1
    assert value["brokers_protocol_restarts_total", "logmq"] == 0
    assert value["brokers_ready", None] == 1
    assert value["brokers_uptime_seconds", None] > 0
    assert value["brokers_store_logs", None] > 0
    assert families["brokers_build_info"].samples[0].labels["version"]
    assert all(family.documentation for family in families.values())


def test_a_folder_in_use_can_be_looked_into_but_not_checked(shared_server: Server, command: Run) -> None:
    folder = ("--data-dir", str(shared_server.data))
    assert command("log", "ls", "--json", *folder)[0] == 0
    code, _, said = command("fsck", *folder)
    assert code == ExitCode.DATA_FOLDER
    assert str(shared_server.pid) in said


def test_a_live_folder_can_be_backed_up_and_restored(
    shared_server: Server, command: Run, tmp_path: Path
) -> None:
    speak(shared_server.address("logmq"), b"PRODUCE saved one\nPRODUCE saved two\n")
    folder = ("--data-dir", str(shared_server.data))
    code, out, said = command("backup", str(tmp_path / "backup"), "--json", *folder)
    assert (code, said) == (0, "")
    assert not json.loads(out)["damaged"]
    speak(shared_server.address("logmq"), b"PRODUCE saved three\n")

    again = command("backup", str(tmp_path / "backup"), *folder)
    assert again[0] == ExitCode.DATA_FOLDER
    assert "not empty" in again[2]

    assert command("restore", str(tmp_path / "backup"), "--data-dir", str(tmp_path / "new"))[0] == 0
    new = ("--data-dir", str(tmp_path / "new"))
    rows = command("log", "dump", "logmq", "saved", "--json", *new)[1].splitlines()
    assert [json.loads(row)["payload"] for row in rows] == ["one", "two"]
    # A folder that nobody serves is copied too.
    assert command("backup", str(tmp_path / "cold"), *new)[0] == 0
    assert command("fsck", "--repair", *new)[0] == 0


def test_addresses_are_told_at_any_log_level_and_as_json(new_server: NewServer) -> None:
    server = new_server(
        *("--log-level", "error", "--log-format", "json", "--host", "0.0.0.0", "--insecure"),
        environ={"BROKERS_PUBSUB_ALLOW": "127.0.0.0/8"},  # datagrams have no TLS to tell who may send
    ).start()
    events = [json.loads(line) for line in server.said.splitlines()]
    assert {"listening", "ready"} <= {event["event"] for event in events}
    host, port = server.address("logmq")
    assert host == "0.0.0.0"
    assert speak(("127.0.0.1", port), b"PING\n") == b"PONG\n"


def test_sighup_takes_up_the_users_file_and_stops_nothing(new_server: NewServer) -> None:
    server = new_server("--log-level", "error").start()
    users = server.data / "users.toml"
    users.touch(0o600)
    users.write_text('[users.ann]\npassword = "hunter2"\n')
    server.signal(signal.SIGHUP)
    until(lambda: "reload refused" in server.said)
    users.write_text("[users.anonymous]\n")
    server.signal(signal.SIGHUP)
    until(lambda: "audit" in server.said)
    assert "hunter2" not in server.said
    assert speak(server.address("logmq"), b"PING\n") == b"PONG\n"
    server.signal(signal.SIGTERM)
    assert server.wait() == 0


def test_sigterm_drains_and_ends_with_0_and_a_folder_in_order(new_server: NewServer, command: Run) -> None:
    server = new_server(environ=SHORT_LINGER).start()
    assert speak(server.address("logmq"), b"PRODUCE orders one\nPRODUCE orders two\n") == b"OK 0\nOK 7\n"
    with socket.create_connection(server.address("logmq")) as idle:
        server.signal(signal.SIGTERM)
        assert idle.recv(1) == b""  # nothing is owed to it
        assert server.wait() == 0
    assert "stopping  signal=SIGTERM" in server.said
    assert not (server.data / "control.sock").exists()
    assert not server.ready_file.exists()

    folder = ("--data-dir", str(server.data))
    assert command("fsck", *folder)[0] == 0
    listed = [json.loads(line) for line in command("log", "ls", "--json", *folder)[1].splitlines()]
    assert {row["name"]: row["end"] for row in listed if row["namespace"] == "logmq"} == {"orders": 14}
    rows = command("log", "dump", "logmq", "orders", "--json", *folder)[1].splitlines()
    assert [json.loads(row)["payload"] for row in rows] == ["one", "two"]
    assert command("log", "dump", "dms", "none", *folder) == (
        66,
        "",
        "brokers: no log none in namespace dms\n",
    )


def test_a_data_folder_that_is_removed_is_noticed_and_its_end_says_what_is_lost(
    new_server: NewServer, command: Run
) -> None:
    server = new_server().start()
    speak(server.address("logmq"), b"PRODUCE orders one\n")
    shutil.rmtree(server.data)
    until(lambda: "save what is still served" in server.said)
    refused = speak(server.address("logmq"), b"PRODUCE orders two\nPRODUCE new three\n")
    assert [line[:32] for line in refused.splitlines()] == [b"ERR STORAGE read-only until a re"] * 2
    assert speak(server.address("logmq"), b"PING\n") == b"PONG\n", "the others are served on"
    other = new_server(data=server.data).start()  # as somebody in a hurry does
    assert server.stop() == 1
    assert command("status", "--data-dir", str(other.data))[0] == 0, "its control socket is there"
    assert other.stop() == 0
    assert server.said.splitlines()[-1].startswith("brokers: read-only until a restart: files of the data")
    assert "what was written since then is in no file" in server.said.splitlines()[-1]


def test_the_line_exit_drains_and_ends_with_0_and_systemd_is_told(
    new_server: NewServer, near_path: Path
) -> None:
    # That the end of the input does not is shown by every other server here: theirs is /dev/null.
    told = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    told.bind(str(near_path / "notify"))
    server = new_server(stdin=subprocess.PIPE, environ={"NOTIFY_SOCKET": str(near_path / "notify")}).start()
    said = iter(lambda: told.recv(100), b"READY=1")
    assert all(each.startswith(b"EXTEND_TIMEOUT_USEC=") for each in said)  # where the machine is slow
    assert server.process is not None
    assert server.process.stdin is not None
    server.process.stdin.write(b"status\nexit\n")
    server.process.stdin.flush()
    assert server.wait() == 0
    assert "stopping  input=exit" in server.said
    assert told.recv(100) == b"STOPPING=1"
    told.close()


def test_it_needs_no_terminal_and_not_even_standard_descriptors(tmp_path: Path) -> None:
    ready = tmp_path / "ready.json"
    command = [sys.executable, "-m", "brokers", "serve", "--data-dir", str(tmp_path / "data")]
    command += ["--enable", "logmq", "--port", "logmq=0", "--ready-file", str(ready)]
    shell = ["/bin/sh", "-c", 'exec "$0" "$@" <&- >&- 2>&-']
    process = subprocess.Popen([*shell, *command], env=os.environ | SMALL_JOURNAL)
    try:
        until(lambda: ready.exists() or process.poll() is not None)
        bound = json.loads(ready.read_text())["addresses"][0]
        assert speak((bound["host"], bound["port"]), b"PRODUCE a b\n") == b"OK 0\n"
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
    finally:
        process.kill()
        process.wait()


def test_it_can_be_stopped_whatever_its_caller_ignores(new_server: NewServer) -> None:
    # A shell lets what a script starts in the background ignore SIGINT.
    ignoring = (
        "import os, signal, sys\n"
        "for number in (signal.SIGINT, signal.SIGTERM): signal.signal(number, signal.SIG_IGN)\n"
        "os.execv(sys.argv[1], sys.argv[1:])"
    )
    prefix = [sys.executable, "-c", ignoring]
    for number in (signal.SIGINT, signal.SIGTERM):
        server = new_server("--enable", "logmq", prefix=prefix).start()
        server.signal(number)
        assert server.wait() == 0


@pytest.fixture
def terminal() -> Iterator[int]:
    """The side of a terminal that a program reads."""
    typing, reading = pty.openpty()
    yield reading
    os.close(typing)
    os.close(reading)


def test_it_serves_in_the_background_of_a_terminal(terminal: int, new_server: NewServer) -> None:
    # As `brokers serve &` in a shell: the terminal is ours, but we are not in its foreground, and the system
    # stops who reads from it then.
    shell = (
        "import fcntl, os, sys, termios\n"
        "os.setsid(); fcntl.ioctl(0, termios.TIOCSCTTY, 0)\n"
        "child = os.fork()\n"
        "if child == 0: os.setpgid(0, 0); os.execv(sys.argv[1], sys.argv[1:])\n"
        "sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))"
    )
    server = new_server("--enable", "logmq", stdin=terminal, prefix=[sys.executable, "-c", shell]).start()
    assert speak(server.address("logmq"), b"PING\n") == b"PONG\n"
    os.kill(server.ready["pid"], signal.SIGTERM)
    assert server.wait() == 0


def test_a_drain_takes_no_longer_than_it_may(new_server: NewServer) -> None:
    server = new_server(environ={"BROKERS_SERVE_DRAIN_SECONDS": "200ms"}).start()
    with _one_who_reads_nothing(server):
        assert server.stop() == 0
    assert "drain took too long" in server.said


def test_a_second_sigint_ends_it_at_once(new_server: NewServer) -> None:
    server = new_server(environ={"BROKERS_SERVE_DRAIN_SECONDS": "60"}).start()
    with _one_who_reads_nothing(server):
        server.signal(signal.SIGINT)
        until(lambda: "stopping" in server.said)
        server.signal(signal.SIGINT)
        assert server.wait() == ExitCode.INTERRUPTED
    assert not server.ready_file.exists()


def _one_who_reads_nothing(server: Server) -> socket.socket:
    """A peer that is owed more than the buffers between us hold."""
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    connection.connect(server.address("logmq"))
    connection.sendall(b"PRODUCE big " + b"x" * 1_000_000 + b"\n")
    assert connection.recv(3) == b"OK "
    connection.setblocking(False)
    try:
        while True:
            connection.send(b"CONSUME big 0\n" * 200)
    except BlockingIOError:
        connection.setblocking(True)
    assert connection.recv(1)  # so it has begun: what it has not read when it stops, it does not owe
    return connection


def test_a_certificate_in_the_settings_makes_every_listener_speak_tls_and_every_command(
    new_server: NewServer, tmp_path: Path, command: Run
) -> None:
    environ = install_echo(tmp_path / "site-packages")
    authority, of_echo = trustme.CA(), trustme.CA()
    authority.issue_cert("127.0.0.1").private_key_and_cert_chain_pem.write_to_path(tmp_path / "server.pem")
    of_echo.issue_cert("127.0.0.1").private_key_and_cert_chain_pem.write_to_path(tmp_path / "echo.pem")
    file = tmp_path / "b.toml"
    file.write_text(
        f"tls.certificate = '{tmp_path}/server.pem'\necho.tls.certificate = '{tmp_path}/echo.pem'\n"
    )
    server = new_server("--config", str(file), environ=environ).start()
    assert all(bound["tls"] for bound in server.ready["addresses"] if bound["transport"] == "tcp")
    assert _over_tls(server.address("logmq")[1], authority, b"PING\n") == b"PONG\n"
    # A protocol's own certificate stands instead of the common one.
    assert _over_tls(server.address("echo")[1], of_echo, b"hello") == b"hello"
    # Where the same file says what the server shows, a command needs no word about TLS.
    at = ("--config", str(file), "--port", str(server.address("dms")[1]))
    assert command("dms", "create", "jobs", *at)[0] == 0
    assert server.stop() == 0


def _over_tls(port: int, authority: trustme.CA, data: bytes) -> bytes:
    context = client_context()
    authority.configure_trust(context)
    with (
        socket.create_connection(("127.0.0.1", port)) as plain,
        context.wrap_socket(plain, server_hostname="127.0.0.1") as connection,
    ):
        connection.sendall(data)
        return connection.recv(100)


def test_one_protocols_crash_is_told_counted_and_mended_while_the_others_serve(
    new_server: NewServer, tmp_path: Path, command: Run
) -> None:
    server = new_server(environ=install_echo(tmp_path / "site-packages")).start()
    folder = ("--data-dir", str(server.data))
    address = server.address("echo")
    with socket.create_connection(server.address("logmq")) as other:
        with socket.create_connection(address) as connected:
            control.request(server.data, "POST", "/api/v1/topics/echo/crash")
            assert connected.recv(1) == b""
        other.sendall(b"PING\n")
        assert other.recv(5) == b"PONG\n"
        # It is back on the port that its clients know; until then connections are refused.
        until(lambda: _echoes(address))
        other.sendall(b"PING\n")
        assert other.recv(5) == b"PONG\n"
    assert "protocol crashed" in server.said
    assert "ZeroDivisionError" in server.said
    assert 'brokers_protocol_restarts_total{protocol="echo"} 1.0' in command("metrics", *folder)[1]
    assert server.stop() == 0


def _echoes(address: tuple[str, int]) -> bool:
    try:
        return speak(address, b"hello") == b"hello"
    except ConnectionRefusedError:
        return False


def test_a_broken_protocol_is_one_line_and_the_others_serve(new_server: NewServer, tmp_path: Path) -> None:
    environ = install_echo(tmp_path / "site-packages")
    (tmp_path / "site-packages" / "echo_protocol" / "session.py").write_text("import nowhere\n")
    server = new_server(environ=environ).start()
    assert speak(server.address("logmq"), b"PING\n") == b"PONG\n"
    assert [line for line in server.said.splitlines() if "echo" in line] == [
        "brokers: protocol 'echo' of echo-protocol 1.0 cannot be used: "
        "ModuleNotFoundError: No module named 'nowhere'"
    ]


def test_a_server_says_where_its_page_is_and_its_token_opens_it(server: Server) -> None:
    page = server.ready["page"]
    assert f" page={page}" in server.said
    assert (server.data / "admin.token").read_text().strip() not in server.said
    assert Api(server).ask("/status")[1]["state"] == "ready"
    assert server.stop() == 0


def test_a_protocols_own_server_has_an_admin_port_only_where_it_is_asked_for(
    new_server: NewServer,
) -> None:
    assert "page" not in new_server(command=("logmq", "serve")).start().ready
    assert "page" in new_server("--admin-port", "0", command=("logmq", "serve")).start().ready
    assert "page" not in new_server(environ={"BROKERS_ADMIN_ENABLED": "false"}).start().ready


def test_an_admin_port_that_was_asked_for_and_is_taken_refuses_the_start(
    new_server: NewServer,
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        with pytest.raises(NotReadyError, match=f"cannot listen on 127.0.0.1:{port}") as refused:
            new_server("--admin-port", port, "--enable", "logmq").start()
        assert refused.value.code == ExitCode.CONFIGURATION
