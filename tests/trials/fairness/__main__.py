"""`make trial-fairness`: no client, at any of the documented limits, keeps all others waiting.

Each operation runs against a server of its own, in its own process. What is measured is the processor's time
of the longest step of a task, so a busy machine changes little. Above 40 ms the trial fails: the promise is
20 ms, and a processor that others share takes up to twice as long. What the operation needs before (messages
that wait, bindings) does not count.
"""

import argparse
import json
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Self

import trio
from pamqp import base, body, commands, frame, header

from brokers import control, logs, plugins
from brokers.collector import Collector
from brokers.config import load
from brokers.host import Host
from dmp import wire as dmp
from dmp.amqp.wire import Direct, encode
from kqmsgq import wire as kqmsgq
from pubsub import wire as pubsub
from pubsub.wire import Command, Kind
from shared.process_limits import raise_file_limit
from tests.support import dms_spec as dms
from tests.support.dms_spec import SpecClient

SECONDS_MAX = 0.04
_PATIENCE_SECONDS = 120.0
_LIMITS = """
[serve]
durability = "interval:50ms"
[dms]
clients_max = 10000
depth = 1000000
queues_max = 60000
[net]
connections_per_address_max = 20000
"""

Address = tuple[str, int]


class StepWatch(trio.abc.Instrument):
    """The longest step of a task since `begin`, in seconds of the processor, and which task that was."""

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        self._began = time.thread_time()
        self.longest_seconds, self.longest_task = 0.0, ""

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self._began = time.thread_time()

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        seconds = time.thread_time() - self._began
        if seconds > self.longest_seconds:
            self.longest_seconds, self.longest_task = seconds, task.name


class Served:
    """A server of its own. `begin` forgets what was before, `longest` tells the longest since then."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        command = [sys.executable, "-m", "tests.trials.fairness", "--serve", str(folder)]
        with (folder / "server.log").open("wb") as log:  # thousands of lines of the audit log, too
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True
            )
        self._last: Sequence[Any] = ()
        self._addresses: dict[str, Address] = {name: tuple(address) for name, address in self._told().items()}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()

    def address(self, endpoint: str) -> Address:
        return self._addresses[endpoint]

    def ask(self, method: str, path: str, body: Any = None) -> Any:
        """By its control socket."""
        return control.request(self.folder / "data", method, path, body)

    def begin(self) -> None:
        self._say("begin")

    def longest(self) -> tuple[float, str]:
        if not self._last:
            self._last = self._say("longest")
        seconds, task = self._last
        return seconds, task

    @contextmanager
    def paused(self) -> Iterator[None]:
        """It finds all at once what is done to it within."""
        self._process.send_signal(signal.SIGSTOP)
        yield
        self._process.send_signal(signal.SIGCONT)

    def stop(self) -> None:
        """Until it has ended, as it does when it is asked to; `longest` tells of that, too."""
        self._last = self._say("stop")

    def _say(self, word: str) -> Any:
        assert self._process.stdin is not None
        self._process.stdin.write(word + "\n")
        self._process.stdin.flush()
        return self._told()

    def _told(self) -> Any:
        assert self._process.stdout is not None
        return json.loads(self._process.stdout.readline())


def _serve(folder: Path) -> None:
    """The server's side: obey lines of standard input."""
    raise_file_limit()
    (folder / "brokers.toml").write_text(_LIMITS)
    working, _ = plugins.load_working()
    environ = {f"BROKERS_{plugin.name.upper()}_PORT": "0" for plugin in working}
    environ["BROKERS_SERVE_DATA_DIR"] = str(folder / "data")
    read = partial(load, working, file=folder / "brokers.toml", environ=environ)
    config = read()
    log = logs.configure("error", "text")
    watch = StepWatch()
    collector = Collector()

    async def run() -> None:
        host = Host(config.enabled(working), config, log, reread=read)
        async with trio.open_nursery() as lines, trio.open_nursery() as nursery:
            bound = await nursery.start(host.run)
            collector.install()
            _tell({each.endpoint: (each.host, each.port) for each in bound})
            lines.start_soon(obey, host)
        _tell((watch.longest_seconds, watch.longest_task))

    async def obey(host: Host) -> None:
        async for line in _lines():
            if line == "stop":
                host.stop()
                return
            if line == "begin":
                watch.begin()
            _tell((watch.longest_seconds, watch.longest_task))

    trio.run(run, instruments=[watch])


async def _lines() -> AsyncIterator[str]:
    while line := await trio.to_thread.run_sync(sys.stdin.readline, abandon_on_cancel=True):
        yield line.strip()


def _tell(value: object) -> None:
    print(json.dumps(value), flush=True)


# -- What speaks to it: blocking sockets, one thread.


class Peer:
    """A connection with a buffer. `until` reads until that holds something."""

    def __init__(self, address: Address, greeting: bytes = b"") -> None:
        self.socket = socket.create_connection(address, timeout=_PATIENCE_SECONDS)
        self.data = bytearray()
        self.socket.sendall(greeting)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def until(self, done: Callable[[bytearray], bool]) -> None:
        while not done(self.data):
            received = self.socket.recv(1 << 20)
            assert received, f"closed behind {bytes(self.data[-200:])!r}"
            self.data += received

    def read(self, size: int) -> None:
        self.until(lambda data: len(data) >= size)


class Amqp(Peer):
    """A client of AMQP 0-9-1 on one channel."""

    def __init__(self, address: Address) -> None:
        super().__init__(address, b"AMQP\0\0\x09\x01")
        self.wait("Connection.Start")
        self.say(0, commands.Connection.StartOk({}, "PLAIN", "\0guest\0guest", "en_US"))
        tune = self.wait("Connection.Tune")
        self.say(0, commands.Connection.TuneOk(tune.channel_max, tune.frame_max, 0))
        self.say(0, commands.Connection.Open("/"))
        self.wait("Connection.OpenOk")
        self.call(commands.Channel.Open())

    def say(self, channel: int, *frames: base.Frame) -> None:
        self.socket.sendall(b"".join(frame.marshal(each, channel) for each in frames))

    def call(self, method: base.Frame, channel: int = 1) -> Any:
        """The answer, which says by its name that the method was taken."""
        self.say(channel, method)
        return self.wait(f"{method.name}Ok")

    def wait(self, name: str, count: int = 1) -> Any:
        """The next method of this name, or the last of so many; others are passed over."""
        while True:
            self.until(_has_frame)
            size = 8 + int.from_bytes(self.data[3:7], "big")
            _, _, value = frame.unmarshal(bytes(self.data[:size]))
            del self.data[:size]
            count -= value.name == name
            if not count:
                return value
            assert value.name not in ("Channel.Close", "Connection.Close"), value

    def publish(self, exchange: str, key: str, count: int, payload: bytes = b"x" * 100) -> None:
        """With confirms, and wait for them all."""
        self.call(commands.Confirm.Select())
        self.socket.sendall(_message(exchange, key, payload) * count)
        self.confirmed(count)

    def confirmed(self, count: int) -> None:
        tag = 0
        while tag < count:
            tag = self.wait("Basic.Ack").delivery_tag


def _has_frame(data: bytearray) -> bool:
    return len(data) >= 7 and len(data) >= 8 + int.from_bytes(data[3:7], "big")


def _message(exchange: str, key: str, payload: bytes, properties: Any = None) -> bytes:
    return (
        frame.marshal(commands.Basic.Publish(exchange=exchange, routing_key=key), 1)
        + frame.marshal(header.ContentHeader(0, len(payload), properties or commands.Basic.Properties()), 1)
        + frame.marshal(body.ContentBody(payload), 1)
    )


def _ping(served: Served) -> None:
    """Everything that was to be done on the loop has begun, at least."""
    with Peer(served.address("logmq"), b"PING\n") as peer:
        peer.until(lambda data: b"PONG\n" in data)


def _until(check: Callable[[], bool]) -> None:
    ends = time.monotonic() + _PATIENCE_SECONDS
    while not check():
        assert time.monotonic() < ends, "it does not come"
        time.sleep(0.02)


# -- The operations. Each gets a fresh server, says `begin` when all is ready, and returns when it is over.


def _deep(number: int) -> bytes:
    """A pattern as deep as a topic may be, with as many wildcards."""
    return b"%03d/" % number + b"/".join([b"+"] * 23)


def _subscriber(served: Served, name: bytes, topics: Sequence[bytes], command: Command) -> Peer:
    commands_ = b"".join(pubsub.encode_command(command, topic) for topic in topics)
    peer = Peer(served.address("pubsub"), pubsub.encode_id(name) + commands_)
    last = b"joined/" + name
    peer.socket.sendall(pubsub.encode_command(Command.SUBSCRIBE, last))
    _datagram_until(served, last, lambda: _received(peer) > 0)
    return peer


