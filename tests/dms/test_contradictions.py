"""Options that no queue can keep together are refused, wherever they come from."""

import json
from typing import Any

import pytest

from dms.settings import DmsSettings, QueueSettings
from dms.wire import Refusal, Status
from tests.dms.test_reload import reload
from tests.dms.world import World, statuses

BAD = [
    ({"ttl_ms": 100, "delay_ms": 101}, "ttl_ms"),
    ({"retry_max_ms": 100}, "retry_max_ms"),
    ({"retry_max_ms": 100, "retry_ms": 0}, "retry_max_ms"),
    ({"retry_max_ms": 100, "retry_ms": 101}, "retry_max_ms"),
]


@pytest.mark.parametrize(("options", "named"), BAD)
def test_create_queue_refuses_them_and_names_them(world: World, options: dict[str, Any], named: str) -> None:
    (frame,) = world.connect().create("orders", json.dumps(options).encode())
    assert statuses([frame]) == [Status.PROTOCOL_ERROR]
    assert named in frame[4].decode()
    assert world.depths() == {}


@pytest.mark.parametrize(("options", "named"), BAD)
def test_settings_refuse_them_and_name_the_pattern(options: dict[str, Any], named: str) -> None:
    with pytest.raises(ValueError, match=rf'queues."job-\*": {named}'):
        DmsSettings(queues={"job-*": QueueSettings(**options)})


@pytest.mark.parametrize("options", [{"ttl_ms": 100, "delay_ms": 100}, {"delay_ms": 100}, {"ttl_ms": 1}])
def test_what_can_be_kept_together_is_taken(world: World, options: dict[str, Any]) -> None:
    assert statuses(world.connect().create("orders", json.dumps(options).encode())) == [Status.OK]


def test_an_option_counts_together_with_what_the_settings_fill_in() -> None:
    world = World(DmsSettings(persist=False, queues={"*": QueueSettings(ttl_ms=100, retry_ms=10)}))
    peer = world.connect()
    assert statuses(peer.create("late", b'{"delay_ms":200}')) == [Status.PROTOCOL_ERROR]
    assert statuses(peer.create("again", b'{"retry_max_ms":200}')) == [Status.OK]
    with pytest.raises(Refusal, match="ttl_ms"):
        world.engine.check_new("late", {"delay_ms": 200})


def test_a_queue_keeps_its_options_where_new_settings_contradict_them() -> None:
    world = World(DmsSettings(persist=False))
    world.connect().create("orders", b'{"delay_ms":200}')
    reload(world, ttl_ms=100)
    queue = world.engine.find("orders")
    assert queue is not None
    assert (queue.options.ttl_ms, queue.options.delay_ms) == (0, 200)
