"""A client in C that knows the specification alone, compiled here, against a real server."""

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support.server import Server

SOURCE = Path(__file__).parent / "spec_client.c"
MESSAGES = 400


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("there is no C compiler (cc) to build the client with")
    program = tmp_path_factory.mktemp("compiled") / "spec_client"
    flags = ("-std=gnu11", "-Wall", "-Wextra", "-Werror", "-O1", "-pthread")
    subprocess.run([compiler, *flags, "-o", str(program), str(SOURCE)], check=True)
    return program


@pytest.mark.parametrize("persist", [(), ("-P",)])
def test_a_client_in_c_that_knows_only_the_specification(
    program: Path, tmp_path: Path, persist: tuple[str, ...]
) -> None:
    with Server(tmp_path, "-p", "0", "-t", "60", *persist, command=("dms", "serve")) as server:
        port = str(server.address("dms")[1])
        done = subprocess.run(
            [str(program), port, "orders", str(MESSAGES)], capture_output=True, text=True, timeout=120
        )
        assert (done.returncode, done.stderr) == (0, "")
        assert server.stop() == 0