def _received(peer: Peer) -> int:
    peer.socket.settimeout(0.05)
    try:
        peer.data += peer.socket.recv(1 << 20)
    except TimeoutError:
        pass
    finally:
        peer.socket.settimeout(_PATIENCE_SECONDS)
    return len(peer.data) // pubsub.FRAME_BYTES


def _sender(served: Served) -> socket.socket:
    sender = socket.socket(type=socket.SOCK_DGRAM)
    sender.connect(served.address("pubsub-udp"))
    return sender


def _datagram_until(served: Served, topic: bytes, done: Callable[[], bool]) -> None:
    with _sender(served) as sender:
        _until(lambda: (sender.send(pubsub.datagram(topic, Kind.STRING, b"x\0")) and done()) or done())


def pubsub_a_session_of_1000_patterns_comes_and_goes(served: Served) -> None:
    patterns = [_deep(number) for number in range(249)] + [b"plain/%d" % number for number in range(749)]
    first = _subscriber(served, b"a", patterns, Command.SUBSCRIBE)
    served.begin()
    for _ in range(5):
        first.socket.close()
        first = _subscriber(served, b"a", (), Command.SUBSCRIBE)
    first.socket.sendall(b"".join(pubsub.encode_command(Command.UNSUBSCRIBE, each) for each in patterns))
    first.socket.sendall(pubsub.encode_command(Command.DISCONNECT))
    first.socket.close()
    _ping(served)


def pubsub_one_datagram_for_2000_subscribers(served: Served) -> None:
    with ExitStack() as stack:
        peers = [stack.enter_context(Peer(served.address("pubsub"))) for _ in range(2000)]
        for number, peer in enumerate(peers):
            wish = pubsub.encode_command(Command.SUBSCRIBE, b"*")
            peer.socket.sendall(pubsub.encode_id(b"%d" % number) + wish)
        _datagram_until(served, b"t", lambda: _received(peers[-1]) > 0)
        served.begin()
        with _sender(served) as sender:
            for _ in range(200):
                sender.send(pubsub.datagram(b"t", Kind.STRING, b"x\0"))
        peers[-1].read(pubsub.FRAME_BYTES * 50)
        _ping(served)


def pubsub_10000_kept_messages_for_one_who_comes_back(served: Served) -> None:
    _subscriber(served, b"a", [b"kept"], Command.KEEP).socket.close()
    with _sender(served) as sender:
        for _ in range(11_000):
            sender.send(pubsub.datagram(b"kept", Kind.STRING, b"x\0"))
            time.sleep(0.0001)
    _ping(served)
    served.begin()
    with Peer(served.address("pubsub"), pubsub.encode_id(b"a")) as peer:
        peer.read(pubsub.FRAME_BYTES * 9_000)
    _ping(served)


def _way(number: int) -> bytes:
    return b"/".join(b"+" if number >> level % 14 & 1 else b"a" for level in range(20))


def pubsub_a_datagram_under_10000_deep_patterns(served: Served) -> None:
    with ExitStack() as stack:
        for session in range(40):  # each level is `a` or `+`, in all ways
            patterns = [_way(session * 245 + number) for number in range(245)]
            stack.enter_context(_subscriber(served, b"s%d" % session, patterns, Command.SUBSCRIBE))
        served.begin()
        with _sender(served) as sender:
            for number in range(200):
                sender.send(pubsub.datagram(b"/".join([b"a"] * 20), Kind.STRING, b"%d\0" % number))
        _ping(served)
        _ping(served)


def kqmsgq_10000_subscriptions_come_and_go(served: Served) -> None:
    wishes = b"".join(kqmsgq.subscribe(b"queue-%d" % number) for number in range(10_000))
    served.begin()
    address = served.address("kqmsgq")
    with Peer(address, kqmsgq.CONSUME + wishes) as consumer, Peer(address, kqmsgq.PRODUCE) as producer:
        last = kqmsgq.message(b"queue-9999", b"x")
        _send_until_seen(producer, last, consumer)
    _ping(served)
    _ping(served)


def _send_until_seen(producer: Peer, data: bytes, consumer: Peer) -> None:
    def seen() -> bool:
        producer.socket.sendall(data)
        return _any(consumer)

    _until(seen)


def _any(peer: Peer) -> bool:
    peer.socket.settimeout(0.05)
    try:
        return bool(peer.socket.recv(1 << 16))
    except TimeoutError:
        return False
    finally:
        peer.socket.settimeout(_PATIENCE_SECONDS)


def kqmsgq_one_message_for_5000_consumers(served: Served) -> None:
    with ExitStack() as stack:
        address = served.address("kqmsgq")
        consumers = [
            stack.enter_context(Peer(address, kqmsgq.CONSUME + kqmsgq.subscribe(b"q"))) for _ in range(5000)
        ]
        producer = stack.enter_context(Peer(address, kqmsgq.PRODUCE))
        _send_until_seen(producer, kqmsgq.message(b"q", b"x"), consumers[-1])
        served.begin()
        producer.socket.sendall(kqmsgq.message(b"q", b"x" * 100) * 20)
        consumers[-1].read(len(kqmsgq.message(b"q", b"x" * 100)) * 20)
        _ping(served)


def kqmsgq_5000_consumers_are_there_when_the_server_stops(served: Served) -> None:
    with ExitStack() as stack:
        address = served.address("kqmsgq")
        for _ in range(5000):
            stack.enter_context(Peer(address, kqmsgq.CONSUME + kqmsgq.subscribe(b"q")))
        _ping(served)
        served.begin()
        served.stop()


def kqmsgq_a_consumer_that_does_not_read_two_million_small_messages(served: Served) -> None:
    address = served.address("kqmsgq")
    with (
        Peer(address, kqmsgq.CONSUME + kqmsgq.subscribe(b"q")) as _,
        Peer(address, kqmsgq.PRODUCE) as producer,
    ):
        _ping(served)
        served.begin()
        for _ in range(200):
            producer.socket.sendall(kqmsgq.message(b"q", b"x") * 10_000)
        _ping(served)


_QUEUES = [f"queue-{number:05}" for number in range(50_000)]


class Dms(Peer):
    """A client of DMS with its handshake made."""

    def __init__(self, address: Address) -> None:
        super().__init__(address, dms.frame(dms.HANDSHAKE, 1, b"fair"))
        self.replies(1)

    def ask(self, requests: Sequence[bytes]) -> list[dms.Reply]:
        """One reply each; some hundred on their way at a time."""
        found = []
        for at in range(0, len(requests), 500):
            self.socket.sendall(b"".join(requests[at : at + 500]))
            found += self.replies(len(requests[at : at + 500]))
        return found

    def create(self, *names: str, options: bytes = b"") -> None:
        self.ask([dms.frame(dms.CREATE, 1, dms.name(name, options)) for name in names])

    def produce(self, *names: str, body: bytes = b"x" * 100) -> None:
        self.ask([dms.frame(dms.PRODUCE, 1, dms.name(name, body)) for name in names])

    def replies(self, count: int) -> list[dms.Reply]:
        found = dms.parse(self.data)
        while len(found) < count:
            self.read(len(self.data) + 1)
            found += dms.parse(self.data)
        wrong = [reply for reply in found if reply[0] == dms.ERROR]
        assert not wrong, wrong[:3]
        return found


def _dms_filled(served: Served, count: int) -> None:
    with Dms(served.address("dms")) as client:
        client.create("q")
        client.produce(*["q"] * count)


def _consumes(count: int) -> list[bytes]:
    return [dms.frame(dms.CONSUME, number, dms.name("q")) for number in range(1, count + 1)]


def dms_100000_deliveries_come_back_with_their_connection(served: Served) -> None:
    _dms_filled(served, 100_000)
    client = Dms(served.address("dms"))
    client.ask(_consumes(100_000))
    served.begin()
    client.socket.close()
    with SpecClient(served.address("dms")) as other:
        _until(lambda: other.queues()["q"] >= 100_000)


def dms_100000_are_refused_in_one_go(served: Served) -> None:
    _dms_filled(served, 100_000)
    with Dms(served.address("dms")) as client:
        held = client.ask(_consumes(100_000))
        served.begin()
        client.socket.sendall(b"".join(dms.frame(dms.NACK, reply[2]) for reply in held))
        client.replies(100_000)


def dms_60000_of_2_kb_are_refused_in_one_go(served: Served) -> None:
    with Dms(served.address("dms")) as client:
        client.create("q")
        client.produce(*["q"] * 60_000, body=b"x" * 2000)
        held = client.ask(_consumes(60_000))
        served.begin()
        client.socket.sendall(b"".join(dms.frame(dms.NACK, reply[2]) for reply in held))
        client.replies(60_000)


