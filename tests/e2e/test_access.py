"""Protocol x request x who asks, over sockets, against a server that knows only its users file."""

import contextlib
import itertools
import json
import os
import pwd
import re
import socket
import ssl
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import attrs
import pika
import pytest
import trustme
from pamqp import base, commands
from prometheus_client.parser import text_string_to_metric_families

from brokers.commands import control
from brokers.errors import ExitCode, Failure
from dmp.amqp.wire import Direct, decode_untrusted, encode
from dmp.wire import AMQP_HEADER
from dms import wire as dms_wire
from dms.wire import Status as DmsStatus
from dms.wire import Type as DmsType
from kqmsgq import wire as kqmsgq_wire
from pubsub import wire as pubsub_wire
from pubsub.wire import Command
from shared.access import Rule, Secret, User, written_users
from tests.e2e.users import server_of
from tests.support.forked import quick_passwords
from tests.support.server import NotReadyError, Server, run, until

C = commands
PASSWORD = "right pass:word"
"""Spaces and colons are in it, for it is the rest of a line, and what is behind the first colon."""

_ADDRESSES = itertools.count(1)
DONE, DENIED, REFUSED = "done", "denied", "login refused"


def rules(*names: str) -> tuple[Rule, ...]:
    return tuple(Rule.parse(f"*:*:{name}") for name in names)


with quick_passwords():
    SECRET = Secret.make(PASSWORD.encode(), bytes(16))
USERS = {
    "ann": User("ann", rules("mine*", "group/mine"), SECRET),
    "root": User("root", (Rule.parse("*:*:*"),), SECRET),
    "sensor": User("sensor", rules("mine*", "group/mine"), certificate=True),
}
ANONYMOUS = {"anonymous": User("anonymous", rules("public*", "group/public"))}


@attrs.frozen
class Way:
    """How a server is set, and where it is."""

    server: Server
    authority: trustme.CA | None
    contexts: dict[str | None, ssl.SSLContext] = attrs.field(factory=dict)  # by the certificate that is shown
    kept: list[socket.socket] = attrs.field(factory=list)
    """The connection of an administrator by AMQP, once there is one."""

    def connect(self, protocol: str, certificate: str | None = None) -> socket.socket:
        # Each from an address of its own: after some failures an address has to wait for each answer.
        number = next(_ADDRESSES)
        source = (f"127.1.{number >> 8}.{number & 255}", 0)
        plain = socket.create_connection(self.server.address(protocol), timeout=30, source_address=source)
        if self.authority is None:
            return plain
        if certificate not in self.contexts:
            context = self.contexts[certificate] = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            self.authority.configure_trust(context)
            if certificate is not None:
                self.authority.issue_cert(common_name=certificate).configure_cert(context)
        return self.contexts[certificate].wrap_socket(plain, server_hostname="localhost")

    def amqp_root(self) -> socket.socket:
        if not self.kept:
            self.kept.append(self.connect("dmp", "root" if self.authority else None))
            assert _amqp_login(self.kept[0], ("root", PASSWORD))
        return self.kept[0]

    def sessions(self, protocol: str) -> list[Mapping[str, Any]]:
        client = control.socket_client(self.server.data)
        return list(client.rows("sessions", protocol=protocol))


@contextlib.contextmanager
def served(folder: Path, users: Mapping[str, User], *, tls: bool = False, **environ: str) -> Iterator[Way]:
    authority = trustme.CA() if tls else None
    enable = ",".join(PROTOCOLS)
    with server_of(folder, users, enable=enable, authority=authority, **environ) as server:
        way = Way(server, authority)
        yield way
        for connection in way.kept:
            connection.close()


@pytest.fixture(scope="module")
def ways(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Way]]:
    """By name: where a login is asked for; where none is; with rules for who has none; certificates."""
    with contextlib.ExitStack() as stack:
        running: dict[str, Way] = {}

        def way(name: str) -> Way:
            if name not in running:
                folder = tmp_path_factory.mktemp(name)
                users = {**USERS, **(ANONYMOUS if name == "anonymous" else {})}
                required = {"BROKERS_ACCESS_REQUIRED": "always"} if name in ASKED else {}
                running[name] = stack.enter_context(
                    served(folder, users, tls=name == "certificates", **required)
                )
            return running[name]

        yield way


