"""`brokers log dump` shows what records say, by the tables that the protocols have; --raw their bytes."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from brokers.commands import dumping
from brokers.commands.dumping import BATCH_RECORDS, decoder
from shared.storage.tools.logs import DamagedRow, RecordRow
from tests.brokers.conftest import Run
from tests.support.recorded import block
from tests.support.server import Server

NewServer = Callable[..., Server]


def recorded(offset: int, body: bytes) -> RecordRow:
    frames = b"*" + (4).to_bytes(4, "big") + b"news" + len(body).to_bytes(4, "big") + body
    return RecordRow(offset, 1_795_401_446_382, block("kqmsgq", 1, frames, source=b"127.0.0.1:5"))


def test_a_recordings_blocks_are_shown_as_their_messages() -> None:
    decode = decoder("recorded", "kqmsgq")
    assert decode is not None
    records = [recorded(number, b"%d" % number) for number in range(BATCH_RECORDS + 1)]
    damaged = DamagedRow(7000, 5, "its CRC")
    *rows, hole, last = decode([*records, damaged, RecordRow(7005, None, b"no block")])
    assert [(row["offset"], row["name"], row["payload"]) for row in rows] == [
        (number, "news", b"%d" % number) for number in range(BATCH_RECORDS + 1)
    ]
    assert hole is damaged, "in its place"
    assert last["offset"] == 7005
    assert last["fault"]


def test_what_says_all_by_itself_or_has_no_table_is_shown_as_it_is() -> None:
    assert decoder("logmq", "orders") is None
    assert decoder("dms-tables", "queues") is None
    assert decoder("nowhere", "none") is None


@pytest.mark.parametrize(
    ("namespace", "log"),
    [
        ("recorded", "pubsub"),
        ("recorded", "dmp"),
        ("dms", "jobs"),
        ("dmp-queues", "jobs"),
        ("pubsub", "kept"),
    ],
)
def test_logs_of_every_protocol_have_a_decoder(namespace: str, log: str) -> None:
    decode = decoder(namespace, log)
    assert decode is not None
    (row,) = decode([RecordRow(0, 5, b"\xff")])
    assert row["fault"], "and it never raises over what stands in a log"


def test_a_dump_is_messages_or_with_raw_bytes_and_without_arrow_bytes_and_a_word(
    new_server: NewServer, command: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    server = new_server("--enable", "kqmsgq", "--record", "kqmsgq").start()
    command("kqmsgq", "produce", "news", "hello", "--port", str(server.address("kqmsgq")[1]))
    assert server.stop() == 0
    dump = ("log", "dump", "recorded", "kqmsgq", "--data-dir", str(server.data))
    code, out, _ = command(*dump)
    assert code == 0
    assert "name=news" in out
    assert out.endswith("payload=hello\n")
    assert json.loads(command(*dump, "--json")[1])["payload"] == "hello"
    raw = command(*dump, "--raw")
    assert raw[0] == 0
    assert "kqmsgq" in raw[1]
    assert "payload=" not in raw[1]

    def missing(_: object) -> None:
        raise ImportError("No module named 'pyarrow'")

    monkeypatch.setattr(dumping, "tables_of", missing)
    code, out, err = command(*dump)
    assert (code, out) == raw[:2]
    assert "No module named 'pyarrow'" in err
    assert "brokers[spark]" in err