def dms_100000_come_back_for_many_who_wait(served: Served) -> None:
    _dms_filled(served, 100_000)
    client = Dms(served.address("dms"))
    client.ask(_consumes(100_000))
    with ExitStack() as stack:
        others = [stack.enter_context(Dms(served.address("dms"))) for _ in range(25)]
        for other in others:
            other.socket.sendall(b"".join(_consumes(4000)))
        _ping(served)
        served.begin()
        client.socket.close()
        for other in others:
            other.replies(4000)


def dms_a_queue_with_20000_waits_is_deleted(served: Served) -> None:
    _dms_filled(served, 0)
    with ExitStack() as stack:
        others = [stack.enter_context(Dms(served.address("dms"))) for _ in range(5)]
        for other in others:
            for request in _consumes(4000):  # a read each, nearly
                other.socket.sendall(request)
        _until(lambda: served.ask("POST", "/dms/queues", {"queue": "q"})[0]["waiting"] == 20_000)
        served.begin()
        with SpecClient(served.address("dms")) as one:
            one.delete("q")
        for other in others:
            other.until(lambda data: data.count(b"was deleted") == 4000)


def dms_100000_die_and_become_dead_letters(served: Served) -> None:
    with Dms(served.address("dms")) as client:
        client.create("dead")
        client.create("q", options=b'{"ttl_ms": 4000, "dead_letter": "dead"}')
        client.produce(*["q"] * 100_000)
    served.begin()
    with SpecClient(served.address("dms")) as other:
        _until(lambda: other.queues()["dead"] >= 100_000)
    served.ask("POST", "/dms/redrive", {"queue": "dead"})


def dms_50000_queues_are_listed_while_others_come_and_go(served: Served) -> None:
    with Dms(served.address("dms")) as client:
        client.create(*(_QUEUES[n * 7919 % 50_000] for n in range(50_000)))
        client.ask([dms.frame(dms.LIST, 1)])
        served.begin()
        for number in range(20):
            name = dms.name(f"queue-{number}")
            client.ask([dms.frame(dms.CREATE, 1, name), dms.frame(dms.LIST, 1)])
            client.ask([dms.frame(dms.DELETE, 1, name), dms.frame(dms.LIST, 1)])


def dms_100000_messages_of_0_to_2_bytes(served: Served) -> None:
    with Dms(served.address("dms")) as client:
        client.create("q")
        served.begin()
        client.socket.sendall(
            b"".join(dms.frame(dms.PRODUCE, n, dms.name("q", b"x" * (n % 3))) for n in range(100_000))
        )
        client.replies(100_000)
        client.ask(_consumes(100_000))


def dms_50000_queues_are_deleted(served: Served) -> None:
    with Dms(served.address("dms")) as client:
        client.create(*_QUEUES)
        client.produce(*_QUEUES, body=b"x")
        served.begin()
        client.ask([dms.frame(dms.DELETE, 1, dms.name(name)) for name in _QUEUES])


def dms_a_purge_of_100000(served: Served) -> None:
    _dms_filled(served, 100_000)
    served.begin()
    served.ask("POST", "/dms/purge", {"queue": "q"})
    _ping(served)


def dms_a_million_are_purged_and_a_million_go_with_their_queue(served: Served) -> None:
    for verb in ("purge", "delete"):
        with Dms(served.address("dms")) as client:
            client.create(verb)
            client.produce(*[verb] * 1_000_000, body=b"x")
    served.begin()
    served.ask("POST", "/dms/purge", {"queue": "purge"})
    with SpecClient(served.address("dms")) as one:
        one.delete("delete")
    _ping(served)


def dms_50000_queues_are_written_and_checkpointed(served: Served) -> None:
    with Dms(served.address("dms")) as client:
        client.create(*_QUEUES)
        time.sleep(8)  # what was made is checkpointed
        served.begin()
        client.produce(*_QUEUES, body=b"x")
        time.sleep(8)


def _asked(peer: Peer, lines: Sequence[bytes]) -> None:
    """An answer of one line each; a thousand on their way at a time."""
    for at in range(0, len(lines), 1000):
        some = lines[at : at + 1000]
        peer.socket.sendall(b"".join(some))
        while peer.data.count(b"\n") < len(some):
            peer.read(len(peer.data) + 1)
        peer.data.clear()


def _topics(served: Served, count: int) -> Peer:
    peer = Peer(served.address("logmq"))
    _asked(peer, [b"PRODUCE topic-%d x\n" % number for number in range(count)])
    return peer


def logmq_20000_topics_are_made(served: Served) -> None:
    served.begin()
    _topics(served, 20_000).socket.close()


def logmq_20000_topics_are_listed(served: Served) -> None:
    with _topics(served, 20_000) as peer:
        served.begin()
        peer.socket.sendall(b"TOPICS\n")
        peer.until(lambda data: data.endswith(b"END\n"))


def logmq_20000_topics_are_written_and_checkpointed(served: Served) -> None:
    with _topics(served, 20_000) as peer:
        time.sleep(3)  # what was made is checkpointed
        served.begin()
        _asked(peer, [b"PRODUCE topic-%d x\n" % number for number in range(20_000)])
        time.sleep(3)


def logmq_20000_topics_are_made_and_the_server_stops(served: Served) -> None:
    with _topics(served, 20_000) as peer:
        _asked(peer, [b"PRODUCE topic-%d x\n" % number for number in range(0, 20_000, 2)])
    served.begin()
    served.stop()


def _connected(served: Served, count: int) -> ExitStack:
    """So many clients of LogMQ, each of which has had an answer."""
    stack = ExitStack()
    for _ in range(count):
        stack.enter_context(Peer(served.address("logmq"), b"PING\n")).until(lambda data: b"\n" in data)
    return stack


def logmq_10000_connections_end_at_once(served: Served) -> None:
    with _connected(served, 10_000) as stack:
        served.begin()
        with served.paused():
            stack.close()
    _until(lambda: not _listed(served, "connections?protocol=logmq&limit=1")["items"])


def logmq_10000_connections_are_there_when_the_server_stops(served: Served) -> None:
    with _connected(served, 10_000):
        served.begin()
        served.stop()


def dms_10000_consumers_are_there_when_the_server_stops(served: Served) -> None:
    _dms_filled(served, 10_000)
    with ExitStack() as stack:
        for number in range(10_000):
            client = stack.enter_context(Dms(served.address("dms")))
            client.socket.sendall(b"".join(_consumes(4)))
            if number < 2500:
                client.replies(4)
        _ping(served)
        served.begin()
        served.stop()


def amqp_5000_consumers_are_there_when_the_server_stops(served: Served) -> None:
    with _amqp_queue(served, 10_000), ExitStack() as stack:
        for number in range(5000):
            peer = stack.enter_context(Amqp(served.address("dmp")))
            peer.call(commands.Basic.Qos(0, 5, False))
            peer.call(commands.Basic.Consume(queue="q"))
            if number < 2000:
                peer.wait("Basic.Deliver", 5)
        served.begin()
        served.stop()


def pubsub_5000_subscribers_are_there_when_the_server_stops(served: Served) -> None:
    with ExitStack() as stack:
        for number in range(5000):
            name = b"%d" % number
            wish = pubsub.encode_id(name) + pubsub.encode_command(Command.SUBSCRIBE, name)
            stack.enter_context(Peer(served.address("pubsub"), wish))
        _ping(served)
        served.begin()
        served.stop()


def logmq_one_record_for_1000_tails(served: Served) -> None:
    with _topics(served, 1) as peer, ExitStack() as stack:
        tails = [stack.enter_context(Peer(served.address("logmq"), b"TAIL topic-0 0\n")) for _ in range(1000)]
        for tail in tails:
            tail.until(lambda data: b"MESSAGE" in data)
        served.begin()
        _asked(peer, [b"PRODUCE topic-0 x\n"] * 100)
        for tail in tails:
            tail.until(lambda data: data.count(b"MESSAGE") == 101)


def logmq_20000_topics_lose_what_retention_drops(served: Served) -> None:
    with _topics(served, 20_000) as peer:
        _asked(peer, [b"PRODUCE topic-%d %s\n" % (number, b"x" * 1000) for number in range(20_000)])
        time.sleep(3)  # what was made is checkpointed
        served.begin()
        _reloaded(served, "[logmq]\nretention_bytes = 100\n")
        _asked(peer, [b"PRODUCE topic-%d x\n" % number for number in range(20_000)])
        path = "/api/v1/topics?sort=-bytes&limit=1"
        _until(lambda: served.ask("GET", path)["items"][0]["bytes"] < 500)


