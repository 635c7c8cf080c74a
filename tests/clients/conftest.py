"""What the clients' tests share: a server, and a proxy before it."""

from collections.abc import Callable, Iterator

import pytest

from tests.support.cutting_proxy import CuttingProxy
from tests.support.ends import end
from tests.support.server import Server

__all__ = ["end"]  # a fixture


@pytest.fixture(scope="package")
def clients_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """One server for all; each test has names of its own."""
    with Server(tmp_path_factory.mktemp("clients")) as server:
        yield server


@pytest.fixture
def url(clients_server: Server) -> Callable[[str], str]:
    """`url("dms")`: of the server."""
    return lambda protocol: "{}://{}:{}".format(protocol, *clients_server.address(protocol))


@pytest.fixture
def proxy_to(clients_server: Server) -> Iterator[Callable[[str], CuttingProxy]]:
    """`proxy_to("dms")`: a proxy before that protocol's port."""
    made: list[CuttingProxy] = []

    def make(protocol: str) -> CuttingProxy:
        made.append(CuttingProxy(clients_server.address(protocol)))
        return made[-1]

    yield make
    for proxy in made:
        proxy.stop()
