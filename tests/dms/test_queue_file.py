"""The files that a real server writes, read byte for byte as STORAGE.md has them."""

import time
import zlib
from pathlib import Path

from brokers.commands import control
from brokers.commands.cli import run
from brokers.errors import ExitCode
from tests.dms.queue_file import Record, read
from tests.support import dms_spec as spec
from tests.support.dms_spec import SpecClient
from tests.support.server import Server, until

ENQUEUED, LETTERS, DELIVERED, ACKED, RETURNED, GONE, MOVED, KEPT, SNAPSHOT, IMPORTED = range(1, 11)
NACK, LOST, _, MAX_DELIVERIES, PURGED, _ = range(1, 7)
BODY = b"x" * 4000
PAST_A_SNAPSHOT = 2200
"""So many of them are more than the 8 MiB between two snapshots."""


def record(kind: int, *entries: object, reason: int = 0, sequence: int = 0) -> Record:
    return Record(kind, reason, sequence, entries)


def letter(sequence: int, body: bytes) -> Record:
    about = {"origin": "jobs", "reason": "max_deliveries", "deliveries": 2}
    return record(LETTERS, (about, body), sequence=sequence)


def test_the_bytes_of_queues_files_are_those_of_the_document(tmp_path: Path) -> None:
    began_ms = time.time_ns() // 1_000_000
    with Server(tmp_path, "--enable", "dms") as server:
        jobs = server.data / "dms" / "jobs.log"
        with SpecClient(server.address("dms")) as client:
            client.create("dead")
            options = b'{"max_deliveries":2,"dead_letter":"dead"}'
            assert client.ask(spec.CREATE, spec.name("jobs") + options)[1] == 0
            client.produce("jobs", b"one")
            client.produce("jobs", b"")
            client.ack(client.consume("jobs")[0])
            for _ in range(2):
                client.nack(client.consume("jobs")[0])
            client.produce("jobs", b"three")
            client.nack(client.consume("jobs")[0])
            client.consume("jobs")  # and keeps it, while a snapshot is made
            client.send(spec.frame(spec.PRODUCE, 1, spec.name("jobs") + BODY) * PAST_A_SNAPSHOT)
            for _ in range(PAST_A_SNAPSHOT):
                assert client.reply()[:2] == (spec.PRODUCE + 1, 0)
            until(lambda: any(one.kind == SNAPSHOT for one in read(jobs, growing=True)))
            client.disconnect()
            assert client.rest() == []
        until(lambda: read(jobs, growing=True)[-1].kind == MOVED)
        control.request(server.data, "POST", "/api/v1/queues/dms/dead/purge")
        assert server.stop() == 0
    found = read(jobs)
    filled = [one for one in found if one.kind == ENQUEUED and one.sequence > 3]
    assert [entry for one in filled for entry in one.entries] == [(BODY,)] * PAST_A_SNAPSHOT
    others = [one for one in found if one not in filled]
    (snapshot,) = (one for one in others if one.kind == SNAPSHOT)
    state = snapshot.entries[0]
    assert others == [
        record(ENQUEUED, (b"one",), sequence=1),
        record(ENQUEUED, (b"",), sequence=2),
        record(DELIVERED, (1, 1)),
        record(ACKED, (1, 1)),
        record(DELIVERED, (2, 1)),
        record(RETURNED, (2, 1, 0), reason=NACK),
        record(DELIVERED, (2, 1)),
        record(RETURNED, (2, 2, 0), reason=NACK),
        record(MOVED, (2, 1), "dead", reason=MAX_DELIVERIES),
        record(ENQUEUED, (b"three",), sequence=3),
        record(DELIVERED, (3, 1)),
        record(RETURNED, (3, 1, 0), reason=NACK),
        record(DELIVERED, (3, 1)),
        record(SNAPSHOT, state, sequence=4),
        record(KEPT, (3, 2, 0, None, b"three")),
        record(RETURNED, (3, 2, 0), reason=LOST),
        record(MOVED, (3, 1), "dead", reason=MAX_DELIVERIES),
    ]
    home = state.pop("home")
    assert home in [one.offset for one in found]
    assert home <= filled[0].offset
    tail = 4 + sum(len(one.entries) for one in filled if one.offset < snapshot.offset)
    empty = {"expired": 0, "released": 0, "lives": [], "delays": []}
    assert state == {"head": 4, "tail": tail, "places": True, "out": [3, 1, 2, 0], **empty}
    assert all(began_ms <= one.unix_ms <= time.time_ns() // 1_000_000 for one in found)
    assert all(one.age_ms <= one.unix_ms - began_ms + 1 for one in found)
    dead = read(server.data / "dms" / "dead.log")
    for one in dead:
        if one.kind == LETTERS:
            assert began_ms <= one.entries[0][0].pop("time") <= one.unix_ms
    assert dead == [
        letter(1, b""),
        letter(2, b"three"),
        record(GONE, (1, 2), reason=PURGED),
    ]


DMSQ = b"\0\0\0\2" + b"\0\0\0\7\0\0\0\3one" + b"\0\0\0\x09\0\0\0\0"
IMPORT = [
    record(IMPORTED, {"file": "old.dmsq", "crc32": zlib.crc32(DMSQ)}),
    record(ENQUEUED, (b"one",), (b"",), sequence=1),
]


def test_an_import_is_told_before_what_it_brought(tmp_path: Path) -> None:
    (tmp_path / "old.dmsq").write_bytes(DMSQ)
    with Server(tmp_path, "--enable", "dms") as server:
        config = tmp_path / "there.toml"
        config.write_text(f"[serve]\ndata_dir = '{server.data}'\n")
        told = ["--config", str(config)]
        assert run(["dms", "import", str(tmp_path / "old.dmsq"), *told]) == ExitCode.OK
        assert server.stop() == 0
    assert read(server.data / "dms" / "old.log") == IMPORT


def test_a_start_imports_a_file_of_the_data_folder_and_the_next_does_not(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir(mode=0o700)
    (tmp_path / "data" / "old.dmsq").write_bytes(DMSQ)
    for _ in range(2):
        with Server(tmp_path, "--enable", "dms") as server, SpecClient(server.address("dms")) as client:
            assert client.queues() == {"old": 2}
            server.kill()
    with Server(tmp_path, "--enable", "dms") as server:
        assert server.stop() == 0
    assert read(server.data / "dms" / "old.log") == IMPORT