ASKED = ("required", "certificates")

# Protocols. An `Ask` says what became of one request.

Login = tuple[str, str] | None
Ask = Callable[[Way, Login, str | None, str, str], str]


def _all(connection: socket.socket) -> bytes:
    """What comes until the server closes."""
    try:
        return b"".join(iter(lambda: connection.recv(1 << 16), b""))
    except ConnectionResetError:
        return b""


def logmq(way: Way, login: Login, certificate: str | None, request: str, name: str) -> str:
    lines = {
        "CONSUME": f"CONSUME {name} 0",
        "FETCH": f"FETCH {name} 0 100",
        "TAIL": f"TAIL {name} 0\nenough",
        "MARKS": f"MARKS {name} 0 100",
        "OFFSETS": f"OFFSETS {name}",
        "SEEK": f"SEEK {name} 0",
        "COMMIT": f"COMMIT {name} {name} 0",
        "COMMITTED": f"COMMITTED {name} {name}",
        "PRODUCE": f"PRODUCE {name} hello",
        "APPEND": f"APPEND {name} 5\nhello",
        "BATCH": f"BATCH {name} me 1 9\n\0\0\0\5hello",
        "DELETE": f"DELETE {name}",
    }
    with way.connect("logmq", certificate) as connection:
        if login is not None:
            connection.sendall(f"AUTH {login[0]} {login[1]}\n".encode())
            if not _line(connection).startswith(b"OK"):
                connection.sendall(b"PING\n")
                assert _line(connection) in (b"PONG\n", b"ERR DENIED log in first: AUTH <user> <password>\n")
                return REFUSED
        connection.sendall(lines[request].encode() + b"\n")
        said = _line(connection)
        if said.startswith(b"ERR DENIED log in first"):
            return REFUSED
        return DENIED if said.startswith(b"ERR DENIED") else DONE


def _line(connection: socket.socket) -> bytes:
    line = b""
    while not line.endswith(b"\n"):
        data = connection.recv(1)
        assert data, line
        line += data
    return line


def kqmsgq(way: Way, login: Login, certificate: str | None, request: str, name: str) -> str:
    account = b"" if login is None else kqmsgq_wire.account(*login)
    if request == "*":
        with contextlib.ExitStack() as stack:
            root = _kqmsgq_root(way, stack, kqmsgq_wire.CONSUME + kqmsgq_wire.subscribe())
            until(lambda: len(_subscribed(way, root)) == 1)
            refused = _refused_logins(way)
            with way.connect("kqmsgq", certificate) as producer:
                messages = kqmsgq_wire.message(name.encode(), b"asked") * 3
                producer.sendall(account + kqmsgq_wire.PRODUCE + messages)
                with contextlib.suppress(OSError):
                    if isinstance(producer, ssl.SSLSocket):
                        producer.unwrap()  # under TLS, to end without a word is to be cut off
                    else:
                        producer.shutdown(socket.SHUT_WR)
                _all(producer)
            if _refused_logins(way) > refused:
                return REFUSED
            last = kqmsgq_wire.message(b"last", b"")
            _kqmsgq_root(way, stack, kqmsgq_wire.PRODUCE + last)
            said = b""
            while not said.endswith(last):
                said += root.recv(1 << 16)
            return {messages: DONE, b"": DENIED}[said.removesuffix(last)]
    with way.connect("kqmsgq", certificate) as consumer:
        asked = b"" if request == ">0" else name.encode()
        consumer.sendall(account + kqmsgq_wire.CONSUME + kqmsgq_wire.subscribe(asked))
        closed = threading.Event()
        reader = threading.Thread(target=lambda: (_all(consumer), closed.set()), daemon=True)
        reader.start()
        until(lambda: closed.is_set() or bool(_subscribed(way, consumer)))
        if closed.is_set():
            return REFUSED
        (row,) = _subscribed(way, consumer)
        consumer.shutdown(socket.SHUT_RDWR)
        reader.join()
        return DONE if row["subscriptions"] else DENIED


