"""Servers to measure, each a process of its own on a free port: ours, and others' for comparison."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from time import monotonic, sleep

from brokers.bench.load import SAID_FIRST, Address, FanOut, stamped_body
from brokers.bench.login import said_first, server_environ
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
    asked = (python, "-P", "-c", "from brokers.settings import AdminSettings")
    if python == sys.executable or not subprocess.run(asked, capture_output=True, check=False).returncode:
        clean["BROKERS_ADMIN_ENABLED"] = (
            "false"  # what is measured is the protocol; older ones do not know it
        )
    protocols = protocol.split(",")
    command = [python, "-P", "-m", "brokers", "serve", "--enable", protocol]
    command += [word for each in protocols for word in ("--port", f"{each}=0")]
    with (
        said.open("wb") as log,
        subprocess.Popen(
            [*command, "--data-dir", str(folder / "data"), "--ready-file", str(ready)],
            stdin=subprocess.DEVNULL,
            stderr=log,
            env={**clean, **server_environ(), **(environ or {})},
        ) as process,
    ):
        try:
            _until(ready.exists, process, said)
            bound = json.loads(ready.read_text())["addresses"]
            found = {each["endpoint"]: (each["host"], each["port"]) for each in bound}
            SAID_FIRST.update({found[each]: said_first(each) for each in protocols})
            yield found
        finally:
            process.send_signal(signal.SIGTERM)


Start = Callable[[Path, Address], AbstractContextManager[Address | None]]
"""Starts a server, given a folder for it and the address of the one that is measured; None where it is not
installed."""


def brokers_server(
    protocol: str, environ: Mapping[str, str] | None = None, python: str = sys.executable
) -> Start:
    """Starts our own with one protocol, as `serving` does."""

    @contextmanager
    def start(folder: Path, _: Address) -> Iterator[Address]:
        with serving(folder, protocol, environ, python) as bound:
            yield bound[protocol]

    return start


def same_server(_: Path, own: Address) -> AbstractContextManager[Address]:
    """The one that is measured, spoken to in another way."""
    return nullcontext(own)


Other = AbstractContextManager[Address | None]
"""Another broker that runs while it is measured; None where it is not installed."""


def redis_server(folder: Path, _: Address) -> Other:
    """Syncs each answer."""
    synced = ("--appendonly", "yes", "--appendfsync", "always", "--save", "", "--dir", str(folder))
    return _other("redis-server", lambda port: ("--port", str(port), "--bind", "127.0.0.1", *synced))


def redis_command(*words: bytes) -> bytes:
    """A command as redis takes it, and a message as it gives it."""
    return b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%b\r\n" % (len(word), word) for word in words)


def beanstalkd(_: Path, __: Address, *synced: str) -> Other:
    """In memory."""
    return _other("beanstalkd", lambda port: ("-l", "127.0.0.1", "-p", str(port), *synced))


def synced_beanstalkd(folder: Path, own: Address) -> Other:
    """Syncs each answer."""
    return beanstalkd(folder, own, "-b", str(folder), "-f", "0")


def nats_server(_: Path, __: Address) -> Other:
    """Core only: in memory, at most once."""
    return _other("nats-server", lambda port: ("-a", "127.0.0.1", "-p", str(port), "-l", os.devnull))


def nats_fan_out(names: Sequence[bytes], size: int, *, share: int = 1, groups: int = 1) -> FanOut:
    """Names of one length, that differ in the last three bytes: these are the subscriptions' ids."""
    hello = b'CONNECT {"verbose":false,"pedantic":false}\r\n'
    body, stamped = stamped_body(size)
    step = share * groups
    return FanOut(
        hello_producer=lambda producer: hello,
        hello_consumer=lambda consumer: (
            hello + b"".join(b"SUB %b %b\r\n" % (name, name[-3:]) for name in names[consumer % step :: step])
        ),
        message=lambda queue, stamp: b"PUB %b %d\r\n%b\r\n" % (names[queue], size, body(stamp)),
        delivered_bytes=len(b"MSG %b %b %d\r\n" % (names[0], names[0][-3:], size)) + size + 2,
        stamp_at=size + 2 if stamped else 0,
        queues=len(names) // groups,
        share=share,
        groups=groups,
        aside=b"PING\r\n",
    )


def mosquitto(folder: Path, _: Address) -> Other:
    """In memory, set to drop nothing and to wait for nothing."""
    settings = folder / "mosquitto.conf"
    lines = "allow_anonymous true\npersistence false\nset_tcp_nodelay true\n"
    lines += "max_queued_messages 0\nmax_inflight_messages 0\n"

    def flags(port: int) -> Sequence[str]:
        settings.write_text(f"listener {port} 127.0.0.1\n{lines}")
        return "-c", str(settings)

    return _other("mosquitto", flags)


@contextmanager
def _other(name: str, flags: Callable[[int], Sequence[str]]) -> Iterator[Address | None]:
    command = shutil.which(name)
    if command is None:
        yield None
        return
    with (
        _kept_port() as port,
        subprocess.Popen(
            [command, *flags(port)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,  # beanstalkd tells of each connection that ends
        ) as process,
    ):
        try:
            _until(lambda: _answers(("127.0.0.1", port)), process, None)
            yield ("127.0.0.1", port)
        finally:
            process.send_signal(signal.SIGKILL)


@contextmanager
def _kept_port() -> Iterator[int]:
    """A port of loopback that a server may listen on, and that nobody else is given meanwhile.

    It is bound and does not listen. That keeps it from who asks for any, not from who names it and reuses
    addresses, as servers do.
    """
    with socket.socket() as kept:
        kept.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        kept.bind(("127.0.0.1", 0))
        yield kept.getsockname()[1]


def _answers(address: tuple[str, int]) -> bool:
    try:
        socket.create_connection(address).close()
    except OSError:
        return False
    return True


def _until(ready: Callable[[], bool], process: "subprocess.Popen[bytes]", said: Path | None) -> None:
    deadline = monotonic() + START_SECONDS
    while not ready():
        if process.poll() is not None or monotonic() > deadline:
            why = said.read_text(errors="replace").strip() if said is not None else "it did not start"
            raise Failure(f"the server that was to be measured: {why}")
        sleep(0.02)
