"""`brokers.connect` and the like: what a URL says, logins and TLS, and what a loop does beside the client."""

import asyncio
import os
import signal
import threading
from collections.abc import Callable, Iterator

import pytest
import trustme

import brokers
from brokers import aio, sync
from dms.errors import Denied
from logmq.connector import LogmqError
from shared.access import Rule, Secret, User
from tests.e2e.users import server_of
from tests.support.ends import Connect, End
from tests.support.forked import quick_passwords

Url = Callable[[str], str]
PASSWORD = "planted pass:word"


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str, str], str]]:
    """A server that asks for logins and certificates: the URL of one of its protocols, with that password."""
    folder = tmp_path_factory.mktemp("secured")
    with quick_passwords():
        secret = Secret.make(PASSWORD.encode(), bytes(16))
    users = {"ann": User("ann", (Rule.parse("*:*:*"),), secret)}
    authority = trustme.CA()
    server = server_of(folder, users, enable="dms,logmq", authority=authority)
    ours = authority.issue_cert(common_name="client")
    ours.private_key_and_cert_chain_pem.write_to_path(folder / "client.pem")

    def url(protocol: str, password: str) -> str:
        file = folder / password.replace(" ", "-")
        file.write_text(password)
        port = server.address(protocol)[1]
        files = f"password-file={file}&ca={folder}/ca.pem&certificate={folder}/client.pem"
        return f"{protocol}+tls://ann@localhost:{port}?{files}"

    with server:
        yield url


def test_a_url_says_who_logs_in_and_whom_to_trust(end: End, secured: Callable[[str, str], str]) -> None:
    async def program(connect: Connect) -> None:
        async with connect(secured("logmq", PASSWORD)) as client:
            topic = f"secured-{end.name}"
            await client.produce_many(topic, [bytes(1000)] * 1000)
            assert len([record async for record in client.records(topic)]) == 1000
            async with client.tail(topic) as tail:
                assert (await anext(tail)).payload == bytes(1000)
        async with connect(secured("dms", PASSWORD)) as client:
            await client.create(f"secured-{end.name}")
            async with client.consume(f"secured-{end.name}") as messages:
                await client.produce(f"secured-{end.name}", b"x")
                async with await anext(messages) as message:
                    assert message.body == b"x"

    end.run(program)


def test_a_wrong_password_is_refused_and_not_shown(end: End, secured: Callable[[str, str], str]) -> None:
    async def program(connect: Connect) -> None:
        with pytest.raises(Denied) as dms:
            async with connect(secured("dms", "a wrong one")):
                raise AssertionError("logged in")
        with pytest.raises(LogmqError, match="DENIED") as logmq:
            async with connect(secured("logmq", "a wrong one")):
                raise AssertionError("logged in")
        assert "wrong one" not in f"{dms.value!r}{dms.value}{logmq.value!r}{logmq.value}"

    end.run(program)


@pytest.mark.parametrize("connect", [brokers.connect, aio.connect, sync.connect])
@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("localhost:8080", "begins with one of dmp://, dms://"),
        ("redis://localhost", "begins with one of dmp://, dms://"),
        ("dmp://localhost", "dmp has no client that is connected so"),
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
