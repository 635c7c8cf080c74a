"""What passed through goes out again: from recordings and logs, to any protocol, at its own pace."""

import json
import socket
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import trio
from pamqp import commands
from pyarrow import parquet

from brokers.errors import ExitCode, Failure
from brokers.pipeline.archiving.folder import opened as archive_folder
from brokers.pipeline.archiving.manifest import ArchivedSpan, ByteRange, Part
from brokers.pipeline.archiving.names import log_key
from brokers.pipeline.archiving.places import place_of
from brokers.replaying import cli, engine, sources
from brokers.replaying.engine import Progress, SourcedRecord
from dmp import amqp_client
from dmp.wire import RECORDED_PUBLISHES, message
from dmp.wire import Message as DmpMessage
from kqmsgq import wire as kqmsgq_wire
from pubsub.recording import FrameTrack
from pubsub.wire import Kind, datagram, frame
from shared.errors import UsageError
from shared.recording import blocks
from shared.replaying import Batch, PastMessage, Target
from tests.support.folders import ALWAYS, fill, open_folder
from tests.support.recorded import Tape, batch_of, block
from tests.support.server import Server, run_here, speak, until

AMQP = {"headers": {"n": 7}, "content_type": "text/plain"}


def passed(protocol: str, payload: bytes) -> Sequence[PastMessage]:
    found = sources.replays_to(protocol).recorded
    assert found is not None
    head = blocks.unpack(payload)
    return list(found(head, payload[head.frames_at :]))


# -- what recordings hold


def test_a_recording_of_kqmsgq_is_its_messages() -> None:
    frames = kqmsgq_wire.message(b"q", b"1") + kqmsgq_wire.message(b"r", b"")
    whole = block("kqmsgq", 2, frames, source=b"[::1]:7")
    assert passed("kqmsgq", whole) == [
        PastMessage(b"q", b"1", sender=b"[::1]:7"),
        PastMessage(b"r", b"", sender=b"[::1]:7"),
    ]
    with pytest.raises(ValueError, match="past its end"):
        passed("kqmsgq", whole[:-1])


def test_a_recording_of_pubsub_is_its_datagrams_with_their_senders_and_types() -> None:
    tape = Tape()
    sent = [(b"a/b", Kind.STRING, b"word"), (b"t" * 50, Kind.INT, b"\1\0\0\0\7"), (b"", Kind.STRING, b"")]
    track = FrameTrack(tape)  # type: ignore[arg-type]
    datagrams = [datagram(*each) for each in sent]
    frames = b"".join(frame(b"10.0.0.1:9", *each) for each in sent)
    track.record(frames, [len(each) for each in datagrams], len(sent))
    whole = block("pubsub", 3, tape.frames)
    assert passed("pubsub", whole) == [
        PastMessage(topic, payload, sender=b"10.0.0.1:9", own=kind) for topic, kind, payload in sent
    ]
    for cut in (whole[:-1], block("pubsub", 9, tape.frames[:5])):
        with pytest.raises(ValueError, match="past its end"):
            passed("pubsub", cut)


def test_a_recording_of_amqp_keeps_exchange_key_and_properties() -> None:
    packed = commands.Basic.Properties(**AMQP).marshal()
    frames = message(DmpMessage(b"ex", b"k.1", b"body", packed))
    whole = block("dmp", 1, frames, codec=RECORDED_PUBLISHES, name=b"ex", source=b"h:1")
    (found,) = passed("dmp", whole)
    assert found[:4] == (b"k.1", b"body", b"k.1", b"h:1")
    assert found.own == (b"ex", packed)
    with pytest.raises(ValueError, match="past its end"):
        passed("dmp", whole[:-1])


# -- where messages go


@pytest.mark.parametrize(
    ("text", "name", "renamed"),
    [
        ("s/^/again-/", b"jobs", b"again-jobs"),
        ("s,a/b,c,g", b"a/b/a/b", b"c/c"),
        (r"s/(.)o/\1u&/", b"foo-foo", b"fufoo-foo"),
        (r"s/a\/b/x/", b"a/b", b"x"),
        ("s/JOBS/x/i", b"jobs", b"x"),
    ],
)
def test_names_change_as_sed_changes_them(text: str, name: bytes, renamed: bytes) -> None:
    seen: list[bytes] = []
    placed = cli.renaming(text)
    seen.append(placed(name))
    assert seen == [renamed]


# -- at which pace


