"""`make trial-flood`: idle subscribers by the thousand, a flood of datagrams, and another protocol is asked.

PROMISES, UDP flood: with 250,000 datagrams a second offered, TCP has a p99 under 50 ms, memory stays flat,
and what the system had to drop is counted. The server is the real one, in its own process, with pub/sub and
LogMQ. As many subscribers as the limit of files allows are connected and subscribed; what the flood brings is
for one more, which reads. LogMQ is asked on four connections, one request at a time on each: PING, PRODUCE.
"""

import argparse
import contextlib
import resource
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import attrs

from brokers.bench.load import Measured, Talk, lines, run
from brokers.commands import control
from brokers.errors import Failure
from pubsub.wire import Command, Kind, datagram, encode_command, encode_id
from shared.process_limits import raise_file_limit
from tests.bench.datagrams import flood
from tests.support.server import counter, until
from tests.trials import outcomes
from tests.trials.serving import TrialServer

_FILES_KEPT_BACK = 1000
"""Of the limit of files: the server keeps 500 back, and has some of its own."""
_MIB = 1024 * 1024
_P99_MILLISECONDS_MAX = 50.0
_PATIENCE_SECONDS = 60.0
_LAST_WORDS_SECONDS = 30.0
"""For a server that is ending, with thousands of connections to close."""
_DATAGRAM = datagram(b"flood/1", Kind.STRING, b"x" * 100)


@attrs.frozen
class Outcome:
    """What was seen.

    `asked`, `offered`: datagrams a second; a machine that is busy or small sends fewer than it is asked to.
    `dropped`: by the system, because the server's buffer was full; `dropped_before`: by the machine, whatever
    for, before it came to any buffer. `grown_bytes`: of the server's memory, from before the flood to its
    highest in it.
    """

    subscribers: int
    asked: float
    offered: float
    seconds: float
    sent: int
    taken_in: int
    dropped: int
    dropped_before: int
    before: Measured
    during: Measured
    subscribed_bytes: int
    grown_bytes: int

    def faults(self, grown_bytes_max: int) -> list[str]:
        found = []
        if self.during.p99_us > _P99_MILLISECONDS_MAX * 1000:
            found.append(
                f"p99 of {self.during.p99_us / 1000:.1f} ms, {_P99_MILLISECONDS_MAX:.0f} are promised"
            )
        if self.grown_bytes > grown_bytes_max:
            found.append(f"memory grew by {self.grown_bytes:,} bytes, {grown_bytes_max:,} are allowed for")
        lost = self.sent - self.taken_in - self.dropped
        if not 0 <= lost <= self.dropped_before:
            found.append(f"{lost:,} datagrams were neither taken in nor counted as dropped")
        return found

    def lines(self) -> list[str]:
        return [
            f"{self.subscribers:,} subscribers; {self.sent:,} datagrams in {self.seconds:.1f} s "
            f"({self.offered:,.0f} a second, {self.asked:,.0f} asked for)",
            f"{self.taken_in:,} taken in, {self.dropped:,} dropped by the system "
            f"({100 * self.dropped / max(self.sent, 1):.1f} %), {self.dropped_before:,} packets of all kinds "
            "dropped by the machine before that",
            f"LogMQ, {len(_REQUESTS)} connections: median {self.during.median_us / 1000:.2f} ms, p99 "
            f"{self.during.p99_us / 1000:.2f} ms; before the flood {self.before.median_us / 1000:.2f} and "
            f"{self.before.p99_us / 1000:.2f} ms",
            f"memory {self.subscribed_bytes / _MIB:.0f} MiB with the subscribers, "
            f"at most {self.grown_bytes / _MIB:.1f} MiB more in the flood",
        ]


_REQUESTS = (
    b"PING\n",
    b"PING\n",
    b"PRODUCE flood " + b"y" * 100 + b"\n",
    b"PRODUCE flood " + b"z" * 100 + b"\n",
)


class ServerEndedError(Exception):
    """The server ended, or closed a connection, in the middle of it; the text is what it said."""


class NoProgressError(Exception):
    """What is to happen does not."""


def trial(place: Path, subscribers: int, rate: float, seconds: float) -> Outcome:
    """One flood on a fresh server, whose folder is `place`. Raises ServerEndedError."""
    (place / "brokers.toml").write_text('[logmq]\ndurability = "interval:50ms"\n')
    arguments = ("--enable", "pubsub,logmq", "--config", str(place / "brokers.toml"))
    server = TrialServer(place, place / "data", *arguments)
    with server:
        try:
            return _flooded(server, subscribers, rate, seconds)
        except (ConnectionError, Failure, NoProgressError) as error:
            with contextlib.suppress(subprocess.TimeoutExpired):
                code = server.wait(_LAST_WORDS_SECONDS)
                raise ServerEndedError(f"{error}; the server ended with {code}:\n{_tail(server)}") from error
            raise ServerEndedError(f"{error}; the server still runs:\n{_tail(server)}") from error