def logmq_5000_topics_are_deleted(served: Served) -> None:
    with _topics(served, 5_000) as peer:
        served.begin()
        _asked(peer, [b"DELETE topic-%d\n" % number for number in range(5_000)])


def logmq_a_topic_with_20000_groups_is_deleted(served: Served) -> None:
    with _topics(served, 1) as peer:
        _asked(peer, [b"COMMIT group-%d topic-0 0\n" % number for number in range(20_000)])
        served.begin()
        _asked(peer, [b"DELETE topic-0\n"])
        _ping(served)


def _batches(seqs: Iterable[int]) -> bytes:
    return b"".join(b"BATCH topic-0 w %d 5\n\0\0\0\1x" % seq for seq in seqs)


def logmq_50000_batches_of_one_record(served: Served) -> None:
    with _topics(served, 1) as peer:
        served.begin()
        peer.socket.sendall(_batches(range(1, 50_001)))
        peer.until(lambda data: data.count(b"\n") >= 50_000)


def logmq_50000_batches_that_are_repeated(served: Served) -> None:
    with _topics(served, 1) as peer:
        _asked(peer, [_batches([1])])
        served.begin()
        peer.socket.sendall(_batches([1] * 50_000))
        peer.until(lambda data: data.count(b"\n") >= 50_000)


def logmq_400000_messages_of_a_byte(served: Served) -> None:
    with _topics(served, 1) as peer:
        served.begin()
        peer.socket.sendall(b"PRODUCE topic-0 x\n" * 400_000)
        peer.until(lambda data: data.count(b"\n") >= 400_000)


def logmq_50000_commits_of_one_group(served: Served) -> None:
    with _topics(served, 1) as peer:
        served.begin()
        peer.socket.sendall(b"COMMIT g topic-0 0\n" * 50_000)
        peer.until(lambda data: data.count(b"\n") >= 50_000)


def _listed(served: Served, path: str) -> Any:
    """An answer of the API; how long it took is told."""
    began = time.perf_counter()
    found = served.ask("GET", f"/api/v1/{path}")
    print(f"       {(time.perf_counter() - began) * 1000:7.1f} ms  {path}", flush=True)
    return found


def api_50000_queues_are_listed(served: Served) -> None:
    with Dms(served.address("dms")) as client:
        client.create(*_QUEUES)
        client.produce(*["queue-01000"] * 1000)
        served.begin()
        for query in ("", "?after=dms/queue-49000&limit=1000", "?match=*77", "?sort=-ready"):
            assert _listed(served, f"queues{query}")["items"]
        assert _listed(served, "queues?sort=-oldest_seconds&limit=1")["items"][0]["ready"] == 1000
        assert _listed(served, "queues/dms/queue-01000")["ready"] == 1000
        for path in ("overview", "openapi.json", "exchanges", "bindings"):
            _listed(served, path)


def api_10000_connections_are_listed(served: Served) -> None:
    with ExitStack() as stack:
        for _ in range(10_000):
            stack.enter_context(socket.create_connection(served.address("logmq")))
        last = socket.create_connection(served.address("logmq"))
        stack.enter_context(last)
        last.sendall(b"PRODUCE t x\n")
        assert last.recv(100)
        served.begin()
        for path in ("connections", "connections?limit=1000", "connections?sort=-bytes_in", "sessions"):
            _listed(served, path)
        found = _listed(served, "connections?sort=-messages_in&limit=1")["items"]
        assert found[0]["messages_in"] == 1
        assert _listed(served, f"connections/{found[0]['id']}")["bytes_in"] == 12


def api_20000_topics_and_their_groups_are_listed(served: Served) -> None:
    with _topics(served, 20_000) as peer:
        _asked(peer, [b"COMMIT g topic-%d 5\n" % number for number in range(20_000)])
        served.begin()
        for path in ("topics", "topics?limit=1000", "topics?sort=-bytes", "groups", "groups?limit=1000"):
            assert _listed(served, path)["items"]


def api_30000_names_are_exported_and_imported(served: Served) -> None:
    with Dms(served.address("dms")) as client:
        client.create(*_QUEUES[:10_000])
    _topics(served, 10_000).socket.close()
    with Amqp(served.address("dmp")) as peer:
        for at in range(0, 10_000, 500):
            for number in range(at, at + 500):
                peer.say(1, commands.Queue.Declare(queue=f"q{number}", durable=True))
            peer.wait("Queue.DeclareOk", 500)
    served.begin()
    document = served.ask("GET", "/api/v1/definitions")
    served.ask("POST", "/api/v1/definitions", document)
    for number in range(10_000):
        document["queues"].append({"protocol": "dms", "name": f"more-{number}"})
    served.ask("POST", "/api/v1/definitions", document)


def api_10000_connections_are_closed_by_an_administrator(served: Served) -> None:
    with _connected(served, 10_000):
        path = "connections?protocol=logmq&limit=1000"
        found = [row["id"] for row in _listed(served, path)["items"]]
        served.begin()
        for each in found:
            served.ask("DELETE", f"/api/v1/connections/{each}")


def api_10000_users_are_taken_up(served: Served) -> None:
    rows = "".join(f'[users.u{n}]\nallow = ["*:read:*", "*:write:orders/{n}"]\n' for n in range(10_000))
    file = served.folder / "data" / "users.toml"
    with _connected(served, 5_000):
        served.begin()
        file.write_text(rows)
        file.chmod(0o600)
        served.ask("POST", "/reload", {})
        file.write_text(rows.replace("orders", "sales"))
        served.ask("POST", "/reload", {})


def api_20000_users_with_10_rules_each_are_taken_up(served: Served) -> None:
    rules = ", ".join(f'"*:read:orders-{n}-*"' for n in range(10))
    rows = "".join(f"[users.u{n}]\nallow = [{rules}]\n" for n in range(20_000))
    file = served.folder / "data" / "users.toml"
    served.begin()
    for text in (rows, rows.replace("orders", "sales")):
        file.write_text(text)
        file.chmod(0o600)
        served.ask("POST", "/reload", {})


def api_10000_bindings_are_exported_and_imported(served: Served) -> None:
    with _bound(served, "topic", _topic) as peer:
        served.begin()
        document = served.ask("GET", "/api/v1/definitions")
        served.ask("POST", "/api/v1/definitions", document)
        peer.call(commands.Exchange.Delete(exchange="e"))
        served.ask("POST", "/api/v1/definitions", document)


def api_50000_queues_are_scraped(served: Served) -> None:
    with Dms(served.address("dms")) as client:
        client.create(*_QUEUES)
        served.begin()
        for path in ("/metrics", "/metrics/detailed?family=queues"):
            served.ask("GET", path)


def _reloaded(served: Served, text: str) -> None:
    with (served.folder / "brokers.toml").open("a") as file:
        file.write(text)
    served.ask("POST", "/reload", {})


def api_settings_are_reloaded_beside_10000_connections(served: Served) -> None:
    with _connected(served, 10_000):
        served.begin()
        _reloaded(served, "linger_seconds = 3\n[logmq]\nretention_bytes = 10000000\n")


def api_250_bridges_begin_carry_and_end(served: Served) -> None:
    bridges = "".join(
        f'[[bridge]]\nname = "b{n}"\nfrom = "logmq:topic-{n}"\nto = "logmq:other-{n}"\nstart = "first"\n'
        for n in range(250)
    )
    with _topics(served, 250) as peer:
        served.begin()
        _reloaded(served, bridges)
        _asked(peer, [b"PRODUCE topic-%d x\n" % number for number in range(250)] * 100)
        path = "/api/v1/topics?match=other-*&limit=1000"
        _until(lambda: len(served.ask("GET", path)["items"]) == 250)
        (served.folder / "brokers.toml").write_text(_LIMITS)
        served.ask("POST", "/reload", {})


def _amqp_queue(served: Served, count: int = 0) -> Amqp:
    peer = Amqp(served.address("dmp"))
    peer.call(commands.Queue.Declare(queue="q", durable=True))
    if count:
        peer.publish("", "q", count)
    return peer


def amqp_a_purge_of_100000(served: Served) -> None:
    with _amqp_queue(served, 100_000) as peer:
        served.begin()
        peer.call(commands.Queue.Purge(queue="q"))


def amqp_a_million_are_purged_and_a_million_go_with_their_queue(served: Served) -> None:
    with _amqp_queue(served) as peer:
        peer.call(commands.Queue.Declare(queue="other"))
        peer.call(commands.Confirm.Select())
        for number in range(1, 41):
            peer.socket.sendall(_message("", "q" if number % 2 else "other", b"x") * 50_000)
            peer.confirmed(number * 50_000)
        served.begin()
        peer.call(commands.Queue.Purge(queue="q"))
        peer.call(commands.Queue.Delete(queue="other"))
        _ping(served)


