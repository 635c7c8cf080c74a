"""Every client and command logs in, again after a lost connection, and shows its password to nobody."""

import contextlib
import shutil
import subprocess
from collections.abc import Awaitable, Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

import pytest
import trio
import trustme

import dmp
import dms.client
import kqmsgq.client
import logmq.client
import pubsub.client
from brokers.commands import control
from dmp.amqp_client import Refused, open_amqp
from dms.errors import Denied
from logmq.client import LogmqError
from pubsub.client import Kind
from shared.access import Rule, Secret, User
from shared.client.dial import Disconnected, How
from tests.e2e.users import server_of
from tests.support.forked import quick_passwords
from tests.support.server import run, run_here, until

PASSWORD = "planted pass:word"
OTHER = "another planted pass:word"
RULES = (Rule.parse("*:*:*"),)
with quick_passwords():
    SECRET = Secret.make(PASSWORD.encode(), bytes(16))
USERS = {
    "ann": User("ann", RULES, SECRET),
    "sensor": User("sensor", RULES, certificate=True),
}
PROTOCOLS = ("logmq", "dms", "pubsub", "kqmsgq", "dmp")


class Place:
    """A server that asks for logins, over TLS or in the clear on loopback, and what its clients have."""

    def __init__(self, folder: Path, *, tls: bool) -> None:
        authority = trustme.CA()
        self.server = server_of(  # over TLS it asks for certificates; a login beside one is that user's
            folder,
            USERS,
            enable=",".join(PROTOCOLS),
            authority=authority if tls else None,
            BROKERS_ACCESS_REQUIRED="always",
        )
        self.ca = folder / "ca.pem"
        self.certificate, self.key = folder / "sensor.pem", folder / "sensor.key"
        sensor = authority.issue_cert(common_name="sensor")
        sensor.cert_chain_pems[0].write_to_path(self.certificate)
        sensor.private_key_pem.write_to_path(self.key)
        self.right, self.wrong = folder / "right", folder / "wrong"
        self.right.write_text(f"{PASSWORD}\n")
        self.wrong.write_text(f"{OTHER}\n")
        self.lines = folder / "lines"
        self.lines.write_text("exit\n")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    found = Place(tmp_path_factory.mktemp("tls"), tls=True)
    with found.server:
        yield found


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    found = Place(tmp_path_factory.mktemp("plain"), tls=False)
    with found.server:
        yield found


# Clients: each does one thing that needs a login.


async def _logmq(host: str, port: int, how: How) -> None:
    async with logmq.client.connect(host, port, retry_seconds=5, **how) as client:
        await client.produce("topic", b"hello")
        async with client.tail("topic", 0) as tail:
            await anext(tail)


async def _dms(host: str, port: int, how: How) -> None:
    async with dms.client.connect(host, port, retry_seconds=5, **how) as client:
        with contextlib.suppress(dms.client.QueueExists):
            await client.create("queue")
        await client.produce("queue", b"hello")
        async with client.consume("queue") as messages:
            await (await anext(messages)).ack()


async def _kqmsgq(host: str, port: int, how: How) -> None:
    async with kqmsgq.client.open_consumer(host, port, **how) as consumer:
        await consumer.subscribe("queue")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_until_told, partial(_kqmsgq_send, host, port, how))
            await anext(consumer)
            nursery.cancel_scope.cancel()


async def _kqmsgq_send(host: str, port: int, how: How) -> None:
    async with kqmsgq.client.open_producer(host, port, **how) as producer:
        await producer.send("queue", b"hello")


async def _pubsub(host: str, port: int, how: How) -> None:
    async with (
        pubsub.client.open_subscriber("me", host, port, **how) as subscriber,
        pubsub.client.open_publisher("127.0.0.1", port if "://" not in host else _port_of(host)) as publisher,
        trio.open_nursery() as nursery,
    ):
        await subscriber.subscribe("home")
        nursery.start_soon(_until_told, partial(publisher.publish, "home", Kind.INT, "1"))
        await anext(subscriber)
        nursery.cancel_scope.cancel()


async def _dmp(host: str, port: int, how: How) -> None:
    async with (
        open_amqp(host, port, **how) as client,
        dmp.open_feed([("amq.topic", "#")], host, port, **how) as feed,
        dmp.open_sink("amq.topic", host, port, **how) as sink,
    ):
        await client.declare_queue("queue")
        await client.publish("queue", b"hello")
        await sink.send("key", b"hello")
        await anext(feed)


def _port_of(url: str) -> int:
    return int(url.rpartition(":")[2])


async def _until_told(send: Callable[[], Awaitable[None]]) -> None:
    """Subscriptions are not answered: what is sent before they are there comes to nobody."""
    while True:
        await send()
        await trio.sleep(0.05)


