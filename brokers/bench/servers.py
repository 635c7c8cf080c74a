"""A server of ours to load: a process of its own on a free port."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from time import monotonic, sleep

from brokers.errors import Failure

START_SECONDS = 60.0


@contextmanager
def serving(
    folder: Path, protocol: str, environ: Mapping[str, str] | None = None, python: str = sys.executable
) -> Iterator[Mapping[str, tuple[str, int]]]:
    """`brokers serve` with one protocol, or several with commas; `environ`: settings. Where it is, by the
    names of its endpoints.

    Its data is in `data` of `folder`, which is there. `python`: that of another environment serves what is
    installed in it.
    """
    ready, said = folder / "ready.json", folder / "server.log"
    clean = {name: value for name, value in os.environ.items() if not name.startswith("BROKERS_")}
    protocols = protocol.split(",")
    command = [python, "-P", "-m", "brokers", "serve", "--enable", protocol]
    command += [word for each in protocols for word in ("--port", f"{each}=0")]
    with (
        said.open("wb") as log,
        subprocess.Popen(
            [*command, "--data-dir", str(folder / "data"), "--ready-file", str(ready)],
            stdin=subprocess.DEVNULL,
            stderr=log,
            env={**clean, **(environ or {})},
        ) as process,
    ):
        try:
            wait_until(ready.exists, process, said)
            bound = json.loads(ready.read_text())["addresses"]
            yield {each["endpoint"]: (each["host"], each["port"]) for each in bound}
        finally:
            process.send_signal(signal.SIGTERM)


def wait_until(ready: Callable[[], bool], process: "subprocess.Popen[bytes]", said: Path | None) -> None:
    deadline = monotonic() + START_SECONDS
    while not ready():
        if process.poll() is not None or monotonic() > deadline:
            why = said.read_text(errors="replace").strip() if said is not None else "it did not start"
            raise Failure(f"the server that was to be measured: {why}")
        sleep(0.02)
