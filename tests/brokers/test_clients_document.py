"""CLIENTS.md: each program in it runs as it stands against a server, and prints what stands below it.

A program that connects by `brokers.connect` also runs on asyncio.
"""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.server import Server

DOCUMENT = (Path(__file__).parents[2] / "brokers" / "CLIENTS.md").read_text()
PROGRAMS = re.findall(
    r"^##+ (.*?)\n.*?```python\n(.*?)```\n\n```text\n(.*?)```", DOCUMENT, re.DOTALL | re.MULTILINE
)
ON_ASYNCIO = [
    (
        name,
        text.replace("trio.run(main)", "asyncio.run(main())").replace("trio", "asyncio"),
        said,
    )
    for name, text, said in PROGRAMS
    if "brokers.connect(" in text
]
PORTLESS = "brokers.testing"
PROTOCOLS = {"9090": "dms", "8080": "logmq", "7070": "pubsub", "8000": "kqmsgq", "5672": "dmp"}


def test_every_program_is_run() -> None:
    assert len(PROGRAMS) == DOCUMENT.count("```python") == 11
    assert not any("trio" in program for _, program, _ in ON_ASYNCIO)


@pytest.mark.parametrize(
    ("program", "printed"),
    [each[1:] for each in PROGRAMS + ON_ASYNCIO],
    ids=[each[0] for each in PROGRAMS] + [f"{each[0]}, on asyncio" for each in ON_ASYNCIO],
)
def test_a_program_prints_what_stands_below_it(program: str, printed: str, shared_server: Server) -> None:
    def ours(port: re.Match[str]) -> str:
        return f"PORT = {shared_server.address(PROTOCOLS[port[1]])[1]}"

    there, times = re.subn(r"^PORT = (\d+)$", ours, program, flags=re.MULTILINE)
    assert times == (PORTLESS not in program)
    done = subprocess.run(
        [sys.executable, "-c", there], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.stdout, done.stderr) == (printed, "")