CLIENTS: dict[str, tuple[Callable[[str, int, How], Awaitable[None]], type[Exception]]] = {
    "logmq": (_logmq, LogmqError),
    "dms": (_dms, Denied),
    "pubsub": (_pubsub, Disconnected),
    "kqmsgq": (_kqmsgq, Disconnected),
    "dmp": (_dmp, Refused),
}


async def attempt(protocol: str, host: str, port: int, how: How) -> None:
    with trio.fail_after(60):
        await CLIENTS[protocol][0](host, port, how)


def leaves(error: BaseException) -> Iterator[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        for each in error.exceptions:
            yield from leaves(each)
    else:
        yield error


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_a_client_logs_in_by_password_url_variable_and_certificate(
    protocol: str, plain: Place, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    host, port = plain.server.address(protocol)
    await attempt(protocol, host, port, {"user": "ann", "password": PASSWORD})
    await attempt(protocol, f"{protocol}://ann@{host}:{port}", 1, {"password_file": plain.right})
    for user, file in ((None, None), ("ann", plain.wrong), ("nobody", plain.right)):
        how: How = {} if user is None else {"user": user, "password_file": file}
        with pytest.raises(BaseException) as refused:  # noqa: PT011 - it may be a group
            await attempt(protocol, host, port, how)
        for each in leaves(refused.value):
            assert isinstance(each, CLIENTS[protocol][1]), each
            assert "planted" not in str(each)
    monkeypatch.setenv("BROKERS_USER", "ann")
    monkeypatch.setenv("BROKERS_PASSWORD_FILE", str(plain.right))
    await attempt(protocol, host, port, {})
    monkeypatch.delenv("BROKERS_USER")
    monkeypatch.delenv("BROKERS_PASSWORD_FILE")
    host, port = place.server.address(protocol)
    files: How = {"ca": place.ca, "certificate": place.certificate, "key": place.key}
    await attempt(protocol, host, port, files)
    await attempt(protocol, host, port, {**files, "user": "sensor"})
    if protocol != "pubsub":  # there the certificate's user has the session already
        await attempt(protocol, f"{protocol}+tls://ann@{host}:{port}", 1, {**files, "password": PASSWORD})


async def test_a_connection_that_is_made_again_logs_in_again(tmp_path: Path) -> None:
    where = Place(tmp_path, tls=False)
    how: How = {"user": "ann", "password": PASSWORD}
    with where.server as server:
        ports = {protocol: server.address(protocol)[1] for protocol in PROTOCOLS}
        async with (
            logmq.client.connect(port=ports["logmq"], **how) as log,
            dms.client.connect(port=ports["dms"], **how) as queue,
            kqmsgq.client.open_consumer(port=ports["kqmsgq"], retry_seconds=30, **how) as consumer,
            pubsub.client.open_subscriber("me", port=ports["pubsub"], retry_seconds=30, **how) as subscriber,
        ):
            await log.produce("topic", b"1")
            await queue.create("queue")
            await consumer.subscribe("queue")
            await subscriber.subscribe("home")
            async with log.tail("topic", 0) as tail:
                await anext(tail)
                server.stop()
                server.start(*(word for name, port in ports.items() for word in ("--port", f"{name}={port}")))
                assert [topic.name for topic in await log.topics()] == ["topic"]
                await queue.queues()
                await log.produce("topic", b"2")
                assert (await anext(tail)).payload == b"2"
            async with trio.open_nursery() as nursery:
                send = partial(_kqmsgq_send, "127.0.0.1", ports["kqmsgq"], how)
                nursery.start_soon(_until_told, send)
                assert (await anext(consumer)).body == b"hello"
                nursery.cancel_scope.cancel()
            async with (
                pubsub.client.open_publisher(port=ports["pubsub"]) as publisher,
                trio.open_nursery() as nursery,
            ):
                nursery.start_soon(_until_told, partial(publisher.publish, "home", Kind.INT, "1"))
                assert (await anext(subscriber)).topic == b"home"
                nursery.cancel_scope.cancel()


COMMANDS: dict[str, Sequence[str]] = {
    "logmq": ("produce", "topic", "hello"),
    "dms": ("list",),
    "kqmsgq": ("produce", "-q", "queue", "hello"),
    "pubsub": ("subscriber", "cli"),
    "dmp": ("put", "", "hello", "-k", "jobs"),
}


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_command_logs_in_and_no_output_of_its_or_the_servers_shows_a_password(
    protocol: str, plain: Place, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    words, printed = (protocol, *COMMANDS[protocol]), []
    for where in (plain, place):
        run_here("dmp", "declare", "queue", "jobs", "--data-dir", str(where.server.data))

    def ran(where: Place, *more: str, url: str = "", refused: bool = False) -> None:
        host, port = where.server.address(protocol)
        there = ("--host", f"{url}{host}:{port}") if url else ("--port", str(port))
        with plain.lines.open() as stdin, monkeypatch.context() as patch:
            patch.setattr("sys.stdin", stdin)
            done = run_here(*words, *there, *more)
        printed.append(done.stdout + done.stderr)
        if protocol != "pubsub":  # which leaves before it is answered
            assert bool(done.returncode) is refused, printed[-1]

    ran(plain, "--user", "ann", "--password-file", str(plain.right))
    ran(plain, "--password-file", str(plain.right), url=f"{protocol}://ann@")
    ran(plain, "--user", "ann", "--password-file", str(plain.wrong), refused=True)
    ran(plain, refused=True)
    ran(plain, "--user", "ann", refused=True)
    ran(plain, "--password-file", str(plain.right), url=f"{protocol}://ann:planted@", refused=True)
    key = "--key-file" if protocol == "dmp" else "--key"  # `put` has a routing key
    ours = ("--ca", str(place.ca), "--certificate", str(place.certificate), key, str(place.key))
    ran(place, "--tls", *ours, url=f"{protocol}+tls://")
    ran(place, *ours, "--user", "ann", "--password-file", str(place.right))
    monkeypatch.setenv("BROKERS_USER", "ann")
    monkeypatch.setenv("BROKERS_PASSWORD_FILE", str(plain.right))
    ran(plain)
    printed += [str(plain.server.said), str(place.server.said)]
    printed += [control.request(where.server.data, "GET", "/metrics") for where in (plain, place)]
    done = run_here("config", "show")
    printed.append(done.stdout + done.stderr)
    assert not [text for text in printed if "planted" in text]


def test_a_subscriber_takes_a_url_where_its_address_stands(plain: Place) -> None:
    host, port = plain.server.address("pubsub")
    url = f"pubsub://ann@{host}:{port}?password-file={plain.right}"
    assert run("pubsub", "subscriber", "url", url, stdin=b"keep home\nexit\n").returncode == 0

    def clients() -> list[str]:
        rows = control.socket_client(plain.server.data).rows("sessions", protocol="pubsub")
        return [row["name"] for row in rows]

    until(lambda: "url" in clients())
    refused = run("pubsub", "subscriber", "url", f"pubsub://ann:planted@{host}:{port}")
    assert (refused.returncode, "planted" in refused.stderr) == (2, False)


def program(name: str) -> str:
    """Its path; without it the test is skipped."""
    return shutil.which(name) or pytest.skip(f"there is no {name}")


def produces_as_ann(command: Sequence[str]) -> None:
    """What it is given on standard input goes to a LogMQ server, and answers come on standard output."""
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(f"AUTH ann {PASSWORD}\nPRODUCE by-{Path(command[0]).name} hello\n".encode())
        process.stdin.flush()
        assert process.stdout.readline() == b"OK\n"
        assert process.stdout.readline() == b"OK 0\n"
        process.stdin.close()
        process.kill()


def test_nc_logs_in_to_logmq(plain: Place) -> None:
    host, port = plain.server.address("logmq")
    produces_as_ann([program("nc"), host, str(port)])


def test_openssl_logs_in_to_logmq_over_tls(place: Place) -> None:
    host, port = place.server.address("logmq")
    files = ("-CAfile", str(place.ca), "-cert", str(place.certificate), "-key", str(place.key))
    over_tls = ("s_client", "-quiet", "-verify_return_error", "-connect", f"{host}:{port}", *files)
    produces_as_ann([program("openssl"), *over_tls])


def test_who_may_see_the_administration_may_use_every_command_that_only_looks(tmp_path: Path) -> None:
    eve = User("eve", (Rule.parse("admin:read"),), SECRET)
    (tmp_path / "right").write_text(f"{PASSWORD}\n")
    login = ("--user", "eve", "--password-file", str(tmp_path / "right"))
    with server_of(tmp_path, {"eve": eve}, enable=",".join(PROTOCOLS)) as server:
        queues = [{"protocol": "dms", "name": "q"}, {"protocol": "dmp", "name": "q"}]
        control.request(server.data, "POST", "/api/v1/definitions", {"queues": queues})
        for looks in (
            ("dms", "queues"),
            ("dms", "peek", "q"),
            ("dmp", "queues"),
            ("dmp", "peek", "q"),
            ("dmp", "exchanges"),
            ("dmp", "leases"),
            ("logmq", "groups"),
            ("pubsub", "sessions"),
            ("kqmsgq", "consumers"),
        ):
            done = run_here(*looks, "--url", server.ready["page"], *login)
            assert (done.returncode, done.stderr) == (0, ""), looks
        for changes in (("dms", "purge", "q"), ("pubsub", "forget", "A"), ("dmp", "pause", "q"), ("reload",)):
            refused = run_here(*changes, "--url", server.ready["page"], *login)
            assert (refused.returncode, "refuses that to this user" in refused.stderr) == (1, True), changes
