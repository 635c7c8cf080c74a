"""`brokers.connect` and the like: what a URL says, logins and TLS, and what a loop does beside the client."""

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import attrs
import pytest
import trustme

import brokers
from brokers import aio, sync
from dmp.principal import Refused
from dms.errors import Denied
from logmq.connector import LogmqError
from pubsub.client import Kind
from shared.access import Rule, Secret, User
from shared.client.blocking import BlockingLoop, BlockingTransport
from shared.client.dial import Disconnected
from tests.e2e.users import server_of
from tests.support.ends import Connect, End
from tests.support.forked import quick_passwords
from tests.support.server import Server, counter, until

Url = Callable[[str], str]
PASSWORD = "planted pass:word"


@attrs.frozen
class Secured:
    """A server that asks for logins and certificates."""

    server: Server

    @property
    def data(self) -> Path:
        return self.server.data

    def url(self, protocol: str, password: str) -> str:
        """Of one of its protocols, with that password."""
        folder = self.server.folder
        file = folder / password.replace(" ", "-")
        file.write_text(password)
        port = self.server.address(protocol)[1]
        files = f"password-file={file}&ca={folder}/ca.pem&certificate={folder}/client.pem"
        return f"{protocol}+tls://ann@localhost:{port}?{files}"


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    folder = tmp_path_factory.mktemp("secured")
    with quick_passwords():
        secret = Secret.make(PASSWORD.encode(), bytes(16))
    users = {"ann": User("ann", (Rule.parse("*:*:*"),), secret)}
    authority = trustme.CA()
    server = server_of(folder, users, enable="dms,kqmsgq,logmq,dmp,pubsub", authority=authority)
    ours = authority.issue_cert(common_name="client")
    ours.private_key_and_cert_chain_pem.write_to_path(folder / "client.pem")

    with server:
        yield Secured(server)


def test_a_url_says_who_logs_in_and_whom_to_trust(end: End, secured: Secured) -> None:
    async def program(connect: Connect) -> None:
        async with connect(secured.url("logmq", PASSWORD)) as client:
            topic = f"secured-{end.name}"
            await client.produce_many(topic, [bytes(1000)] * 1000)
            assert len([record async for record in client.records(topic)]) == 1000
            async with client.tail(topic) as tail:
                assert (await anext(tail)).payload == bytes(1000)
        async with connect(secured.url("dms", PASSWORD)) as client:
            await client.create(f"secured-{end.name}")
            async with client.consume(f"secured-{end.name}") as messages:
                await client.produce(f"secured-{end.name}", b"x")
                async with await anext(messages) as message:
                    assert message.body == b"x"
        async with (
            connect(secured.url("dmp", PASSWORD)) as client,
            client.feed([("amq.topic", end.name)]) as feed,
        ):
            async with client.sink("amq.topic") as sink:
                await sink.send(end.name, b"x")
            assert (await anext(feed)).body == b"x"
            queue = await client.declare_queue(exclusive=True)
            await client.publish(queue, bytes(300_000))
            async with client.consume(queue) as deliveries:
                assert (await anext(deliveries)).body == bytes(300_000)

    end.run(program)


def test_a_subscriber_over_tls_is_sent_what_datagrams_bring(end: End, secured: Secured) -> None:
    def subscriptions() -> int:
        return counter(secured.data, "pubsub_subscriptions ")

    async def program(connect: Connect) -> None:
        before = subscriptions()
        async with (
            connect(secured.url("pubsub", PASSWORD)) as client,
            client.subscribe(end.name, f"{end.name}/*") as messages,
        ):
            until(lambda: subscriptions() > before)
            await client.publish(f"{end.name}/a", Kind.STRING, "hello")
            assert (await anext(messages)).value == b"hello"

    end.run(program)


def test_over_tls_too_all_is_read_when_the_block_of_a_sender_ends(end: End, secured: Secured) -> None:
    def produced() -> int:
        return counter(secured.data, "kqmsgq_messages_produced_total")

    async def program(connect: Connect) -> None:
        before = produced()
        async with connect(secured.url("kqmsgq", PASSWORD)) as client:
            await client.send_many([(end.name, bytes(1000))] * 1000)
            await client.send(end.name, b"last")
        assert produced() - before == 1001

    end.run(program)


ON_A_LOOP = """
async def main():
    async with brokers.connect(URL) as client:
        await client.ping()
"""


@pytest.mark.parametrize(
    ("program", "loop"),
    [
        ("import brokers, trio" + ON_A_LOOP + "trio.run(main)", "trio"),
        ("import brokers.aio, asyncio" + ON_A_LOOP + "asyncio.run(main())", "asyncio"),
        ("from brokers import sync\nwith sync.connect(URL) as client: client.ping()", ""),
    ],
)
def test_a_client_imports_its_own_loop_and_no_other(program: str, loop: str, url: Url) -> None:
    packages = ("dmp", "dms", "kqmsgq", "logmq", "pubsub")
    clients = ", ".join(f"brokers.{name}.client, brokers.{name}.blocking" for name in packages)
    program = program.replace("URL", repr(url("logmq"))) + f"\nimport sys, {clients}"
    program += "\nprint(*(name for name in ('asyncio', 'trio') if name in sys.modules))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == loop


