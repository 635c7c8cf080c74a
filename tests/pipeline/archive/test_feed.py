"""What the archive asks of the source, without Spark: of folders that move, servers renamed, and several."""

import json
from collections.abc import Callable
from pathlib import Path

from brokers.pipeline.archiving.feed import ArchiveInput, Look
from brokers.pipeline.archiving.manifest import LogState, Manifest
from brokers.pipeline.source import rows
from brokers.pipeline.source.options import parse
from brokers.pipeline.source.ranges import LogRange, shares
from tests.pipeline.served import where
from tests.support.folders import fill
from tests.support.server import Server, speak


def names(feed: ArchiveInput, known: Manifest) -> list[str]:
    with feed.look() as look:
        return [name for name, _ in look.logs(known)]


def known(*names: str) -> Manifest:
    logs = [LogState(f"{name}#1", name, "orders", "0", 0, 0) for name in names]
    return Manifest(logs={log.key: log for log in logs})


def records(feed: ArchiveInput) -> list[tuple[str, int, bytes]]:
    """Everything, in pieces as small as the index allows."""
    found = []
    with feed.look() as look:
        for _, log in look.logs(Manifest()):
            for ranges in shares([log], None, look.cut, size=1):
                for batch in rows.read(feed.options, ranges):
                    offsets, values = (batch.column(name).to_pylist() for name in ("offset", "value"))
                    found += [(log.topic, *row) for row in zip(offsets, values, strict=True)]
    return found


def test_a_data_folder_is_the_same_wherever_it_is(tmp_path: Path) -> None:
    fill(tmp_path / "data", {("logmq", "orders"): [b"a", b"b"]})
    before = names(ArchiveInput(parse({"path": str(tmp_path / "data"), "subscribe": "orders"})), Manifest())
    (tmp_path / "data").rename(tmp_path / "moved")
    paths = json.dumps([str(tmp_path / "moved"), f"{tmp_path}/moved/"])
    feed = ArchiveInput(parse({"paths": paths, "subscribe": "orders"}))
    assert names(feed, Manifest()) == before
    assert records(feed) == [("orders", 0, b"a"), ("orders", 5, b"b")]


def test_another_data_folder_is_not_taken_for_the_one_that_was_archived(tmp_path: Path) -> None:
    found = []
    for folder in (tmp_path / "one", tmp_path / "two"):
        fill(folder, {("dms", "a@b"): [b"a"]})
        feed = ArchiveInput(parse({"path": str(folder), "subscribePattern": ".*", "namespace": "dms"}))
        found += names(feed, known(*found))
    assert [name.rpartition("@")[0] for name in found] == ["a@b", "a@b"]
    assert len(set(found)) == 2


def test_a_server_is_known_again_also_by_topics_with_an_at_sign() -> None:
    class Place:
        def logs(self, topics: object) -> dict[str, LogRange]:
            return {"a@b": LogRange("here:1", "a@b", 8, 0, 30)}

    feed = ArchiveInput(parse({"servers": "here:1", "subscribePattern": ".*"}))
    look = Look(feed, {"here:1": Place()})  # type: ignore[dict-item]
    found = look.logs(known("a@b@elsewhere:1", "a@elsewhere:1"))
    assert [name for name, _ in found] == ["a@b@elsewhere:1"]


def test_servers_are_known_by_their_address_but_one_may_be_renamed(
    new_server: Callable[..., Server],
) -> None:
    addresses = []
    for value in (b"a", b"b"):
        server = new_server("--enable", "logmq").start()
        speak(server.address("logmq"), b"PRODUCE orders %b\n" % value)
        addresses.append(where(server))
    both = ArchiveInput(parse({"servers": ",".join(addresses), "subscribePattern": ".*"}))
    assert names(both, known("orders@elsewhere:1")) == sorted(f"orders@{address}" for address in addresses)
    assert sorted(records(both)) == [("orders", 0, b"a"), ("orders", 0, b"b")]
    one = ArchiveInput(parse({"servers": addresses[0], "subscribePattern": ".*"}))
    assert names(one, Manifest()) == [f"orders@{addresses[0]}"]
    assert names(one, known("orders@elsewhere:1")) == ["orders@elsewhere:1"]
    assert names(one, known("orders@elsewhere:1", "orders@here:1")) == [f"orders@{addresses[0]}"]