class Sink:
    """A target that takes what it can carry."""

    def __init__(self) -> None:
        self.payloads: list[bytes] = []
        self.target = Target(self._refuses, self._send)

    def _refuses(self, name: bytes, message: PastMessage) -> str | None:
        return "too large" if len(message.payload) > 5 else None

    async def _send(self, batch: Batch, writer: str, seq: int) -> None:
        self.payloads += [message.payload for _, message in batch]


async def test_what_cannot_be_carried_is_left_out_and_counted() -> None:
    sink, notes = Sink(), Progress(None, {})
    records = [SourcedRecord.of_log("here x", at, 0.0, bytes(size)) for at, size in ((0, 5), (9, 6), (19, 1))]
    position = notes.begin({"here x": (0, 99)}, 0)
    done = await engine.replay(lambda ranges: iter(records), sink.target, position, notes)
    assert (done.messages, done.refused, sink.payloads) == (2, {"too large": 1}, [bytes(5), bytes(1)])


def test_logs_are_merged_by_time_and_one_whose_clock_went_back_keeps_its_order() -> None:
    def log(name: str, *times: float) -> list[SourcedRecord]:
        return [SourcedRecord.of_log(f"here {name}", at, time, b"") for at, time in enumerate(times)]

    back, steady = log("x", 1.0, 5.0, 2.0, 6.0), log("y", 1.5, 3.0, 5.5)
    found = list(sources.in_time([iter(back), iter(steady)]))
    assert found == [back[0], steady[0], steady[1], back[1], back[2], steady[2], back[3]]


# -- from a folder


def test_what_retention_drops_from_a_log_while_a_replay_waits_is_told(tmp_path: Path) -> None:
    """And a log that was deleted ends it, also where another was made by its name."""
    fill(tmp_path, {("logmq", "jobs"): [b"1", b"22", b"333"]})
    source, _ = sources.opened("logmq:jobs", tmp_path, sources.Chosen())
    wanted = sources.extents_of(source)

    async def change(act: Callable[[Any], object]) -> None:
        store = await open_folder(tmp_path)
        act(store.namespace("logmq", ALWAYS))
        store.commit_pending()
        await store.close()

    trio.run(change, lambda topics: topics.logs["jobs"].drop_below(5))
    told: list[str] = []
    assert [each.message.payload for each in sources.records_of(source, wanted, told.append)] == [
        b"22",
        b"333",
    ]
    assert told == ["5 bytes of jobs were dropped by its retention since this replay began"]

    trio.run(change, lambda topics: topics.delete("jobs"))
    fill(tmp_path, {("logmq", "jobs"): [b"1"]})
    with pytest.raises(Failure, match="jobs was deleted since this replay began; a new --resume"):
        list(sources.records_of(source, wanted, told.append))


# -- from an archive


def archived(folder: Path, origin: str, log: str, payloads: Sequence[bytes]) -> None:
    """An archive of one log, as `brokers pipeline archive` leaves it."""
    batch = batch_of(payloads, log)
    end = sum(4 + len(payload) for payload in payloads)
    part = Part(log_key(log), log, "2030-01-01", 0, end, len(payloads), 1, "made")
    with archive_folder(place_of(folder), origin) as archive:
        path = folder / part.fresh_path
        path.parent.mkdir(parents=True)
        parquet.write_table(pa.Table.from_batches([batch]).drop_columns(["topic"]), path)
        span = ArchivedSpan(log, log, log, "1", ByteRange(0, end), [part])
        archive.commit(archive.manifest.advance([span], 0))


def test_an_archive_of_topics_or_of_a_recording_is_read_from_any_place(tmp_path: Path) -> None:
    frames = b"".join(kqmsgq_wire.message(b"q", b"%d" % number) for number in range(3))
    whole = block("kqmsgq", 3, frames, source=b"h:1")
    for kind, log, payloads, values in (
        ("logmq", "jobs", [b"a", b"", b"c"], [b"a", b"", b"c"]),
        ("recorded", "kqmsgq", [whole, whole], [b"0", b"1", b"2"] * 2),
    ):
        archived(tmp_path / kind, f"a data folder's {kind}", log, payloads)
        source, _ = sources.opened(f"archive:{tmp_path / kind}", tmp_path, sources.Chosen())
        assert source.protocol == ("kqmsgq" if kind == "recorded" else kind)
        ((label, (first, end)),) = sources.extents_of(source).items()
        found = list(sources.records_of(source, {label: (first, end)}, pytest.fail))
        assert [record.message.payload for record in found] == values
        cut = found[0].end  # of a recording: within the first block
        halves = [sources.records_of(source, {label: part}, pytest.fail) for part in ((0, cut), (cut, end))]
        assert [list(half) for half in halves] == [found[:1], found[1:]]
    with pytest.raises(Failure, match="was deleted since"):
        list(sources.records_of(source, {"other log": (0, 1)}, pytest.fail))
    with archive_folder(place_of(tmp_path / "lives"), "a data folder's dms") as archive:
        archive.commit(archive.manifest.advance((), 0))
    with pytest.raises(Failure, match="archive of a data folder's dms"):
        sources.opened(f"archive:{tmp_path / 'lives'}", tmp_path, sources.Chosen())


