from functools import partial
from pathlib import Path

import pytest

from tests.shared.net.served import Certificates, Serve, make_certificates, serving


@pytest.fixture(scope="session")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    folder: Path = tmp_path_factory.mktemp("certificates")
    return make_certificates(folder)


@pytest.fixture
def serve(request: pytest.FixtureRequest, certificates: Certificates) -> Serve:
    """`serving` over a kind of transport; see `everywhere`."""
    return partial(serving, request.param, certificates=certificates)