def test_a_wrong_password_is_refused_and_not_shown(end: End, secured: Secured) -> None:
    async def program(connect: Connect) -> None:
        with pytest.raises(Denied) as dms:
            async with connect(secured.url("dms", "a wrong one")):
                raise AssertionError("logged in")
        with pytest.raises(LogmqError, match="DENIED") as logmq:
            async with connect(secured.url("logmq", "a wrong one")):
                raise AssertionError("logged in")
        with pytest.raises(Refused, match="ACCESS_REFUSED") as amqp:
            async with connect(secured.url("dmp", "a wrong one")):
                raise AssertionError("logged in")
        said = [f"{caught.value!r}{caught.value}" for caught in (dms, logmq, amqp)]
        assert "wrong one" not in "".join(said)

    end.run(program)


@pytest.mark.parametrize("connect", [brokers.connect, aio.connect, sync.connect])
@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("localhost:8080", "begins with one of dmp://, dms://"),
        ("redis://localhost", "begins with one of dmp://, dms://"),
        ("dms://localhost?retries=3", "a URL has no parameter retries; it has password-file, ca,"),
        ("dms://localhost?retry-seconds=often", "retry-seconds of a URL is a number"),
        ("dms://ann:secret@localhost", "a URL holds no password"),
    ],
)
def test_what_a_url_cannot_say_is_refused_by_name(connect: Connect, url: str, why: str) -> None:
    async def program() -> None:
        async with connect(url):
            raise AssertionError("connected")

    def run() -> None:
        if connect is not sync.connect:
            return asyncio.run(program())
        with connect(url):
            raise AssertionError("connected")

    with pytest.raises(ValueError, match=why) as caught:
        run()
    assert "secret" not in str(caught.value)


def test_an_interrupted_call_of_blocking_code_leaves_the_client_good(url: Url) -> None:
    with sync.connect(url("dms")) as client:
        client.create("interrupted")
        with client.consume("interrupted") as messages:
            interrupt = threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT))
            interrupt.start()
            with pytest.raises(KeyboardInterrupt):
                next(messages)
            interrupt.join()
            client.produce("interrupted", b"x")
            with next(messages) as message:
                assert message.body == b"x"
        client.delete("interrupted")


def test_a_call_of_blocking_code_takes_no_longer_than_its_timeout(url: Url) -> None:
    with sync.connect(url("dms")) as client:
        client.create("timed")
        with client.consume("timed") as messages:
            with client.timeout(0.1), pytest.raises(TimeoutError):
                next(messages)
            client.produce("timed", b"x")
            with next(messages) as message:
                assert message.body == b"x"
        client.delete("timed")


def test_tasks_of_asyncio_share_one_connection_and_may_be_cancelled(url: Url) -> None:
    async def program() -> None:
        async with aio.connect(url("logmq")) as client:
            offsets = await asyncio.gather(*(client.produce("gathered", b"%03d" % n) for n in range(500)))
            assert sorted(offsets) == [7 * number for number in range(500)]
            unheard = asyncio.create_task(client.produce("gathered", b"unheard"))
            await asyncio.sleep(0)
            unheard.cancel()
            with pytest.raises(asyncio.CancelledError):
                await unheard
            assert await client.produce("gathered", b"heard") in (3500, 3511)
            await client.delete("gathered")

    asyncio.run(program())


@pytest.mark.parametrize("moment", ["send", "_receive"])
def test_an_interrupt_in_the_middle_of_work_sends_and_answers_nothing_twice(
    url: Url, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    """A signal may come behind each call of the operating system, too."""
    with sync.connect(url("dms")) as client:
        client.create("halfway")
        with monkeypatch.context() as patch:
            interrupt_once(patch, BlockingTransport, moment)
            with pytest.raises(KeyboardInterrupt):
                client.produce("halfway", b"maybe")
        client.produce("halfway", b"surely")
        with client.consume("halfway", prefetch=2) as messages:
            bodies = []
            for message in messages:
                with message:
                    bodies.append(message.body)
                if message.body == b"surely":
                    break
        assert bodies in ([b"surely"], [b"maybe", b"surely"])
        client.delete("halfway")


def interrupt_once(patch: pytest.MonkeyPatch, owner: type, name: str) -> None:
    """Ctrl-C right after that method has done its work once."""
    method = getattr(owner, name)

    def call(self: object) -> None:
        method(self)
        patch.setattr(owner, name, method)
        raise KeyboardInterrupt

    patch.setattr(owner, name, call)


def test_an_interrupt_of_a_producer_at_work_is_told_and_its_next_call_too(url: Url) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    def program() -> None:
        with client.producer("interrupted", on_written=interrupted) as producer:
            producer.send(b"x")
            with pytest.raises(KeyboardInterrupt):
                producer.flush()

    with sync.connect(url("logmq")) as client:
        with pytest.raises(Disconnected, match="the producer was interrupted"):
            program()
        client.delete("interrupted")


def test_an_interrupt_of_what_runs_beside_a_call_that_has_ended_is_told() -> None:
    loop = BlockingLoop()

    async def interrupted() -> None:
        raise KeyboardInterrupt

    async def call() -> None:
        loop.start_soon(interrupted)

    with pytest.raises(KeyboardInterrupt):
        loop.run(call())


def test_a_full_tail_that_blocking_code_leaves_costs_nothing(url: Url) -> None:
    with sync.connect(url("logmq")) as client:
        client.produce_many("tailed", [bytes(50_000)] * 100)
        with client.tail("tailed") as tail:
            next(tail)  # more has arrived than is read ahead
            client.ping()
        begun = time.process_time()
        client.fetch("tailed", client.offsets("tailed").end, wait_ms=500)
        assert time.process_time() - begun < 0.25
        client.delete("tailed")
