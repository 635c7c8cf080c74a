"""Servers that ours are measured beside: how each is started, on a free port, and how it is loaded."""

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path

from brokers.bench.adapter import Load, Point, fan_out_load, request_load
from brokers.bench.cli import adapters_of
from brokers.bench.load import Address, FanOut, Talk, lines, repeated, stamped_body
from brokers.bench.pubsub import topics_of
from brokers.bench.servers import serving, wait_until

Start = Callable[[Path, Address], AbstractContextManager[Address | None]]
"""Starts a server, given a folder for it and the address of the one that is measured; None where it is not
installed."""


def brokers_server(
    protocol: str, environ: Mapping[str, str] | None = None, python: str = sys.executable
) -> Start:
    """Starts our own with one protocol, as `serving` does, and without an admin port if it knows that one."""
    asked = (python, "-P", "-c", "from brokers.settings.sections import AdminSettings")
    knows = not subprocess.run(asked, capture_output=True, check=False).returncode
    settings = {**(environ or {}), **({"BROKERS_ADMIN_ENABLED": "false"} if knows else {})}

    @contextmanager
    def start(folder: Path, _: Address) -> Iterator[Address]:
        with serving(folder, protocol, settings, python) as bound:
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


def beanstalkd(_: Path, __: Address) -> Other:
    """In memory."""
    return _other("beanstalkd", lambda port: ("-l", "127.0.0.1", "-p", str(port)))


def nats_server(_: Path, __: Address) -> Other:
    """Core only: in memory, at most once."""
    return _other("nats-server", lambda port: ("-a", "127.0.0.1", "-p", str(port), "-l", os.devnull))


def nats_fan_out(point: Point) -> FanOut:
    """Names differ in the last three bytes: these are the subscriptions' ids."""
    names, size, groups = point.name_list(), point.size, point.producers
    hello = b'CONNECT {"verbose":false,"pedantic":false}\r\n'
    body = stamped_body(size)
    return FanOut(
        hello_producer=lambda producer: hello,
        hello_consumer=lambda consumer: (
            hello
            + b"".join(b"SUB %b %b\r\n" % (name, name[-3:]) for name in names[consumer % groups :: groups])
        ),
        message=lambda queue, stamp: b"PUB %b %d\r\n%b\r\n" % (names[queue], size, body(stamp)),
        delivered_bytes=len(b"MSG %b %b %d\r\n" % (names[0], names[0][-3:], size)) + size + 2,
        stamp_at=size + 2,
        queues=len(names) // groups,
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
            wait_until(lambda: _answers(("127.0.0.1", port)), process, None)
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


def beanstalk_talk(size: int, window: int, tubes: Sequence[bytes] = (b"bench",)) -> Talk:
    """put, reserve, delete."""
    # By turns: what it syncs one by one would otherwise all come before the first answer.
    put = b"put 0 0 60 %d\r\n%b\r\nreserve\r\n" % (size, b"x" * size)
    unit = repeated([put] if len(tubes) == 1 else [b"use %b\r\n%b" % (tube, put) for tube in tubes])
    watched = b"".join(b"watch %b\r\n" % tube for tube in tubes)
    greeting = b"use %b\r\n%bignore default\r\n" % (tubes[0], watched)
    reserved = re.compile(rb"RESERVED (\d+) %d\r\nx{%d}\r\n" % (size, size))
    jobs: list[bytes] = []
    rest = b""

    def requests(count: int) -> bytes:
        deletes = [b"delete %b\r\n" % job for job in jobs]
        jobs.clear()
        return b"".join(deletes) + unit(count)

    def answers(data: bytes) -> int:
        nonlocal rest
        data = rest + data
        jobs.extend(reserved.findall(data))
        last = max(data.rfind(b"RESERVED"), 0)
        rest = data[last:] if reserved.match(data, last) is None else data[data.rfind(b"\n") + 1 :]
        return len(jobs)

    return Talk(requests, answers, window, greeting)


def redis_talk(size: int, window: int, lists: Sequence[bytes] = (b"bench",)) -> Talk:
    """RPUSH and LPOP."""
    push = repeated([redis_command(b"RPUSH", name, b"x" * size) for name in lists])
    pop = repeated([redis_command(b"LPOP", name) for name in lists])
    end = b"x\r\n"
    rest = b""

    def answers(data: bytes) -> int:
        nonlocal rest
        data = rest + data
        rest = next((end[:cut] for cut in (2, 1) if data.endswith(end[:cut])), b"")
        return data.count(end)

    return Talk(lambda count: push(count) + pop(count), answers, window)


def mqtt_fan_out(point: Point) -> FanOut:
    """MQTT 3.1.1, QoS 0."""
    topics, groups = topics_of(point), point.producers
    body = stamped_body(point.size)

    def hello(number: int) -> bytes:
        pattern = b"%03d/#" % (number % groups)
        return _mqtt(0x10, b"\0\4MQTT\4\2\0\0" + _text(b"b%d" % number)) + _mqtt(
            0x82, b"\0\1" + _text(pattern) + b"\0"
        )

    return FanOut(
        hello_producer=lambda producer: _mqtt(0x10, b"\0\4MQTT\4\2\0\0" + _text(b"publisher%d" % producer)),
        hello_consumer=hello,
        message=lambda queue, stamp: _mqtt(0x30, _text(topics[queue]) + body(stamp)),
        delivered_bytes=len(_mqtt(0x30, _text(topics[0]) + bytes(point.size))),
        stamp_at=point.size,
        queues=len(topics) // groups,
        groups=groups,
    )


def _mqtt(kind: int, body: bytes) -> bytes:
    """A packet; its length is in base 128, low digits first."""
    digits, rest = bytearray(), len(body)
    while rest > 127:
        digits.append(rest % 128 | 128)
        rest //= 128
    return bytes([kind, *digits, rest]) + body


def _text(text: bytes) -> bytes:
    return len(text).to_bytes(2, "big") + text


def xadd_talk(point: Point, client: int) -> Talk:
    """XADD, two lines an answer."""
    body = b"x" * point.size
    requests = [redis_command(b"XADD", stream, b"*", b"m", body) for stream in point.names_of(client)]
    return Talk(repeated(requests), lines(2), point.window)


def _at(talk: Callable[[int, int, Sequence[bytes]], Talk]) -> Load:
    return request_load(lambda point, client: talk(point.size, point.window, point.names_of(client)))


Peer = tuple[Start, Load]
"""How a server is started, and how it is loaded."""

PEERS: Mapping[tuple[str, str], Mapping[str, Peer]] = {
    ("logmq", "produce"): {"redis": (redis_server, request_load(xadd_talk))},
    ("dms", "memory"): {"beanstalkd": (beanstalkd, _at(beanstalk_talk))},
    ("dms", "synced"): {"redis lists": (redis_server, _at(redis_talk))},
    ("kqmsgq", "fan-out"): {"nats-server": (nats_server, fan_out_load(nats_fan_out))},
    ("pubsub", "fan-out"): {"mosquitto": (mosquitto, fan_out_load(mqtt_fan_out))},
    ("dmp", "direct"): {
        "basic": (same_server, adapters_of("dmp")["basic"].load),
        "nats-server": (nats_server, fan_out_load(nats_fan_out)),
    },
}
"""By protocol and mode."""