def amqp_a_purge_of_100000_that_are_durable(served: Served) -> None:
    durable = _message("", "q", b"x" * 100, commands.Basic.Properties(delivery_mode=2))
    with _amqp_queue(served) as peer:
        peer.call(commands.Confirm.Select())
        peer.socket.sendall(durable * 100_000)
        peer.confirmed(100_000)
        served.begin()
        peer.call(commands.Queue.Purge(queue="q"))


def _amqp_holding(served: Served, count: int) -> Amqp:
    with _amqp_queue(served, count):
        pass
    peer = Amqp(served.address("dmp"))
    peer.call(commands.Basic.Qos(prefetch_count=0))
    peer.call(commands.Basic.Consume(queue="q", consumer_tag="c"))
    peer.wait("Basic.Deliver", count)
    return peer


def amqp_100000_are_acknowledged_at_once(served: Served) -> None:
    with _amqp_holding(served, 90_000) as peer:
        served.begin()
        peer.say(1, commands.Basic.Ack(0, multiple=True))
        peer.call(commands.Basic.Cancel("c"))
        _ping(served)


def amqp_100000_come_back_at_once(served: Served) -> None:
    with _amqp_holding(served, 90_000) as peer:
        peer.call(commands.Basic.Cancel("c"))
        served.begin()
        peer.say(1, commands.Basic.Nack(0, multiple=True, requeue=True))
        peer.call(commands.Queue.Declare(queue="q", passive=True))
        _ping(served)


def amqp_100000_are_delivered_again_at_once(served: Served) -> None:
    with _amqp_holding(served, 90_000) as peer:
        served.begin()
        peer.call(commands.Basic.Recover(requeue=False))
        peer.wait("Basic.Deliver", 90_000)
        _ping(served)


def amqp_100000_come_back_with_their_connection(served: Served) -> None:
    peer = _amqp_holding(served, 90_000)
    served.begin()
    peer.socket.close()
    with _amqp_queue(served) as other:
        _until(lambda: _depth(other) >= 90_000)


def _depth(peer: Amqp, queue: str = "q") -> int:
    answer = peer.call(commands.Queue.Declare(queue=queue, passive=True))
    return int(answer.message_count or 0)


def amqp_2047_channels_are_opened_and_closed_with_their_connection(served: Served) -> None:
    with _amqp_queue(served) as peer:
        served.begin()
        for number in range(2, 2048):
            peer.say(number, commands.Channel.Open())
        peer.wait("Channel.OpenOk", 2046)
        peer.call(commands.Connection.Close(200, "", 0, 0), 0)
    _ping(served)


def amqp_2047_channels_with_consumers_end_with_their_connection(served: Served) -> None:
    with _amqp_queue(served, 20_470) as peer, Amqp(served.address("dmp")) as other:
        for channel in range(2, 2048):
            other.call(commands.Channel.Open(), channel)
            other.call(commands.Basic.Qos(0, 10, False), channel)
            other.call(commands.Basic.Consume(queue="q"), channel)
        _until(lambda: _depth(peer) == 10)
        served.begin()
        other.say(0, commands.Connection.Close(200, "", 0, 0))
        other.wait("Connection.CloseOk")
        _until(lambda: _depth(peer) == 20_470)


def _bound(served: Served, kind: str, bind: Callable[[int], Mapping[str, Any]]) -> Amqp:
    """The queue `q` with 10,000 bindings to the exchange `e`."""
    peer = _amqp_queue(served)
    peer.call(commands.Exchange.Declare(exchange="e", exchange_type=kind))
    for at in range(0, 10_000, 1000):
        peer.say(1, *(commands.Queue.Bind(0, "q", "e", **bind(number)) for number in range(at, at + 1000)))
        peer.wait("Queue.BindOk", 1000)
    return peer


def _topic(number: int) -> Mapping[str, Any]:
    return {"routing_key": f"a.{number}.#"}


def amqp_a_message_under_10000_headers_bindings(served: Served) -> None:
    with _bound(served, "headers", lambda n: {"arguments": {"x-match": "all", "n": n, "m": 1}}) as peer:
        peer.call(commands.Confirm.Select())
        served.begin()
        properties = commands.Basic.Properties(headers={"n": 5, "m": 1})
        peer.socket.sendall(_message("e", "", b"x", properties) * 20)
        peer.confirmed(20)


def amqp_a_message_under_200000_headers_bindings(served: Served) -> None:
    with _amqp_queue(served) as peer:
        for at in range(0, 200_000, 5000):
            peer.say(
                1,
                *(
                    commands.Queue.Bind(0, "q", "amq.headers", "", True, {f"k{n}": n})
                    for n in range(at, at + 5000)
                ),
            )
        _depth(peer)
        peer.call(commands.Confirm.Select())
        served.begin()
        properties = commands.Basic.Properties(headers={"k5": 5})
        peer.socket.sendall(_message("amq.headers", "", b"x", properties) * 4)
        peer.confirmed(4)


def _looked_through(served: Served, arguments: Callable[[int], Mapping[str, Any]], headers: Any) -> None:
    """Messages with these headers, under 200,000 bindings to 1,000 queues."""
    with Amqp(served.address("dmp")) as peer:
        for number in range(1000):
            peer.say(1, commands.Queue.Declare(queue=f"q{number}", nowait=True))
        for at in range(0, 200_000, 5000):
            binds = [
                commands.Queue.Bind(0, f"q{n % 1000}", "amq.headers", "", True, dict(arguments(n)))
                for n in range(at, at + 5000)
            ]
            peer.say(1, *binds)
        _depth(peer, "q0")
        peer.call(commands.Confirm.Select())
        served.begin()
        for number in range(4):  # that differ, so that no route is known
            properties = commands.Basic.Properties(headers={**headers, "other": number})
            peer.socket.sendall(_message("amq.headers", "", b"x", properties))
        peer.confirmed(4)


def amqp_a_message_under_200000_bindings_to_any_of_eight_headers(served: Served) -> None:
    shared = {f"shared{number}": 1 for number in range(8)}
    _looked_through(served, lambda n: {**shared, "n": n, "x-match": "any"}, shared)


def amqp_a_message_under_200000_bindings_to_all_of_some_headers(served: Served) -> None:
    """Each wants eight or more of eighteen, and one that no message has: no index tells them apart."""
    wanted = [n for n in range(1 << 18) if n.bit_count() >= 8]
    names = [f"h{number}" for number in range(18)]

    def arguments(number: int) -> Mapping[str, Any]:
        some = wanted[number % len(wanted)]
        return {name: 1 for bit, name in enumerate(names) if some >> bit & 1} | {"missing": 1}

    _looked_through(served, arguments, dict.fromkeys(names, 1))


def amqp_a_message_under_10000_topic_bindings_and_their_queues_end(served: Served) -> None:
    with _bound(served, "topic", lambda n: {"routing_key": f"*.*.*.{n}"}) as peer:
        peer.call(commands.Confirm.Select())
        served.begin()
        peer.socket.sendall(_message("e", "a.b.c.7", b"x") * 100)
        peer.confirmed(100)
        peer.call(commands.Queue.Delete(queue="q"))
        peer.call(commands.Exchange.Delete(exchange="e"))


def amqp_a_large_message_pushes_40000_small_ones_out(served: Served) -> None:
    limits: Any = {
        "x-max-length-bytes": 120_000,
        "x-dead-letter-exchange": "",
        "x-dead-letter-routing-key": "dead",
    }
    with Amqp(served.address("dmp")) as peer:
        peer.call(commands.Queue.Declare(queue="dead"))
        peer.call(commands.Queue.Declare(queue="q", arguments=limits))
        peer.publish("", "q", 40_000, b"xxx")
        served.begin()
        peer.socket.sendall(_message("", "q", b"x" * 119_000))
        peer.wait("Basic.Ack")
        _until(lambda: _depth(peer, "dead") >= 39_600)


def _consumed(served: Served, stack: ExitStack) -> list[Amqp]:
    """Ten connections with 4,000 consumers of one queue each."""
    peers = [stack.enter_context(_amqp_queue(served)) for _ in range(10)]
    for peer in peers:
        peer.say(1, *(commands.Basic.Consume(0, "q", f"c{n}", no_ack=True, nowait=True) for n in range(4000)))
        _depth(peer)
    return peers


