"""DMP's part of a document of definitions, exported while objects come and go."""

import json

import pytest

from brokers.admin.definitions import Document
from dmp.declarations import ExchangeKind
from dmp.definitions import definitions_of
from tests.brokers.turns import end_turns_early
from tests.dmp.world import World


def _document(world: World) -> Document:
    sections = [("dmp", each) for each in definitions_of(world.broker)]
    return Document(sections, (), world.store)


async def test_a_binding_that_was_made_amid_an_export_is_left_out_with_what_it_binds(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    end_turns_early(monkeypatch)
    topology = world.topology
    topology.declare_exchange(b"shop", ExchangeKind("fanout", durable=True))
    for number in range(100):
        topology.bind(b"shop", world.queue(b"q%d" % number, durable=True))
    topology.bind(b"amq.topic", topology.exchange(b"shop"), b"in")
    topology.bind(b"shop", topology.exchange(b"amq.fanout"), b"out")
    text = b""
    async for piece in _document(world).text():
        # The first queues are written.
        if b'"q0"' in piece and b"late" not in topology.destinations_of(False):
            late = world.queue(b"late", durable=True)
            topology.declare_exchange(b"also late", ExchangeKind("fanout", durable=True))
            for source in (b"shop", b"amq.fanout", b"also late"):
                topology.bind(source, late)
            topology.bind(b"also late", topology.exchange(b"shop"))
            topology.delete_queue(topology.queue(b"q7", None))
            world.settle()
        text += piece
    rows = json.loads(text)
    assert [each["name"] for each in rows["exchanges"]] == ["shop"]
    assert {each["exchange"] for each in rows["bindings"]} == {"shop", "amq.topic"}
    ends = {each.get("queue", each.get("to_exchange")) for each in rows["bindings"]}
    assert ends == {"shop", "amq.fanout", *(f"q{each}" for each in range(100) if each != 7)}
    assert ends - {"shop", "amq.fanout"} < {each["name"] for each in rows["queues"]}
    other = await World.open()
    assert (await _document(other).take(rows, dry_run=True)).left_out == 0
