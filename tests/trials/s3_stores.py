"""Stores that speak S3, as processes on this machine: SeaweedFS, and rclone, which knows no conditions."""

import json
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

KEY, SECRET = "trial", "trialtrialtrial"
BUCKET = "trial"
_START_SECONDS = 90.0


def tool(name: str) -> Path | None:
    """A program that was installed beside Python; None where it was not."""
    path = Path(sys.executable).parent / name
    return path if path.exists() else None


def settings_lines(endpoint: str, credentials: Path) -> list[str]:
    """How a server reaches a store, in TOML. Writes the file of credentials."""
    credentials.write_text(f'access_key_id = "{KEY}"\nsecret_access_key = "{SECRET}"\n')
    return [f'endpoint = "{endpoint}"', 'region = "us-east-1"', f'credentials = "{credentials}"']


@contextmanager
def seaweedfs(program: Path, folder: Path) -> Iterator[tuple[str, int]]:
    """Serve a store; where it listens."""
    folder.mkdir()
    identity = {
        "name": "trial",
        "credentials": [{"accessKey": KEY, "secretKey": SECRET}],
        "actions": ["Admin", "Read", "List", "Write"],
    }
    (folder / "s3.json").write_text(json.dumps({"identities": [identity]}))
    parts = ("master", "volume", "filer", "s3")
    ports = iter(_free_ports(2 * len(parts)))
    options = [f"-{part}.port{kind}={next(ports)}" for part in parts for kind in ("", ".grpc")]
    port = int(options[-2].partition("=")[2])
    words = [
        *(str(program), "server", f"-dir={folder}", "-ip=127.0.0.1", "-ip.bind=127.0.0.1"),
        *("-filer", "-s3", f"-s3.config={folder / 's3.json'}", "-s3.port.iceberg=0", "-s3.port.lance=0"),
        *("-master.volumeSizeLimitMB=64", "-volume.max=0", *options),
    ]
    with _serving(words, folder, port):
        yield "127.0.0.1", port


@contextmanager
def rclone(program: Path, folder: Path) -> Iterator[tuple[str, int]]:
    """Serve a store that overwrites what it was to make only where there is nothing."""
    (folder / BUCKET).mkdir(parents=True)
    (port,) = _free_ports(1)
    words = [str(program), "serve", "s3", str(folder), "--addr", f"127.0.0.1:{port}"]
    with _serving([*words, "--auth-key", f"{KEY},{SECRET}"], folder, port):
        yield "127.0.0.1", port


@contextmanager
def _serving(words: Sequence[str], folder: Path, port: int) -> Iterator[None]:
    with open(folder.parent / f"{folder.name}.log", "wb") as log:
        process = subprocess.Popen(words, cwd=folder, stdout=log, stderr=log)
    try:
        give_up = time.monotonic() + _START_SECONDS
        while not _answers(port):
            assert process.poll() is None, f"{words[0]} has ended; see {log.name}"
            assert time.monotonic() < give_up, f"{words[0]} does not answer; see {log.name}"
            time.sleep(0.1)
        yield
    finally:
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(10)
        process.kill()
        process.wait()


def _answers(port: int) -> bool:
    try:
        urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=5).close()
    except urllib.error.HTTPError:
        return True  # it wants to know who asks
    except OSError:
        return False
    return True


def _free_ports(count: int) -> list[int]:
    """Ports that were free a moment ago."""
    sockets = [socket.socket() for _ in range(count)]
    for each in sockets:
        each.bind(("127.0.0.1", 0))
    found = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return found