def _kqmsgq_root(way: Way, stack: contextlib.ExitStack, first: bytes) -> socket.socket:
    connection = stack.enter_context(way.connect("kqmsgq", "root"))
    account = kqmsgq_wire.account("root", PASSWORD)
    connection.sendall(account + first)
    return connection


def _subscribed(way: Way, connection: socket.socket) -> list[Mapping[str, object]]:
    try:
        host, port = connection.getsockname()
    except OSError:
        return []
    return [row for row in way.sessions("kqmsgq") if row["peer"] == f"{host}:{port}"]


def _refused_logins(way: Way) -> str:
    text: str = control.request(way.server.data, "GET", "/metrics")
    return next((line for line in text.splitlines() if 'kqmsgq_faults_total{fault="login"}' in line), "")


def dms(way: Way, login: Login, certificate: str | None, request: str, name: str) -> str:
    hello = b"a client" if login is None else json.dumps({"user": login[0], "password": login[1]}).encode()
    queue = len(name).to_bytes(2) + name.encode()
    own = b"public" if login is certificate is None else b"mine"
    aimed = json.dumps({"dead_letter": name}).encode()
    payloads = {
        "CREATE_QUEUE": (DmsType.CREATE_QUEUE, queue),
        "dead_letter": (DmsType.CREATE_QUEUE, len(own).to_bytes(2) + own + aimed),
        "PRODUCE": (DmsType.PRODUCE, queue + b"hello"),
        "CONSUME": (DmsType.CONSUME, queue),
        "DELETE_QUEUE": (DmsType.DELETE_QUEUE, queue),
    }
    with way.connect("dms", certificate) as connection:
        connection.sendall(dms_wire.pack(DmsType.HANDSHAKE, 1, hello))
        kind, _, status, _, _ = _frame(connection)
        if kind == DmsType.HANDSHAKE_NACK:
            assert status == DmsStatus.DENIED
            assert _all(connection) == b""
            return REFUSED
        kind, payload = payloads[request]
        connection.sendall(dms_wire.pack(kind, 2, payload) * 3)
        said = {_frame(connection)[2] == DmsStatus.DENIED for _ in range(3)}
        assert len(said) == 1, "neighbours are treated alike"
        return DENIED if said.pop() else DONE


def _frame(connection: socket.socket) -> dms_wire.Frame:
    data = b""
    while not (frames := dms_wire.decode(data)[0]):
        more = connection.recv(1)
        assert more, data
        data += more
    return frames[0]


_IDS = itertools.count(1)


def pubsub(way: Way, login: Login, certificate: str | None, request: str, name: str) -> str:
    client = f"C{next(_IDS)}"
    first = pubsub_wire.encode_id(client.encode())
    if login is not None:
        first += pubsub_wire.encode_command(Command.LOGIN, ":".join(login).encode())
    asked = {
        "0": pubsub_wire.encode_command(Command.SUBSCRIBE, name.encode()),
        "3": pubsub_wire.encode_command(Command.KEEP, name.encode()),
        "4": pubsub_wire.encode_since(5, name.encode()),
    }[request]
    with way.connect("pubsub", certificate) as connection:
        try:
            connection.sendall(first + asked)
            connection.settimeout(0.01)
            while True:
                with contextlib.suppress(TimeoutError):
                    assert connection.recv(1) == b""
                    return REFUSED
                rows = [row for row in way.sessions("pubsub") if row["name"] == client]
                if rows and (login is None or rows[0]["user"] == login[0]):
                    return DONE if rows[0]["subscriptions"] else DENIED
        except ConnectionResetError:
            return REFUSED


_NUMBERS = itertools.count(1)


