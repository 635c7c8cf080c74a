"""`make trial-opening`: how soon a server is ready after `kill -9`, with a long log and with many topics.

A log of 10 GiB opens in 2 s, 10,000 topics in 5 s. Those are killed once amid the second in which their files
are behind: only the journal has them. The seconds count from the command to its line `ready`. What was
acknowledged last is asked for.
"""

import os
import socket
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.support.server import Server
from tests.trials import outcomes

MESSAGE_BYTES = 1 << 20
LOG_SECONDS = 2.0
TOPICS_SECONDS = 5.0
AT_ONCE = 16


def filled(address: tuple[str, int], requests: Iterator[bytes]) -> bytes:
    """Send requests, `AT_ONCE` at a time, each answered by a line; the last line."""
    last = b""
    with socket.create_connection(address) as connection, connection.makefile("rb") as answers:
        waiting = 0
        for request in requests:
            connection.sendall(request)
            waiting += 1
            if waiting == AT_ONCE:
                last, waiting = answers.readline(), waiting - 1
        for _ in range(waiting):
            last = answers.readline()
    return last


@contextmanager
def opened(server: Server, seconds: float, what: str, faults: list[str]) -> Iterator[tuple[str, int]]:
    """Kill and start it; the address of LogMQ."""
    server.kill()
    server.ready_file.unlink()
    begun = time.perf_counter()
    server.start()
    took = time.perf_counter() - begun
    fields = Path(f"/proc/{server.pid}/stat").read_text().rpartition(")")[2].split()
    used = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    print(f"{what}: ready in {took:.2f} s, {used:.2f} of processor; {seconds:g} are promised", flush=True)
    if took > seconds:
        faults.append(f"{what}: {took:.2f} s")
    yield server.address("logmq")


def trial(place: Path, gibibytes: int, topics: int) -> list[str]:
    faults: list[str] = []
    (place / "brokers.toml").write_text(f"[logmq]\nmessage_bytes_max = '1MiB'\ntopics_max = {topics + 10}\n")
    config = ("--config", str(place / "brokers.toml"), "--enable", "logmq")
    body = b"x" * MESSAGE_BYTES
    request = b"APPEND long %d\n%b" % (len(body), body)
    with Server(place, *config, prefix=("env",)) as server:
        last = filled(server.address("logmq"), (request for _ in range(gibibytes * 1024)))
        with opened(server, LOG_SECONDS, f"a log of {gibibytes} GiB", faults) as address:
            found = filled(address, iter([b"OFFSETS long\n"]))
            if found != b"OFFSETS 0 %d\n" % (int(last.split()[1]) + 4 + MESSAGE_BYTES):
                faults.append(f"the long log: {last!r} was acknowledged, {found!r} is there")
        filled(server.address("logmq"), iter([b"DELETE long\n"]))
        for name, lines in (("new", 1), ("again", 2)):
            filled(server.address("logmq"), (b"PRODUCE topic-%d message\n" % n for n in range(topics)))
            with opened(server, TOPICS_SECONDS, f"{topics:,} topics, written {name}", faults) as address:
                for number in (0, topics - 1):
                    found = filled(address, iter([b"OFFSETS topic-%d\n" % number]))
                    if found != b"OFFSETS 0 %d\n" % (lines * 11):
                        faults.append(f"topic {number}: {found!r}")
    return faults


def main(arguments: Sequence[str] | None = None) -> int:
    parser = outcomes.parser("opening", __doc__)
    parser.add_argument("--gibibytes", type=int, default=10, help="of the long log")
    parser.add_argument("--topics", type=int, default=10_000)
    options = parser.parse_args(arguments)
    return outcomes.judged(
        "opening", options, lambda place, _: trial(place, options.gibibytes, options.topics)
    )


if __name__ == "__main__":
    sys.exit(main())
