"""As many clients as there may be, and those that behave badly beside those that do not."""

import socket
from collections.abc import Callable, Iterator

import pytest

from tests.support import dms_spec as spec
from tests.support.dms_spec import SpecClient
from tests.support.server import Server, until

Address = tuple[str, int]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Server(tmp_path_factory.mktemp("dms"), "-p", "0", command=("dms", "serve")) as server:
        yield server


@pytest.fixture
def address(server: Server) -> Iterator[Address]:
    """Of a server without queues."""
    yield server.address("dms")
    with SpecClient(server.address("dms")) as client:
        while queues := client.queues():  # as many as one answer holds
            for queue in queues:
                client.delete(queue)
    assert "Traceback" not in server.said


def test_256_clients_at_once_and_the_257th_is_told(new_server: Callable[..., Server]) -> None:
    address = new_server("-p", "0", command=("dms", "serve")).start().address("dms")
    clients: list[SpecClient] = []
    try:
        clients += (SpecClient(address) for _ in range(256))
        clients[0].create("jobs")
        for number, client in enumerate(clients):
            client.produce("jobs", b"%d" % number)
        with SpecClient(address, greet=False) as refused:
            refused.send(spec.frame(spec.HANDSHAKE, 1))
            (reply,) = refused.rest()
            assert reply[:2] == (spec.ERROR, 10)
            assert b"256" in reply[3]
        taken = [client.consume("jobs") for client in clients]
        assert [body for _, body in taken] == [b"%d" % number for number in range(256)]
        assert len({delivery for delivery, _ in taken}) == 256
        for client, (delivery, _) in zip(clients, taken, strict=True):
            client.ack(delivery)
        clients[0].disconnect()
        clients[0].rest()
        with SpecClient(address) as late:  # though the other has not closed its side yet
            assert late.queues() == {"jobs": 0}
    finally:
        for client in clients:
            client.socket.close()


def rounds(client: SpecClient, queue: str, count: int) -> None:
    """Messages through a queue, one behind the other."""
    for number in range(count):
        client.produce(queue, b"%d" % number)
        delivery, body = client.consume(queue)
        assert body == b"%d" % number
        client.ack(delivery)


def stuff(sock: socket.socket, data: bytes) -> int:
    """Send it again and again until the peer takes no more; returns how often."""
    sock.settimeout(0.3)
    times = 0
    try:
        while times < 10_000:
            sock.sendall(data)
            times += 1
    except TimeoutError:
        pass
    return times


def test_one_that_does_not_read_costs_the_others_nothing(address: Address) -> None:
    with SpecClient(address) as good, SpecClient(address) as deaf:
        good.create("jobs")
        for number in range(120):
            good.create(f"{number}" + "x" * 60)
        assert stuff(deaf.socket, spec.frame(spec.LIST, 1) * 1000) < 10_000, "it is not read for ever"
        rounds(good, "jobs", 100)
        deaf.socket.close()
        rounds(good, "jobs", 100)


def test_what_one_that_does_not_read_was_given_comes_back_when_it_is_gone(address: Address) -> None:
    with SpecClient(address) as good, SpecClient(address) as deaf:
        good.create("jobs")
        deaf.send(spec.frame(spec.CONSUME, 1, spec.name("jobs")) * 2000 + spec.frame(spec.LIST, 2))
        assert deaf.reply()[0] == spec.LIST + 1
        bodies = [b"%04d" % number + b"x" * 4000 for number in range(3000)]
        for body in bodies[:2000]:
            good.produce("jobs", body)
        assert good.queues() == {"jobs": 2000}
        for body in bodies[2000:]:
            good.produce("jobs", body)
        found = [good.consume("jobs")[1]]  # what it was not given goes to others
        deaf.socket.close()
        found += [good.consume("jobs")[1] for _ in range(2999)]
        assert sorted(found) == bodies


def test_a_large_pipeline_does_not_keep_the_others_waiting_for_its_end(address: Address) -> None:
    with SpecClient(address) as good, SpecClient(address) as greedy:
        good.create("jobs")
        good.create("mine")
        request = spec.frame(spec.PRODUCE, 1, spec.name("jobs") + b"x" * 100)
        greedy.send(request * 9000)
        rounds(good, "mine", 50)
        for _ in range(9000):
            assert greedy.reply()[:2] == (spec.PRODUCE + 1, 0)
        until(lambda: good.queues() == {"jobs": 9000, "mine": 0})