def amqp_4000_of_40000_consumers_of_a_queue_are_cancelled(served: Served) -> None:
    with ExitStack() as stack:
        peer = _consumed(served, stack)[0]
        served.begin()
        peer.say(1, *(commands.Basic.Cancel(f"c{n}", nowait=True) for n in range(4000)))
        _depth(peer)


def amqp_a_queue_with_40000_consumers_is_deleted(served: Served) -> None:
    with ExitStack() as stack:
        peer = _consumed(served, stack)[0]
        served.begin()
        peer.call(commands.Queue.Delete(queue="q"))
        _ping(served)


def _all_queues(peer: Amqp, count: int, *, durable: bool = False) -> None:
    """As many as the limit has, bound to `amq.fanout`."""
    for at in range(0, count, 1000):
        for number in range(at, at + 1000):
            name = f"q{number}"
            peer.say(1, commands.Queue.Declare(queue=name, durable=durable, nowait=True))
            peer.say(1, commands.Queue.Bind(queue=name, exchange="amq.fanout", nowait=True))
        _depth(peer, "q0")


def amqp_a_message_for_50000_queues(served: Served) -> None:
    with Amqp(served.address("dmp")) as peer:
        _all_queues(peer, 50_000)
        served.begin()
        peer.publish("amq.fanout", "", 4)


def amqp_a_persistent_message_for_10000_durable_queues(served: Served) -> None:
    properties = commands.Basic.Properties(delivery_mode=2)
    with Amqp(served.address("dmp")) as peer:
        _all_queues(peer, 10_000, durable=True)
        peer.call(commands.Confirm.Select())
        served.begin()
        peer.socket.sendall(_message("amq.fanout", "", b"x" * 100, properties) * 4)
        peer.confirmed(4)


def amqp_an_immediate_message_for_50000_queues_that_nobody_takes(served: Served) -> None:
    with Amqp(served.address("dmp")) as peer:
        _all_queues(peer, 50_000)
        publish = frame.marshal(commands.Basic.Publish(exchange="amq.fanout", immediate=True), 1)
        content = _message("amq.fanout", "", b"x").partition(b"\xce")[2]
        served.begin()
        peer.socket.sendall((publish + content) * 4)
        peer.wait("Basic.Return", 4)


def amqp_a_message_for_2000_queues(served: Served) -> None:
    with Amqp(served.address("dmp")) as peer:
        for number in range(2000):
            peer.say(1, commands.Queue.Declare(queue=f"q{number}"))
            peer.say(1, commands.Queue.Bind(queue=f"q{number}", exchange="amq.fanout"))
        peer.wait("Queue.BindOk", 2000)
        served.begin()
        peer.publish("amq.fanout", "", 50)


def amqp_an_exchange_with_10000_bindings_is_deleted(served: Served) -> None:
    with _bound(served, "topic", _topic) as peer:
        served.begin()
        peer.call(commands.Exchange.Delete(exchange="e"))
        _ping(served)


def amqp_10000_bindings_are_unbound(served: Served) -> None:
    with _bound(served, "topic", _topic) as peer:
        served.begin()
        unbind = [
            commands.Queue.Unbind(queue="q", exchange="e", routing_key=f"a.{n}.#") for n in range(10_000)
        ]
        peer.say(1, *unbind)
        peer.wait("Queue.UnbindOk", len(unbind))