def dmp(way: Way, login: Login, certificate: str | None, request: str, name: str) -> str:
    own = f"{'public' if login is certificate is None else 'mine'}-{next(_NUMBERS)}"
    arguments = {"x-dead-letter-exchange": name}
    methods = {
        "queue.declare": C.Queue.Declare(queue=name),
        "passive": C.Queue.Declare(queue=name, passive=True),
        "dead letters": C.Queue.Declare(queue=own, arguments=arguments),
        "queue.bind": C.Queue.Bind(queue=name, exchange=name),
        "queue.unbind": C.Queue.Unbind(queue=name, exchange=name),
        "queue.purge": C.Queue.Purge(queue=name),
        "queue.delete": C.Queue.Delete(queue=name),
        "exchange.declare": C.Exchange.Declare(exchange=name),
        "alternate": C.Exchange.Declare(exchange=own, arguments={"alternate-exchange": name}),
        "exchange.bind": C.Exchange.Bind(destination=name, source=name),
        "exchange.unbind": C.Exchange.Unbind(destination=name, source=name),
        "exchange.delete": C.Exchange.Delete(exchange=name),
        "basic.get": C.Basic.Get(queue=name),
        "basic.consume": C.Basic.Consume(queue=name),
        "basic.publish": C.Basic.Publish(exchange=name),
        "Direct.Put": Direct.Put(name),
        "Direct.Get": Direct.Get(name),
    }
    for made in (methods["queue.declare"], methods["exchange.declare"]):
        assert not isinstance(_amqp_ask(way.amqp_root(), made), C.Channel.Close)
    with way.connect("dmp", certificate) as connection:
        if not _amqp_login(connection, login, certificate):
            return REFUSED
        said = _amqp_ask(connection, methods[request])
        if isinstance(said, C.Channel.Close) and "is not allowed" in said.reply_text:
            assert said.reply_code == 403
            return DENIED
        assert not isinstance(said, C.Channel.Close) or request == "Direct.Get", said.reply_text
        return DONE


def _amqp_login(connection: socket.socket, login: Login, certificate: str | None = None) -> bool:
    """As far as an open channel. Whose login is refused is told so, and closed."""
    connection.sendall(AMQP_HEADER)
    start = _amqp_frame(connection)
    assert ("EXTERNAL" in start.mechanisms) == isinstance(connection, ssl.SSLSocket)
    by_certificate = login is None and certificate is not None
    user, password = login or ("guest", "guest")
    capable = {"capabilities": {"authentication_failure_close": True}}
    mechanism, response = ("EXTERNAL", "") if by_certificate else ("PLAIN", f"\0{user}\0{password}")
    connection.sendall(encode(C.Connection.StartOk(capable, mechanism, response, "en_US"), 0))
    said = _amqp_frame(connection)
    if isinstance(said, C.Connection.Close):
        assert said.reply_code == 403
        connection.sendall(encode(C.Connection.CloseOk(), 0))
        assert _all(connection) == b""
        return False
    connection.sendall(encode(C.Connection.TuneOk(0, 0, 0), 0) + encode(C.Connection.Open("/"), 0))
    assert isinstance(_amqp_frame(connection), C.Connection.OpenOk)
    connection.sendall(encode(C.Channel.Open(), 1))
    assert isinstance(_amqp_frame(connection), C.Channel.OpenOk)
    return True


def _amqp_ask(connection: socket.socket, method: base.Frame) -> Any:
    """The answer; a publish is followed by something that has one."""
    data = encode(method, 1)
    if isinstance(method, C.Basic.Publish):
        content = b"\0\x3c" + bytes(12)
        data += b"\2\0\1" + len(content).to_bytes(4) + content + b"\xce" + encode(C.Basic.Qos(), 1)
    connection.sendall(data)
    return _amqp_frame(connection)


def _amqp_frame(connection: socket.socket) -> Any:
    data = _exactly(connection, 7)
    data += _exactly(connection, int.from_bytes(data[3:]) + 1)
    return decode_untrusted(data[7:-1])


