"""No password, hash or token is in an argument, a log line at any level, a metric, an answer or a backup."""

import contextlib
import json
import re
import socket
from pathlib import Path

from pamqp import commands

from brokers.commands import control
from brokers.commands.cli import root
from dmp.amqp.wire import encode
from dmp.wire import AMQP_HEADER
from dms import wire as dms_wire
from kqmsgq import wire as kqmsgq_wire
from pubsub import wire as pubsub_wire
from shared.access import SALT_BYTES, Rule, Secret, User
from tests.e2e.users import write_users
from tests.support.server import Server, run_here, until

PLANTED = "planted-secret"
SECRET = Secret.make(PLANTED.encode(), bytes(SALT_BYTES))


def _said(protocol: str, user: str, password: str) -> bytes:
    """A login, with garbage behind it."""
    if protocol == "logmq":
        return f"AUTH {user} {password}\n{password}\nAUTH\nAUTH {password}\n".encode()
    if protocol == "dms":
        hello = json.dumps({"user": user, "password": password}).encode()
        return dms_wire.pack(dms_wire.Type.HANDSHAKE, 1, hello) + password.encode() * 9
    if protocol == "pubsub":
        return pubsub_wire.encode_id(b"A") + pubsub_wire.encode_login(user, password) + password.encode() * 9
    if protocol == "kqmsgq":
        return kqmsgq_wire.account(user, password) + password.encode() * 9
    start = commands.Connection.StartOk({}, "PLAIN", f"\0{user}\0{password}", "en_US")
    return AMQP_HEADER + encode(start, 0) + password.encode() * 9


MISTAKEN = {
    # Logins that are none: too early, too long, with an end that is HTTP's.
    "pubsub": (
        pubsub_wire.encode_login("a", PLANTED) + pubsub_wire.encode_id(b"A"),
        pubsub_wire.encode_id(b"A") + bytes([pubsub_wire.Command.LOGIN]) + b"a:" + PLANTED.encode() * 9,
    ),
    "logmq": (f"AUTH a {PLANTED} HTTP/1.1\n".encode(), f"AUTH {PLANTED}\n".encode()),
    "dms": (dms_wire.pack(dms_wire.Type.HANDSHAKE, 1, json.dumps({"user": "a", "pass": PLANTED}).encode()),),
    "kqmsgq": (b"account" + b"\0\0\0\1a" + len(PLANTED).to_bytes(4, "little") + PLANTED.encode(),),
}


def test_no_password_hash_or_token_leaves_the_data_folder(tmp_path: Path) -> None:
    write_users(tmp_path / "data", {"ann": User("ann", (Rule.parse("*:*:*"),), SECRET)})
    arguments = ("--log-level", "debug")
    with Server(tmp_path, *arguments, environ={"BROKERS_ACCESS_REQUIRED": "always"}) as server:
        token = (server.data / "admin.token").read_text().strip()
        number = 0
        for protocol in ("logmq", "dms", "pubsub", "kqmsgq", "dmp"):
            # The right login, a wrong one, and the password where the name belongs.
            for user, password in (("ann", PLANTED), ("ann", PLANTED + "2"), (PLANTED, "x" + PLANTED)):
                number += 1  # an address that fails often has to wait for its answers
                source = (f"127.2.0.{number}", 0)
                _say(server.address(protocol), source, _said(protocol, user, password))
            for said in MISTAKEN.get(protocol, ()):
                _say(server.address(protocol), ("127.3.0.1", 0), said)
        until(lambda: server.said.count(" audit ") >= 9)
        answers = [
            control.request(server.data, "GET", path) for path in ("/metrics", "/status", "/api/v1/logs")
        ]
        for words in (
            ("user", "list", "--json"),
            ("user", "check", "ann", "logmq:read:x"),
            ("config", "show"),
            ("reload",),
            ("status", "--json"),
        ):
            done = (
                run_here(*words, "--data-dir", str(server.data)) if words[0] != "config" else run_here(*words)
            )
            answers.append(done.stdout + done.stderr)
        assert run_here("backup", str(tmp_path / "copy"), "--data-dir", str(server.data)).returncode == 0
        written = server.said + json.dumps(answers, default=str)
    shortened = "a:" + PLANTED[:7]  # as much as an id has room for
    for secret in (PLANTED, shortened, token, SECRET.written(), SECRET.written().rpartition("$")[2]):
        assert secret not in written
    assert not list((tmp_path / "copy").rglob("users.toml")) + list((tmp_path / "copy").rglob("*.token"))


def _say(address: tuple[str, int], source: tuple[str, int], said: bytes) -> None:
    """Say that, and read until the server closes."""
    with socket.create_connection(address, 30, source) as sock:
        sock.sendall(said)
        sock.shutdown(socket.SHUT_WR)
        with contextlib.suppress(ConnectionResetError):
            while sock.recv(1 << 16):
                pass


def test_no_flag_of_any_command_takes_a_password_or_a_token() -> None:
    names = set()

    def walk(app: object) -> None:
        for name in app:  # type: ignore[attr-defined]
            if not name.startswith("-"):
                below = app[name]  # type: ignore[index]
                walk(below)
                if below.default_command is not None:
                    for argument in below.assemble_argument_collection():
                        names.update(argument.names)

    walk(root())
    secret = {name for name in names if re.search("password|token|secret", name)}
    assert "--password-file" in secret
    assert [name for name in secret if not name.endswith(("-file", "-stdin"))] == []