# -- with real servers


def replayed(server: Server, *arguments: str, code: int = 0) -> dict[str, Any]:
    done = run_here("replay", *arguments, "--data-dir", str(server.data), "--json")
    assert done.returncode == code, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def recorded(server: Server, protocol: str) -> list[PastMessage]:
    source, _ = sources.opened(f"recorded:{protocol}", server.data, sources.Chosen())
    try:
        there = sources.extents_of(source)
    except Failure:  # nothing yet
        return []
    return [record.message for record in sources.records_of(source, there, lambda text: None)]


def values(server: Server, topic: str) -> list[str]:
    said = run_here("log", "dump", "logmq", topic, "--json", "--data-dir", str(server.data)).stdout
    return [json.loads(line)["payload"] for line in said.splitlines()]


async def amqp(server: Server, act: Callable[[amqp_client.Client], Any]) -> Any:
    host, port = server.address("dmp")
    async with amqp_client.open_amqp(host, port) as client:
        return await act(client)


async def publish(client: amqp_client.Client) -> None:
    await client.declare_queue("orders.one")
    properties = commands.Basic.Properties(**AMQP)
    await client.publish("orders.one", b"first", properties=properties)
    await client.publish("orders.gone", b"second", exchange="amq.topic", mandatory=False)


async def consume(client: amqp_client.Client) -> list[tuple[bytes, str, Any]]:
    found = []
    async with client.consume("orders.one") as deliveries:
        for _ in range(2):
            delivery = await anext(deliveries)
            found.append((delivery.body, delivery.key, delivery.properties.headers))
            await delivery.ack()
    return found