@contextmanager
def _subscribed(address: tuple[str, int]) -> Iterator[None]:
    """A subscriber of everything, that reads and looks no further."""
    with socket.create_connection(address) as sock:
        sock.sendall(encode_id(b"intake") + encode_command(Command.SUBSCRIBE, b"*"))

        def read() -> None:
            room = bytearray(1 << 20)
            with contextlib.suppress(OSError):
                while sock.recv_into(room, 0, socket.MSG_TRUNC):
                    pass

        reader = threading.Thread(target=read)
        reader.start()
        try:
            yield
        finally:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
            reader.join()


def _flooded(server: TrialServer, subscribers: int, rate: float, seconds: float) -> Outcome:
    address, data = server.address("pubsub"), server.data
    with _idle(address, subscribers), _subscribed(address):
        _wait_for(data, "pubsub_connected", subscribers + 1)
        _wait_for(data, "pubsub_subscriptions", subscribers + 1)
        before = _ask(server.address("logmq"), seconds / 2)
        dropped_before = _machine_drops()
        with _memory(server.pid) as seen:
            with flood(address, _DATAGRAM, rate=rate, seconds=seconds + 1) as ended:
                during = _ask(server.address("logmq"), seconds)
                sent = ended()
            until(lambda: _came(data) == sent.datagrams or not _moves(data))
        taken_in = counter(data, "net_datagrams_in_total")
        dropped = counter(data, "net_datagrams_kernel_drops_total")
    return Outcome(
        subscribers,
        rate,
        sent.rate,
        sent.seconds,
        sent.datagrams,
        taken_in,
        dropped,
        _machine_drops() - dropped_before,
        before,
        during,
        seen[0],
        max(seen) - seen[0],
    )


def _ask(address: tuple[str, int], seconds: float) -> Measured:
    """Each request on a connection of its own, again and again, one at a time."""
    return run(address, [Talk(request.__mul__, lines()) for request in _REQUESTS], seconds)


def _wait_for(data: Path, name: str, count: int) -> None:
    """A busy machine may take minutes; but not without getting on. Raises NoProgressError."""
    seen, since = -1, time.monotonic()
    while (now := counter(data, name)) != count:
        if now != seen:
            seen, since = now, time.monotonic()
        elif time.monotonic() > since + _PATIENCE_SECONDS:
            said = str(control.request(data, "GET", "/metrics")).splitlines()
            closed = [line for line in said if line.startswith("brokers_net_closed_total")]
            raise NoProgressError("\n".join((f"{name} stays at {now:,} of {count:,}", *closed)))
        time.sleep(0.1)


def _machine_drops() -> int:
    """Packets that found the queue of a processor full, before they were anybody's: also on loopback."""
    lines_ = Path("/proc/net/softnet_stat").read_text().splitlines()
    return sum(int(line.split()[1], 16) for line in lines_)


def _tail(server: TrialServer) -> str:
    """What it said, but for who came and went."""
    told = [line for line in server.said.splitlines() if "Client " not in line and "New client " not in line]
    return "\n".join(told[-60:])


def _came(data: Path) -> int:
    return counter(data, "net_datagrams_in_total") + counter(data, "net_datagrams_kernel_drops_total")


def _moves(data: Path) -> bool:
    """Datagrams still come in, or wait to."""
    before = _came(data)
    threading.Event().wait(0.5)
    return _came(data) != before


@contextmanager
def _idle(address: tuple[str, int], count: int) -> Iterator[None]:
    """So many subscribers, each with an id and a subscription of its own, for nothing that comes."""
    sockets: list[socket.socket] = []
    try:
        for number in range(count):
            sock = socket.create_connection(address)
            sockets.append(sock)
            topic = b"idle/%d/+" % number
            sock.sendall(encode_id(b"i%d" % number) + encode_command(Command.SUBSCRIBE, topic))
        yield
    finally:
        for sock in sockets:
            sock.close()


@contextmanager
def _memory(pid: int) -> Iterator[list[int]]:
    """The process's resident bytes: now, and every tenth of a second."""
    over = threading.Event()
    seen = [_resident_bytes(pid)]

    def look() -> None:
        while not over.wait(0.1):
            seen.append(_resident_bytes(pid))

    looking = threading.Thread(target=look)
    looking.start()
    try:
        yield seen
    finally:
        over.set()
        looking.join()
        seen.append(_resident_bytes(pid))


def _resident_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * resource.getpagesize()


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.trials.flood", description=__doc__.splitlines()[0])
    parser.add_argument("--subscribers", type=int, default=19_000, help="fewer where files are limited")
    parser.add_argument("--rate", type=float, default=250_000, help="datagrams a second")
    parser.add_argument("--seconds", type=float, default=10.0, help="of the flood")
    parser.add_argument("--grown-mib", type=int, default=128, help="what memory may grow by")
    options = parser.parse_args(arguments)
    raise_file_limit()
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    subscribers = max(min(options.subscribers, files - _FILES_KEPT_BACK), 1)
    with outcomes.passing_place("flood") as place:
        try:
            outcome = trial(place, subscribers, options.rate, options.seconds)
        except ServerEndedError as error:
            return outcomes.told([str(error)])
    print(*outcome.lines(), sep="\n")
    return outcomes.told(outcome.faults(options.grown_mib * _MIB))


if __name__ == "__main__":
    sys.exit(main())
