"""CLIENTS.md and jobs.md: each program runs as it stands against a server, and prints what stands below it.

A program that connects by `brokers.connect` also runs on asyncio.
"""

import importlib.util
import re
from pathlib import Path

import pytest

from tests.support.server import Server, run

FOLDER = Path(__file__).parents[2] / "brokers"
DOCUMENTS = [(FOLDER / name).read_text() for name in ("CLIENTS.md", "docs/jobs.md")]
PROGRAMS = [
    found
    for document in DOCUMENTS
    for found in re.findall(
        r"^##+ ([^\n]*)\n(?:(?!^##).)*?```python\n(.*?)```\n\n```text\n(.*?)```",
        document,
        re.DOTALL | re.MULTILINE,
    )
]
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
NEEDS_CELERY = pytest.mark.skipif(importlib.util.find_spec("celery") is None, reason="needs celery")
PROTOCOLS = {"9090": "dms", "8080": "logmq", "7070": "pubsub", "8000": "kqmsgq", "5672": "dmp"}


def test_every_program_is_run() -> None:
    assert len(PROGRAMS) == sum(document.count("```python") for document in DOCUMENTS) == 18
    assert not any("trio" in program for _, program, _ in ON_ASYNCIO)


@pytest.mark.parametrize(
    ("program", "printed"),
    [
        pytest.param(program, printed, id=name, marks=[NEEDS_CELERY] if "celery" in program else [])
        for name, program, printed in PROGRAMS
        + [(f"{name}, on asyncio", program, printed) for name, program, printed in ON_ASYNCIO]
    ],
)
def test_a_program_prints_what_stands_below_it(program: str, printed: str, shared_server: Server) -> None:
    def ours(port: re.Match[str]) -> str:
        return f"PORT = {shared_server.address(PROTOCOLS[port[1]])[1]}"

    there, times = re.subn(r"^PORT = (\d+)$", ours, program, flags=re.MULTILINE)
    assert times == (PORTLESS not in program)
    done = run("-c", there)
    assert (done.stdout, done.stderr) == (printed, "")
