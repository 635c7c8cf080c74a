"""A group as its host uses it."""

import gc
import socket
import weakref

import pytest
import trio
import trio.testing

from shared.errors import ConfigError
from tests.shared.net.served import Certificates, Recorder, Sessions, echo, make_group, read_all, serving

KINDS = pytest.mark.parametrize("kind", ["plain", "tls"])


async def test_a_group_that_stops_accepting_keeps_its_connections() -> None:
    sessions = Sessions(echo)
    async with serving("plain", sessions) as served:
        client, _ = await sessions.join(served)
        served.group.stop_accepting()
        await trio.testing.wait_all_tasks_blocked()
        with pytest.raises(OSError, match="refused"):
            served.connect_socket()
        await client.send_all(b"still here")
        assert await read_all(client, 10) == b"still here"


async def test_a_port_can_be_bound_again_at_once_after_a_group_ended() -> None:
    async with serving("plain", Sessions(echo)) as served:
        assert not isinstance(served.address, str)
        port = served.address[1]
        client = await served.connect()
        await client.send_all(b"1")
        assert await read_all(client, 1) == b"1"
    group = make_group()
    assert group.bind_tcp("test", "127.0.0.1", port, Sessions(echo)) == [("127.0.0.1", port)]
    group.close()
    group.close()


async def test_a_group_that_was_bound_and_never_served_lets_go_of_its_ports() -> None:
    group = make_group()
    (address,) = group.bind_tcp("test", "127.0.0.1", 0, Sessions(echo))
    group.close()
    with pytest.raises(OSError, match="refused"):
        socket.create_connection(address)


async def test_two_endpoints_of_a_group_count_together() -> None:
    sessions = Sessions(echo)
    async with serving("plain", sessions) as served:
        await sessions.join(served)
        await sessions.join(served)
        values = {(each.name, each.labels): each.value for each in served.group.samples()}
        assert values["net_accepted_total", (("protocol", "test"),)] == 2
        whole = {each.name: each.value for each in served.network.samples()}
        assert whole["net_connections"] == 2
    closed = {each.labels: each.value for each in served.group.samples() if each.name == "net_closed_total"}
    assert closed == {(("protocol", "test"), ("reason", "shutdown")): 2}


def test_listening_beyond_loopback_needs_to_know_the_clients_or_consent(certificates: Certificates) -> None:
    for group in (make_group(), make_group(tls=certificates.server), make_group(logs_in=True)):
        with pytest.raises(ConfigError, match="--insecure") as error:
            group.bind_tcp("test", "0.0.0.0", 0, Sessions())
        assert error.value.key == "test.host"
        group.close()
    for group in (
        make_group(insecure=True),
        make_group(tls=certificates.server, insecure=True),
        make_group(tls=certificates.mutual),
        make_group(tls=certificates.server, logs_in=True),
    ):
        assert len(group.bind_tcp("test", "0.0.0.0", 0, Sessions())) == 1
        group.close()


@KINDS
async def test_a_closed_connection_and_its_session_are_freed_without_the_collector(
    kind: str, certificates: Certificates
) -> None:
    sessions = Sessions(echo)
    async with serving(kind, sessions, certificates=certificates) as served:
        client, session = await sessions.join(served)
        watched = weakref.ref(session)
        lost = session.lost
        del session
        gc.disable()
        try:
            await trio.aclose_forcefully(client)
            await lost.wait()
            await trio.testing.wait_all_tasks_blocked()
            assert watched() is None
        finally:
            gc.enable()


@KINDS
async def test_a_group_that_is_cancelled_amid_everything_leaves_nothing_behind(
    kind: str, certificates: Certificates
) -> None:
    sessions = Sessions(echo)
    async with serving(kind, sessions, certificates=certificates) as served:
        opened: list[Recorder] = []
        for _ in range(5):
            _, session = await sessions.join(served)
            opened.append(session)
            session.connection.outbox.bound = 1 << 30
            session.connection.write(b"x" * 10_000_000)
            session.connection.wake_at(session.connection.now + 100)
        opened[0].connection.finish()
        opened[1].connection.pause_reading()
    assert [session.calls for session in opened] == [["lost"]] * 5
    assert served.network.backlogs.held_bytes == 0
    assert served.network.admission.connections == 0
    assert all(session.connection.closed for session in opened)