def amqp_100000_expire_and_become_dead_letters(served: Served) -> None:
    own: Any = {"x-message-ttl": 6000, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
    with Amqp(served.address("dmp")) as peer:
        peer.call(commands.Queue.Declare(queue="dead", durable=True))
        peer.call(commands.Queue.Declare(0, "q", durable=True, arguments=own))
        peer.publish("", "q", 100_000)
        served.begin()
        _until(lambda: _depth(peer, "dead") == 100_000)
        served.ask("POST", "/api/v1/queues/dmp/dead/redrive", {})


def amqp_100000_of_ten_priorities_are_delivered_and_come_back(served: Served) -> None:
    own: Any = {"x-max-priority": 10}
    with Amqp(served.address("dmp")) as peer:
        peer.call(commands.Queue.Declare(0, "q", durable=True, arguments=own))
        peer.call(commands.Confirm.Select())
        ten = [_message("", "q", b"x" * 100, commands.Basic.Properties(priority=n)) for n in range(10)]
        served.begin()
        peer.socket.sendall(b"".join(ten) * 10_000)
        peer.confirmed(100_000)
        with Amqp(served.address("dmp")) as other:
            other.call(commands.Basic.Consume(queue="q"))
            other.wait("Basic.Deliver", 100_000)
        _until(lambda: _depth(peer) == 100_000)
        peer.call(commands.Queue.Purge(queue="q"))


def amqp_40000_messages_that_differ_go_nowhere(served: Served) -> None:
    with _amqp_queue(served) as peer:
        peer.call(commands.Confirm.Select())
        served.begin()
        peer.socket.sendall(b"".join(_message("amq.topic", f"k{n % 200}", b"x") for n in range(40_000)))
        peer.confirmed(40_000)


def amqp_2000_exclusive_queues_end_with_their_connection(served: Served) -> None:
    with Amqp(served.address("dmp")) as peer, Amqp(served.address("dmp")) as other:
        for number in range(2000):
            other.say(1, commands.Queue.Declare(queue=f"q{number}", exclusive=True))
            other.say(
                1, commands.Queue.Bind(queue=f"q{number}", exchange="amq.topic", routing_key=f"#.{number}.#")
            )
        other.wait("Queue.BindOk", 2000)
        served.begin()
        other.socket.close()
        peer.call(commands.Queue.Declare(queue="last"))
    _ping(served)


def _in_a_transaction(served: Served, method: base.Frame, end: base.Frame) -> None:
    with _amqp_holding(served, 90_000) as peer:
        peer.call(commands.Tx.Select())
        served.begin()
        peer.say(1, method)
        peer.call(end)
        _ping(served)


_TRANSACTIONS = {
    "amqp_a_transaction_of_90000_acks": (commands.Basic.Ack(0, True), commands.Tx.Commit()),
    "amqp_a_transaction_of_all_acks_but_one": (commands.Basic.Ack(89_999, True), commands.Tx.Commit()),
    "amqp_a_transaction_gives_90000_back": (commands.Basic.Nack(0, True, True), commands.Tx.Commit()),
    "amqp_a_transaction_of_90000_acks_is_rolled_back": (
        commands.Basic.Ack(89_999, True),
        commands.Tx.Rollback(),
    ),
}


def amqp_a_queue_of_200_consumers_is_resumed_over_600000(served: Served) -> None:
    with ExitStack() as stack:
        peers = [stack.enter_context(_amqp_queue(served)) for _ in range(200)]
        served.ask("POST", "/api/v1/queues/dmp/q/pause", {})
        for peer in peers:
            peer.call(commands.Basic.Consume(queue="q"))
        peers[0].publish("", "q", 600_000, b"x")
        served.begin()
        served.ask("POST", "/api/v1/queues/dmp/q/resume", {})
        _ping(served)


def _lease(peer: Amqp) -> bytes:
    """The one that it has asked for, a short string: it stands behind the method's two numbers."""
    peer.until(_has_frame)
    lease = bytes(peer.data[11:-1])
    peer.data.clear()
    return lease


def _got(served: Served, count: int, *, durable: bool = False) -> tuple[Amqp, Amqp]:
    """A connection that holds a message of each of so many queues, and another one."""
    peer, other = Amqp(served.address("dmp")), Amqp(served.address("dmp"))
    _all_queues(peer, count, durable=durable)
    peer.call(commands.Confirm.Select())
    properties = commands.Basic.Properties(delivery_mode=1 + durable)
    peer.socket.sendall(_message("amq.fanout", "", b"x", properties))
    peer.confirmed(1)
    other.say(1, *(commands.Basic.Get(queue=f"q{number}") for number in range(count)))
    other.wait("Basic.GetOk", count)
    return peer, other


def amqp_messages_of_40000_queues_come_back_with_their_connection(served: Served) -> None:
    peer, other = _got(served, 40_000)
    with peer:
        served.begin()
        other.socket.close()
        _until(lambda: _depth(peer, "q39999") == 1 and _depth(peer, "q0") == 1)


def amqp_messages_of_8000_durable_queues_are_acknowledged_at_once(served: Served) -> None:
    peer, other = _got(served, 8000, durable=True)
    with peer, other:
        served.begin()
        other.say(1, commands.Basic.Ack(0, multiple=True))
        _depth(other, "q0")
        _ping(served)


def amqp_dead_letters_for_10000_durable_queues(served: Served) -> None:
    own: Any = {"x-dead-letter-exchange": "amq.fanout"}
    properties = commands.Basic.Properties(delivery_mode=2)
    with Amqp(served.address("dmp")) as peer:
        _all_queues(peer, 10_000, durable=True)
        peer.call(commands.Queue.Declare(0, "q", durable=True, arguments=own))
        peer.socket.sendall(_message("", "q", b"x" * 100, properties) * 3)
        peer.call(commands.Basic.Consume(queue="q"))
        peer.wait("Basic.Deliver", 3)
        served.begin()
        peer.say(1, commands.Basic.Nack(0, True, False))
        _until(lambda: _depth(peer, "q9999") == 3)


def amqp_a_sink_writes_to_40000_queues(served: Served) -> None:
    with Amqp(served.address("dmp")) as peer:
        _all_queues(peer, 40_000)
        peer.socket.sendall(encode(Direct.Put("amq.fanout"), 1))
        lease = _lease(peer)
        with Peer(served.address("dmp"), dmp.DMP_HEADER + lease) as sink:
            served.begin()
            sink.socket.sendall(dmp.message(dmp.Message(b"", b"k", b"x" * 100)) * 4)
            _until(lambda: _depth(peer, "q39999") == 4)


def amqp_a_transaction_of_4096_messages(served: Served) -> None:
    with _amqp_queue(served) as peer:
        peer.call(commands.Tx.Select())
        peer.socket.sendall(_message("", "q", b"x" * 100) * 4096)
        _ping(served)
        served.begin()
        peer.call(commands.Tx.Commit())


# Crowds: readers that wait, listings under rules, many of one kind.

CONNECTIONS = 19_000
"""Nearly `net.connections_max`, and what a process with 20,000 files can have."""
WAITS_OF_ONE = 500
"""FETCHes that one connection sends. 257 wait, and the rest is read when some are answered."""
EMPTY = b"\0\0\0\0"


def _rules(served: Served, *rules: str) -> None:
    """Clients that have not logged in may do this from now on, and no more."""
    file = served.folder / "data" / "users.toml"
    file.write_text(f"[users.anonymous]\nallow = [{', '.join(map(repr, rules))}]\n")
    file.chmod(0o600)
    control.request(served.folder / "data", "POST", "/reload", {})


@contextmanager
def _fetching(
    served: Served, connections: int, count: int, wait_ms: int = 60_000
) -> Iterator[Sequence[Peer]]:
    """So many connections, each with `count` FETCHes that wait behind the first record of topic-0."""
    line = b"FETCH topic-0 5 1000 %d\n" % wait_ms
    with ExitStack() as stack:
        peers = [stack.enter_context(Peer(served.address("logmq"))) for _ in range(connections)]
        with served.paused():
            for peer in peers:
                peer.socket.sendall(line * count)
        time.sleep(2)
        _ping(served)
        served.begin()
        yield peers


def _answered(peers: Sequence[Peer], answer: bytes, count: int = 1) -> None:
    for peer in peers:
        peer.until(lambda data: data.count(answer) >= count)


def logmq_51400_fetches_of_200_connections_wait_for_one_record(served: Served) -> None:
    with _topics(served, 1) as peer, _fetching(served, 200, WAITS_OF_ONE) as readers:
        _asked(peer, [b"PRODUCE topic-0 yyy\n"])
        _answered(readers, b"CHUNK", WAITS_OF_ONE)


def logmq_19000_fetches_of_as_many_connections_wait_for_one_record(served: Served) -> None:
    with _topics(served, 1) as peer, _fetching(served, CONNECTIONS, 1) as readers:
        _asked(peer, [b"PRODUCE topic-0 yyy\n"])
        _answered(readers, b"CHUNK")


def logmq_19000_fetches_of_as_many_connections_time_out_at_once(served: Served) -> None:
    with _topics(served, 1), _fetching(served, CONNECTIONS, 1, 5000) as readers:
        _answered(readers, b"EOF")


def logmq_a_topic_that_51400_fetches_wait_for_is_deleted(served: Served) -> None:
    with _topics(served, 1) as peer, _fetching(served, 200, WAITS_OF_ONE) as readers:
        _asked(peer, [b"DELETE topic-0\n"])
        _answered(readers, b"NO_TOPIC", 257)
        _ping(served)


def logmq_a_topic_that_51400_fetches_wait_for_is_made(served: Served) -> None:
    with Peer(served.address("logmq")) as peer, _fetching(served, 200, WAITS_OF_ONE) as readers:
        _asked(peer, [b"PRODUCE topic-0 y\n", b"PRODUCE topic-0 yyy\n"])
        _answered(readers, b"CHUNK", WAITS_OF_ONE)


def logmq_51400_fetches_far_beyond_the_end_and_1000_records(served: Served) -> None:
    with _topics(served, 1) as peer, ExitStack() as stack:
        for _ in range(200):
            reader = stack.enter_context(Peer(served.address("logmq")))
            reader.socket.sendall(b"".join(b"FETCH topic-0 9%06d 9 60000\n" % n for n in range(WAITS_OF_ONE)))
        time.sleep(2)
        served.begin()
        for _ in range(100):
            _asked(peer, [b"PRODUCE topic-0 yyy\n"] * 10)


def logmq_one_record_for_19000_tails(served: Served) -> None:
    with _topics(served, 1) as peer, ExitStack() as stack:
        address = served.address("logmq")
        tails = [stack.enter_context(Peer(address, b"TAIL topic-0 0\n")) for _ in range(CONNECTIONS)]
        _answered(tails, b"MESSAGE")
        served.begin()
        for count in range(2, 7):
            _asked(peer, [b"PRODUCE topic-0 x\n"])
            _answered(tails, b"MESSAGE", count)


def logmq_a_topic_with_19000_tails_is_deleted(served: Served) -> None:
    with _topics(served, 1) as peer, ExitStack() as stack:
        address = served.address("logmq")
        tails = [stack.enter_context(Peer(address, b"TAIL topic-0 0\n")) for _ in range(CONNECTIONS)]
        _answered(tails, b"MESSAGE")
        served.begin()
        _asked(peer, [b"DELETE topic-0\n"])
        _answered(tails, b"NO_TOPIC")


def logmq_20000_topics_are_listed_under_rules(served: Served) -> None:
    with _topics(served, 20_000):
        _rules(served, *(f"logmq:read:topic-*{number}" for number in range(20)))
        with Peer(served.address("logmq")) as peer:
            served.begin()
            peer.socket.sendall(b"TOPICS\n" * 3)
            peer.until(lambda data: data.count(b"END\n") == 3)


def logmq_a_topic_with_100000_groups_is_deleted(served: Served) -> None:
    with _topics(served, 1) as peer:
        _asked(peer, [b"COMMIT group-%d topic-0 0\n" % number for number in range(100_000)])
        served.begin()
        _asked(peer, [b"DELETE topic-0\n"])
        _ping(served)
        time.sleep(1)


def logmq_a_batch_of_260000_empty_records_is_written_and_read(served: Served) -> None:
    count = 260_000
    served.begin()
    address = served.address("logmq")
    with Peer(address) as peer, Peer(address, b"TAIL topic-0 0\n") as tail:
        body = EMPTY * count
        peer.socket.sendall(b"BATCH topic-0 w 1 %d\n" % len(body) + body)
        peer.until(lambda data: b"\n" in data)
        tail.until(lambda data: data.count(b"\n") >= count)
        peer.data.clear()
        peer.socket.sendall(b"".join(b"CONSUME topic-0 %d\n" % (4 * n) for n in range(50_000)))
        peer.until(lambda data: data.count(b"\n") >= 50_000)


_SMALL_OFFSETS = [4 * number + number // 2 for number in range(232_000)]
_SMALL_RECORDS = b"".join(
    EMPTY if start % 9 == 0 else b"\0\0\0\1y" for start in _SMALL_OFFSETS
)  # 1 MiB of records of 0 and 1 byte, in turns


def _small_batches(seqs: Iterable[int]) -> bytes:
    return b"".join(b"BATCH topic-0 w %d %d\n" % (seq, len(_SMALL_RECORDS)) + _SMALL_RECORDS for seq in seqs)


def logmq_batches_of_232000_records_of_0_and_1_byte_are_written(served: Served) -> None:
    with Peer(served.address("logmq")) as peer:
        served.begin()
        peer.socket.sendall(_small_batches(range(5)))
        peer.until(lambda data: data.count(b"\n") >= 5)


def logmq_232000_records_of_0_and_1_byte_are_tailed_and_consumed(served: Served) -> None:
    address = served.address("logmq")
    with Peer(address) as peer:
        _asked(peer, [_small_batches([1])])
        served.begin()
        with Peer(address, b"TAIL topic-0 0\n") as tail:
            tail.until(lambda data: data.count(b"\n") >= len(_SMALL_OFFSETS))
        for at in range(0, 200_000, 20_000):
            asked = _SMALL_OFFSETS[at : at + 20_000]
            peer.socket.sendall(b"".join(b"CONSUME topic-0 %d\n" % offset for offset in asked))
            _answered([peer], b"\n", at + 20_000)


def logmq_places_all_over_232000_records_of_0_and_1_byte(served: Served) -> None:
    places = _SMALL_OFFSETS[1::1999]
    with Peer(served.address("logmq")) as peer:
        _asked(peer, [_small_batches([1])])
        served.begin()
        for _ in range(2):  # in memory, and then in the file
            for request in (b"COMMIT g topic-0 %d\n", b"CONSUME topic-0 %d\n", b"FETCH topic-0 %d 1\n"):
                peer.data.clear()
                peer.socket.sendall(b"".join(request % place for place in places[::-1]))
                peer.until(lambda data: data.count(b"\n") >= len(places))
            time.sleep(3)
        peer.data.clear()
        for back in (1, 100_001, 231_000):
            served.ask("POST", "/api/v1/topics/topic-0/records", {"records_back": back, "limit": 1000})


def logmq_400000_messages_of_0_and_1_byte(served: Served) -> None:
    with _topics(served, 1) as peer:
        served.begin()
        peer.socket.sendall(b"PRODUCE topic-0 \nPRODUCE topic-0 y\n" * 200_000)
        peer.until(lambda data: data.count(b"\n") >= 400_000)


def dms_50000_queues_are_listed_64_times_under_rules(served: Served) -> None:
    with Dms(served.address("dms")) as client:
        client.ask([dms.frame(dms.CREATE, 1, dms.name(f"queue-{n:05}")) for n in range(50_000)])
    _rules(served, "dms:read:orders-*", "dms:write:*-7?9?", "dms:*:*-123")
    with Dms(served.address("dms")) as client:
        served.begin()
        client.ask([dms.frame(dms.LIST, 1)] * 64)


@contextmanager
def _who_wait(served: Served, count: int) -> Iterator[Sequence[Dms]]:
    """So many connections, each with a CONSUME that waits."""
    with ExitStack() as stack:
        others = [stack.enter_context(Dms(served.address("dms"))) for _ in range(count)]
        for other in others:
            other.socket.sendall(dms.frame(dms.CONSUME, 1, dms.name("q")))
        _ping(served)
        yield others


def dms_a_queue_that_9000_connections_wait_for_is_deleted(served: Served) -> None:
    _dms_filled(served, 0)
    with _who_wait(served, 9000) as others:
        served.begin()
        with Dms(served.address("dms")) as one:
            one.ask([dms.frame(dms.DELETE, 1, dms.name("q"))])
        for other in others:
            other.until(lambda data: b"was deleted" in data)


def _waiting_one_by_one(served: Served, count: int) -> Dms:
    """A connection with so many CONSUMEs, each from a read of its own."""
    client = Dms(served.address("dms"))
    for number in range(1, count + 1):
        client.socket.sendall(dms.frame(dms.CONSUME, number, dms.name("q")))
    _ping(served)
    return client


def dms_4096_consumes_end_with_a_disconnect(served: Served) -> None:
    _dms_filled(served, 0)
    with _waiting_one_by_one(served, 4096) as client:
        served.begin()
        client.socket.sendall(dms.frame(dms.DISCONNECT, 1))
        client.until(lambda data: data.count(b"no message in time") == 4096)


def dms_20000_messages_for_9000_who_wait(served: Served) -> None:
    _dms_filled(served, 0)
    with _who_wait(served, 9000) as others:
        served.begin()
        with Dms(served.address("dms")) as client:
            client.ask([dms.frame(dms.PRODUCE, n, dms.name("q") + b"x") for n in range(1, 20_001)])
        for other in others:
            other.replies(1)


def dms_100000_deliveries_are_held_when_rules_change(served: Served) -> None:
    _dms_filled(served, 100_000)
    with Dms(served.address("dms")) as client:
        client.ask([dms.frame(dms.CONSUME, n, dms.name("q")) for n in range(1, 100_001)])
        served.begin()
        _rules(served, "dms:*:other")
        _ping(served)
        _rules(served, "dms:*:*")
        with Dms(served.address("dms")) as other:
            _until(lambda: other.ask([dms.frame(dms.CONSUME, 1, dms.name("q"))]) != [])


@contextmanager
def _one_held_of_each(served: Served) -> Iterator[Dms]:
    """A connection that holds a delivery of each of 50,000 queues."""
    with Dms(served.address("dms")) as client:
        client.create(*_QUEUES)
        client.produce(*_QUEUES, body=b"x")
        client.ask([dms.frame(dms.CONSUME, n, dms.name(name)) for n, name in enumerate(_QUEUES)])
        yield client


def dms_50000_deliveries_of_as_many_queues_come_back_with_their_connection(served: Served) -> None:
    with _one_held_of_each(served) as client:
        served.begin()
        client.socket.close()
    with Dms(served.address("dms")) as other:
        other.ask([dms.frame(dms.CONSUME, 1, dms.name(_QUEUES[-1]))])
    time.sleep(2)  # what came back is noted on the disk


def dms_50000_deliveries_of_as_many_queues_are_held_when_the_server_stops(served: Served) -> None:
    with _one_held_of_each(served):
        served.begin()
        served.stop()


def _held(served: Served, count: int) -> Dms:
    """A connection that holds so many of `q`, in runs of 4,000."""
    client = Dms(served.address("dms"))
    client.create("q")
    frames = b"".join([dms.frame(dms.PRODUCE, 1, dms.name("q", b"x" * 20))] * 20_000)
    for _ in range(count // 20_000):
        client.socket.sendall(frames)
        client.replies(20_000)
    for _ in range(count // 4000):
        client.socket.sendall(b"".join(_consumes(4000)))
        client.replies(4000)
    return client


def _held_left(served: Served) -> int:
    return int(served.ask("POST", "/dms/queues", {"queue": "q"})[0]["held"])


def dms_500000_deliveries_come_back_with_their_connection(served: Served) -> None:
    client = _held(served, 500_000)
    served.begin()
    client.socket.close()
    _until(lambda: not _held_left(served))


def dms_a_purge_of_500000_that_came_back(served: Served) -> None:
    _held(served, 500_000).socket.close()
    _until(lambda: not _held_left(served))
    served.begin()
    served.ask("POST", "/dms/purge", {"queue": "q"})
    _ping(served)


def dms_a_full_queue_refuses_100000(served: Served) -> None:
    with Dms(served.address("dms")) as client:
        client.create("q", options=b'{"depth": 1}')
        client.produce("q")
        served.begin()
        frames = [dms.frame(dms.PRODUCE, n, dms.name("q", b"x" * (n % 3))) for n in range(100_000)]
        for at in range(0, len(frames), 10_000):
            client.socket.sendall(b"".join(frames[at : at + 10_000]))
            client.until(lambda data: data.count(b"holds its 1 messages") == 10_000)
            client.data.clear()


def dms_the_delay_of_10000_ends_and_9000_wait_for_them(served: Served) -> None:
    with Dms(served.address("dms")) as client:
        client.create("q", options=b'{"delay_ms": 10000}')
        client.produce(*["q"] * 10_000)
    with _who_wait(served, 9000) as others:
        served.begin()
        for other in others:
            other.replies(1)


OPERATIONS: Mapping[str, Callable[[Served], None]] = {
    name: operation
    for name, operation in globals().items()
    if name.startswith(("pubsub_", "kqmsgq_", "dms_", "logmq_", "amqp_", "api_"))
} | {
    name: partial(_in_a_transaction, method=method, end=end) for name, (method, end) in _TRANSACTIONS.items()
}


def main() -> int:
    parser = argparse.ArgumentParser(prog="make trial-fairness", description=__doc__)
    parser.add_argument("--serve", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--only", default="", help="operations whose name holds this")
    given = parser.parse_args()
    if given.serve:
        _serve(given.serve)
        return 0
    raise_file_limit()
    failed = 0
    for name, operation in OPERATIONS.items():
        if given.only in name:
            with tempfile.TemporaryDirectory(prefix="fairness-") as folder, Served(Path(folder)) as served:
                operation(served)
                seconds, task = served.longest()
            failed += seconds > SECONDS_MAX
            words = name.replace("_", " ")
            mark = "FAILED" if seconds > SECONDS_MAX else "ok"
            print(f"{mark:6} {seconds * 1000:7.1f} ms  {words} ({task})", flush=True)
    if failed:
        print(f"{failed} operations kept the others waiting for over {SECONDS_MAX * 1000:g} ms")
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