def test_what_passed_goes_again_by_each_protocol_and_across(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    arguments = ("--enable", "all", "--record", "kqmsgq,pubsub,dmp")
    with Server(tmp_path, *arguments) as server:
        trio.run(amqp, server, publish)
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
            sock.bind(("127.0.0.1", 0))
            sender = "{}:{}".format(*sock.getsockname())
            for number, topic in enumerate((b"hall/0", b"hall/1", b"hall/[01]")):
                sock.sendto(
                    datagram(topic, Kind.STRING, b"%d" % number),
                    server.address("pubsub", "pubsub-udp"),
                )
        with socket.create_connection(server.address("kqmsgq")) as producer:
            producer.sendall(kqmsgq_wire.PRODUCE + kqmsgq_wire.message(b"q", b"x" * 5000))
        for protocol, count in (("dmp", 2), ("pubsub", 3), ("kqmsgq", 1)):
            until(lambda protocol=protocol, count=count: len(recorded(server, protocol)) == count)
        speak(server.address("logmq"), b"PRODUCE jobs 1\nPRODUCE jobs 2\n")

        # Each to itself: with its sender, its properties, and other names.
        assert replayed(server, "recorded:pubsub", "--wire")["messages"] == 3
        until(lambda: len(recorded(server, "pubsub")) == 6)
        assert {sent.sender.decode() for sent in recorded(server, "pubsub")} == {sender}
        assert replayed(server, "recorded:dmp", "--name", "orders.o*", "--rate", "max")["messages"] == 1
        assert trio.run(amqp, server, consume) == [(b"first", "orders.one", {"n": 7})] * 2
        replayed(server, "recorded:kqmsgq/q", "--map", "s/^/again-/", "--rate", "max")
        until(lambda: [sent.name for sent in recorded(server, "kqmsgq")] == [b"q", b"again-q"])

        # Across, once, however often it is said.
        across = ("recorded:pubsub/hall/?", "--to", "logmq:hall-{name.2}", "--rate", "max")
        for messages in (4, 0):
            assert replayed(server, *across, "--resume", "hall")["messages"] == messages
        until(lambda: [values(server, f"hall-{number}") for number in "01"] == [["0", "0"], ["1", "1"]])
        aside = ("recorded:pubsub/hall/[01]", "--to", "logmq:aside", "--rate", "max")
        assert replayed(server, *aside)["messages"] == 2, "a bracket stands for itself"
        until(lambda: values(server, "jobs") == ["1", "2"])  # files have it a second later
        assert replayed(server, "logmq:jobs", "--to", "dmp:orders.one", "--rate", "max")["messages"] == 2
        assert [body for body, *_ in trio.run(amqp, server, consume)] == [b"1", b"2"]

        for address in ("amq.direct/x.{name.1}", "%61mq.direct/x.jobs"):
            assert replayed(server, "logmq:jobs", "--to", f"dmp:{address}", "--rate", "max")["messages"] == 2
        # The block of the last two may come later.
        until(lambda: [sent.own.exchange for sent in recorded(server, "dmp")[-4:]] == [b"amq.direct"] * 4)
        assert {sent.key for sent in recorded(server, "dmp")[-4:]} == {b"x.jobs"}

        # A queue that is named must be there: what goes to it is lost else.
        done = run_here(
            "replay", "logmq:jobs", "--to", "dmp:nix", "--rate", "max", "--data-dir", str(server.data)
        )
        assert done.returncode == ExitCode.MISSING
        assert "no queue takes 'nix'" in done.stderr

        # What cannot be carried is told; the rest goes.
        found = replayed(server, "recorded:kqmsgq", "--to", "pubsub:a/{name}", "--rate", "max", code=1)
        assert found["not_carried"] == {"a payload of 5000 bytes": 2}
        assert server.stop() == 0


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("jobs",), "begins with a protocol"),
        (("mail:x",), "mail is no source"),
        (("recorded:dms",), "cannot be recorded"),
        (("recorded:zap",), "FROM: 'zap' is no protocol; there are dmp, dms,"),
        (("logmq:jobs", "--to", "zap:y"), "--to: 'zap' is no protocol; there are dmp, dms,"),
        (("logmq:jobs",), "appended to itself"),
        (("logmq:jobs", "--to", "dms:{x}"), "is no field"),
        (("logmq:jobs", "--to", "kqmsgq:*"), "--to: * is all queues, which is no target"),
        (("logmq:jobs", "--to", "jobs"), "begins with a protocol"),
        (("logmq:jobs", "--to", "dms:x", "--rate", "fast"), "is not 1x, 10x, 500/s or max"),
        (("logmq:jobs", "--to", "dms:x", "--rate", "0x"), "is not 1x"),
        (("logmq:jobs", "--map", "s/a/b"), "is not as 's/PATTERN/REPLACEMENT/'"),
        (("logmq:jobs", "--map", "s/(/b/"), "--map"),
        (("logmq:jobs", "--to", "dms:x", "--since", "soon"), "is no time"),
    ],
)
def test_a_mistake_is_told_in_one_line(arguments: Sequence[str], text: str, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    done = run_here("replay", *arguments, "--data-dir", str(tmp_path / "data"))
    assert done.returncode == 2
    assert text in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_another_replays_name_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    engine.Progress(cli.notes_file("mine"), {"from": "x"}).begin({}, 0)
    with pytest.raises(UsageError, match=r"--resume: .*another replay"):
        engine.Progress(cli.notes_file("mine"), {"from": "y"}).load()
    for wrong in ("", "../x", "a b"):
        with pytest.raises(UsageError, match="--resume"):
            cli.notes_file(wrong)


def test_what_was_chosen_by_age_is_still_chosen_when_a_replay_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An age counts from the beginning of the replay; the messages are too old for it when it goes on."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    with Server(tmp_path, "--enable", "all") as server:
        speak(server.address("logmq"), b"PRODUCE jobs 1\nPRODUCE jobs 2\n")
        until(lambda: values(server, "jobs") == ["1", "2"])
        again = (
            "replay",
            "logmq:jobs",
            "--to",
            "dmp:late",
            "--since",
            "4s",
            "--rate",
            "max",
            "--resume",
            "r",
        )
        began = time.monotonic()
        done = run_here(*again, "--data-dir", str(server.data))
        assert done.returncode == ExitCode.MISSING, "it has begun"

        async def declare(client: amqp_client.Client) -> None:
            await client.declare_queue("late")

        trio.run(amqp, server, declare)
        time.sleep(max(0, began + 4 - time.monotonic()))
        assert replayed(server, *again[1:])["messages"] == 2
        assert server.stop() == 0