def _exactly(connection: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        more = connection.recv(size - len(data))
        assert more, data
        data += more
    return data


PROTOCOLS: Mapping[str, tuple[Ask, tuple[str, ...]]] = {
    "logmq": (
        logmq,
        (
            "CONSUME",
            "FETCH",
            "TAIL",
            "MARKS",
            "OFFSETS",
            "SEEK",
            "COMMIT",
            "COMMITTED",
            "PRODUCE",
            "APPEND",
            "BATCH",
            "DELETE",
        ),
    ),
    "dms": (dms, ("CREATE_QUEUE", "dead_letter", "PRODUCE", "CONSUME", "DELETE_QUEUE")),
    "pubsub": (pubsub, ("0", "3", "4")),
    "kqmsgq": (kqmsgq, (">", "*")),
    "dmp": (
        dmp,
        (
            "queue.declare",
            "passive",
            "dead letters",
            "queue.bind",
            "queue.unbind",
            "queue.purge",
            "queue.delete",
            "exchange.declare",
            "alternate",
            "exchange.bind",
            "exchange.unbind",
            "exchange.delete",
            "basic.get",
            "basic.consume",
            "basic.publish",
            "Direct.Put",
            "Direct.Get",
        ),
    ),
}

WAYS = {
    # The way, the login, the name -> what becomes of the request.
    ("required", "none", "mine"): REFUSED,
    ("required", "wrong", "mine"): REFUSED,
    ("required", "unknown", "mine"): REFUSED,
    ("required", "right", "other"): DENIED,
    ("required", "right", "mine"): DONE,
    ("open", "none", "other"): DONE,
    ("open", "wrong", "mine"): REFUSED,
    ("open", "right", "other"): DENIED,
    ("open", "right", "mine"): DONE,
    ("anonymous", "none", "public"): DONE,
    ("anonymous", "none", "mine"): DENIED,
    ("anonymous", "right", "mine"): DONE,
    ("anonymous", "right", "public"): DENIED,
    ("certificates", "certificate", "mine"): DONE,
    ("certificates", "certificate", "other"): DENIED,
    ("certificates", "stranger", "mine"): REFUSED,
    ("certificates", "stranger and right", "mine"): DONE,
}
LOGINS: Mapping[str, tuple[Login, str | None]] = {
    "none": (None, None),
    "wrong": (("ann", "wrong"), None),
    "unknown": (("nobody", PASSWORD), None),
    "right": (("ann", PASSWORD), None),
    "certificate": (None, "sensor"),
    "stranger": (None, "stranger"),
    "stranger and right": (("ann", PASSWORD), "stranger"),
}


WITH_EACH_REQUEST = (
    ("required", "none", "mine"),
    ("required", "right", "other"),
    ("open", "right", "mine"),
    ("anonymous", "none", "mine"),
)


def cells() -> Iterator[tuple[str, str, str, str, str]]:
    """Each request in four ways, and each way with some requests: what a login gives is the same for all."""
    for (protocol, (_, requests)), (number, cell) in itertools.product(PROTOCOLS.items(), enumerate(WAYS)):
        for request in requests if cell in WITH_EACH_REQUEST else requests[number % 4 :: 4] or requests[:1]:
            yield protocol, request, *cell


@pytest.mark.parametrize(("protocol", "request_", "way", "login", "name"), list(cells()))
def test_each_request_is_done_for_whom_the_rules_allow_it_and_for_nobody_else(
    ways: Callable[[str], Way], protocol: str, request_: str, way: str, login: str, name: str
) -> None:
    ask, _ = PROTOCOLS[protocol]
    assert ask(ways(way), *LOGINS[login], request_, name) == WAYS[way, login, name]


def test_changed_rules_hold_for_connections_that_stand_and_who_is_gone_is_closed(tmp_path: Path) -> None:
    with served(tmp_path, USERS) as way, way.connect("logmq") as ann, way.connect("logmq") as root:
        for connection, name in ((ann, "ann"), (root, "root")):
            connection.sendall(f"AUTH {name} {PASSWORD}\n".encode())
            assert _line(connection) == b"OK\n"
        root.sendall(b"PRODUCE mine hello\n")
        assert _line(root) == b"OK 0\n"
        ann.sendall(b"PRODUCE mine more\nTAIL mine 0\n")
        assert [_line(ann) for _ in range(3)] == [b"OK 9\n", b"MESSAGE 0 5 hello\n", b"MESSAGE 9 4 more\n"]
        folder = ("--data-dir", str(way.server.data))
        assert run("user", "deny", "ann", "*:*:mine*", *folder, quick=True).returncode == 0
        assert _line(ann) == b"OK 17\n", "the TAIL ends as if a line had come"
        ann.sendall(b"PRODUCE mine again\nCONSUME mine 0\n")
        assert [_line(ann) for _ in range(2)] == [b"ERR DENIED not allowed\n"] * 2
        assert run("user", "rm", "ann", *folder, quick=True).returncode == 0
        assert _all(ann) == b""
        root.sendall(b"PING\n")
        assert _line(root) == b"PONG\n"
        assert "rule=logmq:write:mine" in way.server.said
        text = control.request(way.server.data, "GET", "/metrics")
        assert _sample(text, "brokers_access_denied_total", protocol="logmq", action="write") == 1
        assert _sample(text, "brokers_logins_failed_total", protocol="logmq") == 0


def _sample(text: str, name: str, **labels: str) -> float:
    (found,) = (
        sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name == name and sample.labels == labels
    )
    return float(found)


def test_the_third_auth_in_a_row_that_is_refused_closes(tmp_path: Path) -> None:
    with served(tmp_path, USERS) as way, way.connect("logmq") as connection:
        connection.sendall(b"AUTH ann wrong\n" * 4 + b"PING\n")
        assert _all(connection) == b"ERR DENIED wrong name or password\n" * 3
        assert "wrong" not in way.server.said


def test_lists_show_what_the_user_may_read_write_or_manage(tmp_path: Path) -> None:
    with served(tmp_path, {**USERS, **ANONYMOUS}) as way, way.connect("logmq") as root:
        root.sendall(f"AUTH root {PASSWORD}\nPRODUCE mine x\nPRODUCE public x\nTOPICS\n".encode())
        assert [_line(root) for _ in range(6)][3:] == [b"TOPIC mine 0 5\n", b"TOPIC public 0 5\n", b"END\n"]
        with way.connect("logmq") as anonymous:
            anonymous.sendall(b"TOPICS\n")
            assert [_line(anonymous) for _ in range(2)] == [b"TOPIC public 0 5\n", b"END\n"]
        with way.connect("dms") as connection:
            hello = json.dumps({"user": "root", "password": PASSWORD}).encode()
            connection.sendall(dms_wire.pack(DmsType.HANDSHAKE, 1, hello))
            for name in (b"\0\4mine", b"\0\6public"):
                connection.sendall(dms_wire.pack(DmsType.CREATE_QUEUE, 2, name))
            for _ in range(3):
                _frame(connection)
        with way.connect("dms") as connection:
            connection.sendall(dms_wire.pack(DmsType.HANDSHAKE, 1) + dms_wire.pack(DmsType.LIST_QUEUES, 2))
            _frame(connection)
            assert _frame(connection)[4] == b"\0\1\0\6public\0\0\0\0"


def test_datagrams_go_by_the_rules_of_udp(tmp_path: Path) -> None:
    udp = {"udp": User("udp", (Rule.parse("pubsub:write:home/*"),))}
    with served(tmp_path, udp) as way, way.connect("pubsub") as subscriber:
        everything = pubsub_wire.encode_command(Command.SUBSCRIBE, b"*")
        subscriber.sendall(pubsub_wire.encode_id(b"A") + everything)
        until(lambda: any(row["subscriptions"] for row in way.sessions("pubsub")))
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
            for topic in (b"other", b"home", b"homes", b"home/x"):
                data = pubsub_wire.datagram(topic, pubsub_wire.Kind.STRING, b"hello")
                sender.sendto(data, way.server.address("pubsub", "pubsub-udp"))
        said = b""
        while len(said) < 2 * pubsub_wire.FRAME_BYTES:
            said += subscriber.recv(1 << 16)
        messages, _ = pubsub_wire.take_frames(said)
        assert [message.topic for message in messages] == [b"home", b"home/x"]


def test_a_session_of_pubsub_is_its_users_alone_also_after_a_restart(tmp_path: Path) -> None:
    def knock(way: Way, user: str | None) -> bytes:
        """Take the id with a subscription, and leave again: what the server says."""
        login = (
            [] if user is None else [pubsub_wire.encode_command(Command.LOGIN, f"{user}:{PASSWORD}".encode())]
        )
        asked = pubsub_wire.encode_command(Command.SUBSCRIBE, b"mine")
        with way.connect("pubsub") as connection:
            connection.sendall(b"".join([pubsub_wire.encode_id(b"A"), *login, asked]))
            connection.settimeout(0.01)
            while True:
                with contextlib.suppress(TimeoutError):
                    return connection.recv(1) or b"closed"
                rows = way.sessions("pubsub")
                if any(row["peer"] and row["user"] == user and row["subscriptions"] for row in rows):
                    return b""

    with served(tmp_path, USERS | {"none": User("none", (), USERS["ann"].password)}) as way:
        assert knock(way, "ann") == b""
        assert knock(way, "root") == b"closed"
        assert knock(way, None) == b"closed"
        with way.connect("pubsub") as connection:
            for user in ("ann", "none"):  # who logs in as another on a connection of ann's is closed, no more
                login = pubsub_wire.encode_command(Command.LOGIN, f"{user}:{PASSWORD}".encode())
                connection.sendall(login if user == "none" else pubsub_wire.encode_id(b"A") + login)
            assert connection.recv(1) == b""
        assert [row["subscriptions"] for row in way.sessions("pubsub")] == [1]
        told = ("that id is another user's", "log in first", "the session is another user's")
        until(lambda: all(why in way.server.said for why in told))  # its reader may be behind
        way.server.stop()
        way.server.start()
        assert knock(way, "root") == b"closed"
        assert knock(way, "ann") == b""


@pytest.mark.parametrize(
    ("tls", "users", "insecure", "starts"),
    [
        (False, False, False, False),
        (False, True, False, False),  # in the clear everybody could read the passwords
        (True, False, False, False),  # that encrypts, and identifies nobody
        (True, True, False, True),
        (False, True, True, True),
    ],
)
def test_a_listener_that_others_reach_starts_only_where_its_clients_are_identified(
    tmp_path: Path, tls: bool, users: bool, insecure: bool, starts: bool
) -> None:
    (tmp_path / "data").mkdir()
    environ = {"BROKERS_SERVE_ENABLE": "logmq", "BROKERS_LOGMQ_HOST": "0.0.0.0"}
    if users:
        with quick_passwords():
            (tmp_path / "data" / "users.toml").write_text(written_users(USERS))
    authority = trustme.CA()
    if tls:
        pem = tmp_path / "server.pem"
        authority.issue_cert("localhost").private_key_and_cert_chain_pem.write_to_path(pem)
        environ["BROKERS_LOGMQ_TLS_CERTIFICATE"] = str(pem)
    server = Server(tmp_path, *(("--insecure",) if insecure else ()), environ=environ, quick=True)
    if not starts:
        with pytest.raises(NotReadyError) as caught:
            server.start()
        assert caught.value.code == ExitCode.CONFIGURATION
        assert "logmq.host" in caught.value.said
        return
    with server:
        way = Way(server, authority if tls else None)
        assert logmq(way, None, None, "PRODUCE", "mine") == REFUSED, "beyond loopback a login is asked for"
        assert logmq(way, ("ann", PASSWORD), None, "PRODUCE", "mine") == DONE
        assert re.search(
            r"warning +\S+/users.toml can be read by others on this machine: chmod 600", server.said
        )


def test_what_is_deleted_purged_redriven_and_forgotten_leaves_a_line_in_the_audit_log(tmp_path: Path) -> None:
    with served(tmp_path, USERS) as way:
        with way.connect("logmq") as logmq_:
            logmq_.sendall(f"AUTH root {PASSWORD}\nPRODUCE gone x\nDELETE gone\nDELETE missing\n".encode())
            assert [_line(logmq_)[:3] for _ in range(4)] == [b"OK\n", b"OK ", b"OK\n", b"ERR"]
        with way.connect("dms") as dms_:
            hello = json.dumps({"user": "root", "password": PASSWORD}).encode()
            dms_.sendall(dms_wire.pack(DmsType.HANDSHAKE, 1, hello))
            for name in (b"\0\4left", b"\0\4gone"):
                dms_.sendall(dms_wire.pack(DmsType.CREATE_QUEUE, 2, name))
            dms_.sendall(dms_wire.pack(DmsType.DELETE_QUEUE, 3, b"\0\4gone"))
            for _ in range(4):
                _frame(dms_)
        for action in ("purge", "redrive"):
            control.request(way.server.data, "POST", f"/api/v1/queues/dms/left/{action}")
        with way.connect("pubsub") as pubsub_:
            login = pubsub_wire.encode_command(Command.LOGIN, f"root:{PASSWORD}".encode())
            asked = pubsub_wire.encode_command(Command.SUBSCRIBE, b"mine")
            pubsub_.sendall(pubsub_wire.encode_id(b"A") + login + asked)
            until(lambda: way.sessions("pubsub"))
            with pytest.raises(Failure, match="A is connected"):
                control.request(way.server.data, "DELETE", "/api/v1/sessions/A")
        with way.connect("dmp") as dmp_:
            assert _amqp_login(dmp_, ("root", PASSWORD))
            for method in (
                *(C.Queue.Declare(queue="gone"), C.Exchange.Declare(exchange="gone")),
                *(C.Queue.Purge(queue="gone"), C.Queue.Delete(queue="gone"), C.Queue.Delete(queue="gone")),
                C.Exchange.Delete(exchange="gone"),
            ):
                assert not isinstance(_amqp_ask(dmp_, method), C.Channel.Close)
        me = pwd.getpwuid(os.getuid()).pw_name
        until(lambda: "delete-exchange" in way.server.said)  # its reader may be behind
        lines = [line.partition(" audit ")[2].split() for line in way.server.said.splitlines()]
        found = [dict(field.split("=") for field in line[1:]) for line in lines if line]
        assert [
            (each["protocol"], each["user"].strip('"'), each["action"], each["name"], each["result"])
            for each in found
        ] == [
            ("logmq", "root", "delete", "gone", "done"),
            ("dms", "root", "delete", "gone", "done"),
            ("dms", me, "purge", "left", "done"),
            ("dms", me, "redrive", "left", "done"),
            ("pubsub", me, "delete", "A", "refused"),
            ("dmp", "root", "purge", "gone", "done"),
            ("dmp", "root", "delete", "gone", "done"),
            ("dmp", "root", "delete-exchange", "gone", "done"),
        ]
        assert all(each["peer"] == "control" or each["peer"].startswith("127.") for each in found)


def test_pika_works_as_a_user_and_is_told_what_he_may_not(tmp_path: Path) -> None:
    with served(tmp_path, USERS, BROKERS_ACCESS_REQUIRED="always") as way:
        host, port = way.server.address("dmp")

        def connect(user: str, password: str) -> pika.BlockingConnection:
            credentials = pika.PlainCredentials(user, password)
            return pika.BlockingConnection(pika.ConnectionParameters(host, port, credentials=credentials))

        for user, password in (("guest", "guest"), ("ann", "wrong"), ("nobody", PASSWORD)):
            with pytest.raises(pika.exceptions.ProbableAuthenticationError, match="ACCESS_REFUSED"):
                connect(user, password)
        with (
            contextlib.closing(connect("root", PASSWORD)) as root,
            contextlib.closing(connect("ann", PASSWORD)) as ann,
        ):
            root.channel().queue_declare("other")
            channel = ann.channel()
            channel.exchange_declare("mine")
            channel.queue_declare("mine")
            channel.queue_bind("mine", "mine", "key")
            channel.confirm_delivery()
            channel.basic_publish("mine", "key", b"hello", pika.BasicProperties(user_id="ann"))
            got: list[bytes] = []
            ended: list[object] = []
            channel.add_on_cancel_callback(ended.append)
            channel.basic_consume("mine", lambda channel, method, properties, body: got.append(body))
            until(lambda: ann.process_data_events(0) or got == [b"hello"])
            run("user", "deny", "ann", "*:*:mine*", "--data-dir", str(way.server.data), quick=True)
            until(lambda: ann.process_data_events(0) or len(ended) == 1)
            for ask in (
                lambda channel: channel.queue_declare("mine"),
                lambda channel: channel.basic_get("other"),
                lambda channel: channel.queue_delete("other"),
            ):
                with pytest.raises(pika.exceptions.ChannelClosedByBroker, match="not allowed"):
                    ask(ann.channel())
