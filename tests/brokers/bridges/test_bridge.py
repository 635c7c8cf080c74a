"""What a bridge does with messages: forms, names, filters, rates, refusals, circles, and where it begins."""

import json
import math
import struct
from collections.abc import Mapping

import pytest
from structlog.testing import capture_logs

from brokers.bridges import forms
from brokers.bridges.bridges import KEPT_SECONDS, row
from dmp.declarations import QueueArguments, QueueKind
from dmp.message import Head
from dms.settings import DmsSettings
from shared.access import Access, parse_users
from shared.bridging import INBOX_BYTES_MAX, BridgeRefusal
from shared.errors import StoreError
from shared.queues import core
from shared.storage.log import Log
from tests.brokers.bridges.world import World, bridge
from tests.dmp.world import Taker
from tests.support.fake_disk import FakeDisk, Operation
from tests.support.stores import SMALL, open_store, reopen


async def _crossing(source: str, target: str, **more: object) -> World:
    world = await World.open(None)
    world.make("dms", "in")
    await world.bridges.change([bridge(source, target, **more)])
    world.carry()
    return world


# -- forms and names


async def test_json_says_where_a_message_came_from_and_what_it_is() -> None:
    world = await _crossing("pubsub:home/+/temperature", "logmq:{name.2}", as_="json")
    world.datagrams([(b"home/kitchen/temperature", 1, (2150).to_bytes(2, "big"))])
    world.datagrams([(b"home/cellar/temperature", 3, "kühl".encode())])
    world.carry()
    (number,) = await world.found("logmq", "kitchen")
    found = json.loads(number)
    assert len(found.pop("mark")) == 32
    assert found == {
        "protocol": "pubsub",
        "name": "home/kitchen/temperature",
        "time": "2023-11-14T22:13:20.000Z",
        "sender": "10.0.0.1:9",
        "type": "SHORT_REAL",
        "value": 21.5,
        "bridges": ["b"],
    }
    (text,) = await world.found("logmq", "cellar")
    assert json.loads(text)["value"] == "kühl"


async def test_json_of_bytes_is_base64_and_has_their_position() -> None:
    world = await _crossing("logmq:in", "logmq:out", as_="json")
    world.send("logmq", "in", b"a", b"\xff\xfe")
    world.carry()
    found = [json.loads(each) for each in await world.found("logmq", "out")]
    assert [each["position"] for each in found] == [0, 5]
    assert [(each["value"], each.get("encoding")) for each in found] == [("a", None), ("//4=", "base64")]


async def test_json_of_any_header_is_json() -> None:
    world = await World.open(None)
    world.make("dmp", "in")
    await world.bridges.change([bridge("dmp:in", "logmq:out", as_="json")])
    world.carry()
    broker = world.services["dmp"].broker
    table = b"\3nand" + struct.pack(">d", math.nan) + b"\3inff" + struct.pack(">f", math.inf)
    table += b"\5bytesx\0\0\0\2\xff\xfe" + b"\4timeT" + (1_700_000_000).to_bytes(8, "big")
    head = Head(b"", b"in", 1, b"\x20\0" + len(table).to_bytes(4, "big") + table)
    broker.publish(head, broker.route(b"", head), [b"x"])
    broker.flush()
    world.later()

    def refuse(word: str) -> None:
        raise AssertionError(f"{word} is no JSON")

    (found,) = await world.found("logmq", "out")
    assert json.loads(found, parse_constant=refuse)["properties"]["headers"] == {
        "nan": "nan",
        "inf": "inf",
        "bytes": r"\xff\xfe",
        "time": "2023-11-14T22:13:20.000Z",
    }


async def test_text_is_what_the_protocols_terminal_prints() -> None:
    world = await _crossing("pubsub:a", "logmq:out", as_="text")
    world.datagrams([(b"a", 0, b"\1" + (7).to_bytes(4, "big"))])
    world.carry()
    assert await world.found("logmq", "out") == [b"10.0.0.1:9 - a - INT - -7"]


async def test_names_are_made_of_what_came() -> None:
    world = await _crossing("dmp:amq.topic/orders.#", "logmq:audit-{key.2}.{protocol}.{date}")
    world.send("dmp", "orders.new", b"one", exchange="amq.topic")
    world.send("dmp", "orders.old", b"two", exchange="amq.topic")
    world.carry()
    assert await world.found("logmq", "audit-new.dmp.2023-11-14") == [b"one"]
    assert await world.found("logmq", "audit-old.dmp.2023-11-14") == [b"two"]


# -- filter and rate


async def test_a_filter_leaves_out_by_name_and_by_size() -> None:
    wanted = {"key": "in.*", "min_bytes": 2, "max_bytes": 3}
    world = await _crossing("logmq:*", "dms:in", filter=wanted)
    world.send("logmq", "in.a.b", b"1", b"12", b"123", b"1234")
    world.send("logmq", "other", b"12")
    world.carry()
    assert await world.found("dms", "in") == [b"12", b"123"]
    assert (world.only.counts.carried, world.only.counts.filtered, world.only.lag) == (2, 3, 0)


async def test_a_rate_is_kept_to_over_time_with_a_burst_of_one_second() -> None:
    world = await _crossing("logmq:in", "dms:in", rate="10/s")
    world.send("logmq", "in", *[b"%d" % number for number in range(40)])
    world.carry()
    assert len(await world.found("dms", "in")) == 10
    world.later(0.5)
    assert len(await world.found("dms", "in")) == 15
    world.later(60)
    assert len(await world.found("dms", "in")) == 25


# -- what is refused


async def test_a_message_that_never_fits_is_set_apart_and_holds_nobody_up() -> None:
    world = await _crossing("logmq:in", "dms:in")
    world.send("logmq", "in", b"a", bytes(5000), b"b")
    world.carry()
    assert await world.found("dms", "in") == [b"a", b"b"]
    (dead,) = map(json.loads, await world.found("logmq", "dead.b"))
    assert (dead["reason"], dead["position"], len(dead["value"])) == ("too_large", 5, 5000)
    assert dead["bridges"] == ["b"]
    assert dict(world.only.counts.dead) == {"too_large": 1}


async def test_of_a_dead_message_that_no_log_has_room_for_the_beginning_is_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    written: list[int] = []
    make = forms.dead_letter_of
    monkeypatch.setattr(
        forms, "dead_letter_of", lambda *given, **cut: written.append(1) or make(*given, **cut)
    )
    world = await _crossing("kqmsgq:in", "logmq:out")
    world.send("kqmsgq", "in", bytes(3 << 20))
    world.carry()
    (dead,) = map(json.loads, await world.found("logmq", "dead.b"))
    assert (dead["cut_from_bytes"], len(dead["value"])) == (3 << 20, forms.DEAD_VALUE_BYTES_MAX)
    assert len(written) == 1, "the whole was not made first, which takes the loop's time"


async def test_a_name_that_comes_out_empty_holds_nobody_up() -> None:
    for target in ("dms", "dmp"):
        world = await World.open(None)
        world.make(target, "in")
        await world.bridges.change([bridge("logmq:*", f"{target}:{{name.2}}")])
        world.carry()
        for name in ("without", "with.in"):
            world.send("logmq", name, b"a")
        world.carry()
        assert await world.found(target, "in") == [b"a"]
        assert dict(world.only.counts.dead) == {"bad_name": 1}


async def test_a_full_queue_is_waited_for_and_order_is_kept() -> None:
    world = await World.open(None)
    world.services["dms"].engine.create("in", {"depth": 5})
    await world.bridges.change([bridge("logmq:in", "dms:in")])
    world.carry()
    world.send("logmq", "in", *[b"%d" % number for number in range(12)])
    world.carry()
    assert (world.only.state, world.only.counts.carried) == ("waiting", 5)
    queue = world.services["dms"].engine.find("in")
    taken = []
    for _ in range(3):
        taken += await world.found("dms", "in")
        queue.drop_front(queue.end - queue.head)
        world.later()
    assert taken == [b"%d" % number for number in range(12)]
    assert (world.only.state, world.only.inbox.bytes) == ("running", 0)


@pytest.mark.parametrize(("source", "lag"), [("kqmsgq:in", 7), ("dmp:amq.fanout/in", 7), ("logmq:in", 37)])
async def test_what_waits_for_a_full_queue_is_the_bridges_lag(source: str, lag: int) -> None:
    world = await World.open(None)
    world.services["dms"].engine.create("out", {"depth": 5})
    await world.bridges.change([bridge(source, "dms:out")])
    world.carry()
    bodies = [b"%d" % number for number in range(12)]
    world.send(source.partition(":")[0], "in", *bodies, exchange="amq.fanout")
    world.later()
    assert (world.only.state, world.only.counts.carried, world.only.lag) == ("waiting", 5, lag)


async def test_dropping_is_counted_and_dead_takes_what_could_pass_later_too() -> None:
    for policy, dead in (("drop", 0), ("dead:logmq:refused", 2)):
        world = await World.open(None)
        world.services["dms"].engine.create("in", {"depth": 1})
        await world.bridges.change([bridge("logmq:in", "dms:in", on_refused=policy)])
        world.carry()
        world.send("logmq", "in", b"1", b"2", b"3")
        world.carry()
        assert len(await world.found("logmq", "refused")) == dead
        assert (world.only.counts.dropped.total(), world.only.lag) == (2 - dead, 0)


async def test_a_queue_that_is_missing_is_waited_for_at_both_ends() -> None:
    world = await World.open(None, bridge("dms:in", "dms:out"))
    world.carry()
    assert (world.only.state, world.only.last_error) == ("waiting", "there is no queue in")
    world.make("dms", "in")
    world.send("dms", "in", b"a")
    world.later()
    assert (world.only.state, world.only.last_error) == ("waiting", "there is no queue out")
    world.make("dms", "out")
    world.later()
    assert await world.found("dms", "out") == [b"a"]
    shown = row(world.only)
    assert (shown["state"], shown["last_error"], shown["last_error_time"]) == ("running", None, None)


async def test_a_bridge_that_waited_for_the_place_of_dead_messages_runs_once_that_is_there() -> None:
    world = await World.open(None)
    world.services["dms"].engine.create("in", {"depth": 1})
    await world.bridges.change([bridge("logmq:in", "dms:in", on_refused="dead:dms:dead")])
    world.carry()
    world.send("logmq", "in", b"1", b"2")
    world.carry()
    assert (world.only.state, world.only.last_error) == ("waiting", "there is no queue dead")
    world.make("dms", "dead")
    world.later()
    assert (world.only.state, row(world.only)["last_error"]) == ("running", None)


async def test_a_queue_that_is_deleted_and_made_again_is_taken_from_again() -> None:
    world = await _crossing("dms:in", "logmq:out")
    engine = world.services["dms"].engine
    engine.delete(engine.find("in"))
    world.carry()
    world.make("dms", "in")
    world.send("dms", "in", b"a")
    world.later()
    assert await world.found("logmq", "out") == [b"a"]


async def test_a_queue_that_cannot_be_read_now_is_not_said_to_be_gone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(core, "HOT_LEAST_BYTES", 0)
    world = await World.open(None, dms=DmsSettings(hot_bytes=0))
    world.make("dms", "in")
    world.send("dms", "in", b"a")
    with monkeypatch.context() as failing:
        failing.setattr(Log, "read", lambda log, offset, size, done: done(StoreError("the disk fails")))
        await world.bridges.change([bridge("dms:in", "logmq:out")])
        world.carry()
        assert (world.only.state, world.only.last_error) == ("waiting", "INTERNAL: the disk fails")
    assert world.services["dms"].engine.find("in").depth == 1
    times = world.services["dms"].engine.times
    times.timers.now = lambda: times.now_ms() + 2000
    times.timers.run_due()  # the second in which nothing is read is over
    world.later()
    assert (world.only.state, await world.found("logmq", "out")) == ("running", [b"a"])


async def test_a_source_that_cannot_wait_loses_what_has_no_room_and_it_is_counted() -> None:
    world = await _crossing("kqmsgq:in", "dms:missing")
    body = bytes(1 << 20)
    for _ in range(10):
        world.send("kqmsgq", "in", body)
    world.carry()
    only = world.only
    assert only.inbox.bytes <= INBOX_BYTES_MAX
    assert only.counts.lost["slow"] == 3
    account = next(each for each in world.budget.all() if each.name == "bridges")
    assert account.used_bytes == only.inbox.bytes


async def test_what_the_disk_refuses_is_carried_once_it_takes_it() -> None:
    for source in ("logmq", "dms", "dmp", "kqmsgq"):
        disk = FakeDisk()
        world = await World.open(await open_store(disk, SMALL))
        for protocol in ("dms", "dmp"):
            world.make(protocol, "in")
        world.send("logmq", "in", b"0")
        await world.bridges.change([bridge(f"{source}:in", "logmq:out")])
        world.carry()
        world.send(source, "in", b"a", b"b")
        _refuse_next_write(disk)
        world.only.step()
        assert disk.before is None, "it was refused"
        world.later()
        assert await world.found("logmq", "out") == [b"a", b"b"], source
        assert (world.only.inbox.bytes, world.only.counts.carried) == (0, 2)


def _refuse_next_write(disk: FakeDisk) -> None:
    def no_space(operation: Operation) -> None:
        if operation.kind == "write":
            disk.before = None
            raise OSError(28, "no space")

    disk.before = no_space


# -- circles


async def test_a_message_passes_no_bridge_twice() -> None:
    world = await World.open(None)
    around = [
        bridge("kqmsgq:a", "pubsub:b", name="one", may_circle=True),
        bridge("pubsub:b", "kqmsgq:a", name="two", may_circle=True),
    ]
    await world.bridges.change(around)
    world.carry()
    world.send("kqmsgq", "a", b"x")
    world.carry()
    assert await world.found("kqmsgq", "a") == [b"x", b"x"]
    assert [each.counts.circled for each in world.each()] == [1, 0]


async def test_json_tells_over_logs_what_a_message_has_passed() -> None:
    world = await World.open(None)
    around = [
        bridge("logmq:a", "logmq:b", name="one", as_="json", may_circle=True),
        bridge("logmq:b", "logmq:a", name="two", as_="json", may_circle=True),
    ]
    await world.bridges.change(around)
    world.carry()
    world.send("logmq", "a", b"x")
    world.carry()
    assert [len(await world.found("logmq", name)) for name in "ab"] == [2, 1]
    assert json.loads((await world.found("logmq", "a"))[1])["bridges"] == ["one", "two"]


async def test_json_tells_over_restarts_what_a_message_has_passed() -> None:
    disk, settings = FakeDisk(), bridge("logmq:a", "logmq:a", as_="json", may_circle=True, start="first")
    world = await World.open(await open_store(disk, SMALL), settings)
    world.send("logmq", "a", b"x")
    world.only.step()
    world.bridges.stop()
    world.store.commit_pending()
    assert len(await world.found("logmq", "a")) == 2
    store, _ = await reopen(world.store, disk)
    world = await World.open(store, settings)
    world.carry()
    assert len(await world.found("logmq", "a")) == 2
    assert world.only.counts.circled == 1


@pytest.mark.parametrize("form", ["raw", "json"])
async def test_what_a_message_says_that_it_has_passed_is_believed_of_bridges_alone(form: str) -> None:
    world = await _crossing("logmq:in", "logmq:out", as_=form)
    other = await _crossing("logmq:in", "logmq:out", as_="json")  # another server, with a bridge of that name
    other.send("logmq", "in", b"x")
    other.carry()
    (theirs,) = await other.found("logmq", "out")
    mark = json.loads(theirs)["mark"]
    forged = [
        b'{"protocol":"x","bridges":["b"],"order":"sell"}',
        b'{"protocol":"x","bridges":["b"],"mark":"%s"}' % mark.encode(),
        b'{"protocol":"","mark":"%s"}' % mark.encode(),
        b'{"protocol":"x","mark":"short"}',
        b'{"protocol":"' + b"[" * 100_000 + b'"}',
        theirs,
    ]
    world.send("logmq", "in", *forged)
    world.carry()
    assert (world.only.counts.carried, world.only.counts.circled) == (len(forged), 0)
    carried = await world.found("logmq", "out")
    if form == "json":
        assert [json.loads(body)["bridges"] for body in carried] == [["b"]] * len(forged)
        own = carried[0]
        changed = own.replace(b"sell", b"send")
        world.send("logmq", "in", own, changed)
        world.carry()
        assert world.only.counts.circled == 1, "what is another message is carried"
    else:
        assert carried == forged


# -- where it begins


@pytest.mark.parametrize(
    ("start", "found"),
    [("end", []), ("first", [b"a", b"b"]), (5, [b"b"]), ("2020-01-01T00:00:00Z", [b"a", b"b"])],
)
async def test_a_first_run_begins_where_start_says(start: object, found: list[bytes]) -> None:
    world = await World.open(None)
    world.send("logmq", "in", b"a", b"b")
    await world.bridges.change([bridge("logmq:in", "logmq:out", start=start)])
    world.carry()
    world.send("logmq", "in", b"c")
    world.carry()
    assert await world.found("logmq", "out") == [*found, b"c"]


async def test_a_topic_that_is_made_later_is_carried_from_its_beginning() -> None:
    disk = FakeDisk()
    settings = bridge("logmq:in*", "logmq:out")
    world = await World.open(await open_store(disk, SMALL), settings)
    world.carry()
    world.send("logmq", "in1", b"a")
    world.carry()
    world.bridges.stop()
    world.send("logmq", "in2", b"b")
    store, _ = await reopen(world.store, disk)
    world = await World.open(store, settings)
    world.carry()
    assert await world.found("logmq", "out") == [b"a", b"b"]


async def test_a_topic_made_again_while_records_of_the_old_one_are_held_is_carried_from_its_beginning() -> (
    None
):
    world = await _crossing("logmq:in", "dms:in", rate="2/s")
    world.send("logmq", "in", *[b"old-%d" % number for number in range(6)])
    world.carry()
    broker = world.services["logmq"].broker
    broker.delete(broker.topics.find("in"))
    world.send("logmq", "in", b"new-0", b"new-1")
    world.later()  # two of the old ones
    world.only.set_paused(True)
    world.carry()
    world.only.set_paused(False)
    world.carry()
    world.later(2)
    assert await world.found("dms", "in") == [b"old-0", b"old-1", b"old-2", b"old-3", b"new-0", b"new-1"]


async def test_a_reset_begins_anew_and_a_queue_has_none() -> None:
    world = await _crossing("logmq:in", "logmq:out")
    world.send("logmq", "in", b"a", b"b")
    world.carry()
    world.only.reset("first")
    world.carry()
    assert await world.found("logmq", "out") == [b"a", b"b"] * 2
    world = await _crossing("dms:in", "logmq:out")
    with pytest.raises(BridgeRefusal, match="keeps no position"):
        world.only.reset("first")


async def test_a_start_within_a_record_begins_with_that_record() -> None:
    world = await World.open(None)
    world.send("logmq", "in", b"one", b"two", b"three")
    await world.bridges.change([bridge("logmq:in", "logmq:out", start=9)])
    world.carry()
    assert await world.found("logmq", "out") == [b"two", b"three"]


async def test_a_topic_that_cannot_be_read_now_is_read_later_and_nothing_is_left_out() -> None:
    world = await _crossing("logmq:in", "logmq:out")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("shared.storage.log.Log.read", lambda *given: given[-1](StoreError("a bad disk")))
        world.send("logmq", "in", b"a", b"b")
        world.carry()
        assert (world.only.state, world.only.last_error) == ("waiting", "a bad disk")
    world.later()
    assert await world.found("logmq", "out") == [b"a", b"b"]
    assert (world.only.state, world.only.inbox.bytes) == ("running", 0)


async def test_what_a_topic_has_dropped_meanwhile_is_told_and_the_rest_is_carried() -> None:
    world = await _crossing("logmq:in", "logmq:out")
    world.send("logmq", "in", b"sent")
    world.carry()
    world.only.set_paused(True)
    world.carry()
    world.send("logmq", "in", b"lost")
    log = world.services["logmq"].broker.topics.find("in")
    log.drop_below(log.end)
    world.send("logmq", "in", b"kept")
    with capture_logs() as told:
        world.only.set_paused(False)
        world.later()
    assert [each["reason"] for each in told] == ["the first kept offset is 16"]
    assert await world.found("logmq", "out") == [b"sent", b"kept"]


# -- operating


async def test_the_consumer_after_a_bridge_gets_first_what_the_bridge_gives_back() -> None:
    world = await World.open(None, bridge("dmp:in", "logmq:out", rate="2/s"))
    broker = world.services["dmp"].broker
    kind = QueueKind(arguments=QueueArguments(single_active=True))
    queue, _ = broker.topology.declare_queue(b"in", kind, broker.new_application(""))
    world.later()
    following = Taker(no_ack=False)
    queue.add_consumer(following)
    bodies = [b"%04d" % number for number in range(3000)]
    world.send("dmp", "in", *bodies)
    world.carry()
    assert following.bodies == []
    await world.bridges.change(())
    assert following.bodies
    assert following.bodies == sorted(following.bodies)
    assert not any(message.tries for message in following.messages), "nobody has seen them"


async def test_a_pause_outlives_a_restart_and_gives_back_what_was_taken() -> None:
    disk = FakeDisk()
    settings = bridge("dms:in", "logmq:out")
    world = await World.open(await open_store(disk, SMALL), settings)
    world.make("dms", "in")
    world.later()
    world.only.set_paused(True)
    world.send("dms", "in", b"a")
    world.carry()
    assert (world.only.state, world.services["dms"].engine.find("in").held) == ("paused", 0)
    store, _ = await reopen(world.store, disk)
    world = await World.open(store, settings)
    world.carry()
    assert world.only.state == "paused"
    world.only.set_paused(False)
    world.later()
    assert await world.found("logmq", "out") == [b"a"]


async def test_a_reload_takes_up_what_changed_and_the_place_of_what_is_gone_is_kept_for_a_day() -> None:
    world = await _crossing("logmq:in", "logmq:out")
    world.send("logmq", "in", b"a")
    world.carry()
    told = await world.bridges.change([bridge("logmq:in", "logmq:out2"), bridge("dms:in", "dms:x", name="n")])
    assert told == {"added": ["n"], "changed": ["b"], "removed": []}
    world.send("logmq", "in", b"b")
    world.carry()
    assert await world.found("logmq", "out2") == [b"b"]
    for seconds, found in ((KEPT_SECONDS - 1, [b"b", b"c"]), (KEPT_SECONDS + 1, [b"b", b"c", b"e"])):
        await world.bridges.change([])
        world.send("logmq", "in", b"c" if len(found) == 2 else b"d")
        world.clock.advance(seconds)
        world.bridges.forget_removed()
        await world.bridges.change([bridge("logmq:in", "logmq:out2")])
        world.carry()
        if len(found) == 3:
            world.send("logmq", "in", b"e")  # it began at the end
            world.carry()
        assert await world.found("logmq", "out2") == found


async def test_a_bridge_that_gets_another_source_begins_there_as_start_says() -> None:
    world = await _crossing("logmq:one", "logmq:out")
    for name in ("one", "two", "three"):
        world.send("logmq", name, b"old " + name.encode())
    world.carry()
    assert await world.found("logmq", "out") == [b"old one"]
    await world.bridges.change([bridge("logmq:t*", "logmq:out", start="end")])
    world.carry()
    for name in ("one", "two"):
        world.send("logmq", name, b"new " + name.encode())
    world.carry()
    assert await world.found("logmq", "out") == [b"old one", b"new two"]
    await world.bridges.change([bridge("logmq:*e", "logmq:out", start="first")])
    world.carry()
    found = await world.found("logmq", "out")
    assert found[2:] == [b"new one"], "a place that is known holds: nothing is left out, and nothing is twice"


async def test_a_start_on_another_source_holds_after_a_crash_in_between() -> None:
    disk = FakeDisk()
    before = bridge("logmq:one", "logmq:out")
    world = await World.open(await open_store(disk, SMALL), before)
    world.send("logmq", "two", b"a")
    world.carry()
    world.bridges.stop()
    store, _ = await reopen(world.store, disk)
    world = await World.open(store, bridge("logmq:two", "logmq:out", start="first"))
    world.carry()
    assert await world.found("logmq", "out") == [b"a"], "the settings changed while no server ran"


@pytest.mark.parametrize(("source", "waits"), [("logmq", 10), ("dms", 2), ("dmp", 2), ("kqmsgq", None)])
async def test_a_paused_bridge_shows_its_lag(source: str, waits: int | None) -> None:
    disk = FakeDisk()
    settings = bridge(f"{source}:in", "logmq:out")
    world = await World.open(await open_store(disk, SMALL), settings)
    world.make(source, "in")
    world.later()
    world.send(source, "in", b"seen")
    world.later()
    assert world.only.lag == 0
    world.only.set_paused(True)
    world.carry()
    world.send(source, "in", b"a", b"b")
    assert row(world.only)["lag"] == waits
    store, _ = await reopen(world.store, disk)
    world = await World.open(store, settings)
    world.carry()
    assert (world.only.state, world.only.lag) == ("paused", waits)
    world.only.set_paused(False)
    world.later()
    assert world.only.lag == 0


async def test_what_a_pause_a_resume_and_a_reset_would_do_is_told_and_not_done() -> None:
    world = await _crossing("logmq:in", "logmq:out")
    world.send("logmq", "in", b"a")
    world.carry()

    async def ask(action: str, dry_run: bool, **arguments: str) -> Mapping[str, object]:
        (found,) = [each for each in world.bridges.objects.actions if each.name == action]
        assert found.dry_runs
        return await found.call(world.only, arguments, dry_run)

    assert await ask("pause", True) == {"paused": 1}
    assert await ask("resume", True) == {"resumed": 0}
    assert await ask("reset", True, to="first") == {"reset": 1}
    world.carry()
    assert (world.only.state, len(await world.found("logmq", "out"))) == ("running", 1)
    assert await ask("pause", False) == {"paused": 1}
    assert await ask("pause", False) == {"paused": 0}, "it is paused already"
    assert await ask("resume", False) == {"resumed": 1}
    world = await _crossing("dms:in", "logmq:out")
    with pytest.raises(BridgeRefusal, match="keeps no position"):
        await ask("reset", True, to="first")


async def test_a_bridge_may_what_its_user_may_once_the_users_file_has_it() -> None:
    world = await _crossing("logmq:in", "logmq:out")
    world.access.guard("logmq")
    world.access.replace(parse_users('[users."bridge/b"]\nallow = ["logmq:read:in"]\n'))
    world.send("logmq", "in", b"a")
    world.carry()
    assert (world.only.state, await world.found("logmq", "out")) == ("waiting", [])
    assert "user bridge/b may not write out" in world.only.last_error
    world.access.replace(parse_users('[users."bridge/b"]\nallow = ["logmq:*:*"]\n'))
    world.later()
    assert await world.found("logmq", "out") == [b"a"]
    world.access.replace(parse_users('[users."bridge/b"]\nallow = ["logmq:write:out"]\n'))
    world.send("logmq", "in", b"b")
    world.carry()
    assert (world.only.state, await world.found("logmq", "out")) == ("waiting", [b"a"])
    assert "user bridge/b may not read in" in world.only.last_error
    world.access.replace(parse_users(""))
    world.later()
    assert await world.found("logmq", "out") == [b"a", b"b"]
    assert isinstance(world.access, Access)


async def test_a_protocol_that_crashes_is_waited_for() -> None:
    world = await _crossing("kqmsgq:in", "logmq:out")
    logmq = world.services.pop("logmq")
    world.carry()
    assert world.only.state == "waiting"
    world.services["logmq"] = logmq
    world.later()
    world.send("kqmsgq", "in", b"a")
    world.carry()
    assert await world.found("logmq", "out") == [b"a"]


async def test_what_would_become_of_a_message_is_told_and_not_done() -> None:
    world = await _crossing("pubsub:a/+", "logmq:{name.2}", as_="json", filter={"min_bytes": 2})
    told = world.only.would(b"a/b", b"", b"hello")
    assert (told["result"], told["to"], json.loads(told["body"])["value"]) == ("carried", "logmq:b", "hello")
    assert world.only.would(b"a/b", b"", b"1")["result"] == "filtered"
    assert world.only.would(b"a/b c", b"", b"hello")["reason"] == "bad_name"
    assert await world.found("logmq", "b") == []


@pytest.mark.parametrize(
    ("policy", "large", "full"),
    [
        ("wait", ("dead", "logmq:dead.b"), ("waits", "dms:in")),
        ("drop", ("dropped", "dms:in"), ("dropped", "dms:in")),
        ("dead:logmq:refused-{name}", ("dead", "logmq:refused-x"), ("dead", "logmq:refused-x")),
    ],
)
async def test_what_a_target_would_refuse_is_told_and_what_would_become_of_it(
    policy: str, large: tuple[str, str], full: tuple[str, str]
) -> None:
    world = await World.open(None)
    world.services["dms"].engine.create("in", {"depth": 1})
    await world.bridges.change([bridge("logmq:x", "dms:in", on_refused=policy)])
    found = world.only.would(b"x", b"", bytes(5000))  # before it is open, too
    assert (found["result"], found["to"], found["reason"]) == (*large, "too_large")
    world.carry()
    assert world.only.would(b"x", b"", b"small")["result"] == "carried"
    world.send("dms", "in", b"one")
    found = world.only.would(b"x", b"", b"small")
    assert (found["result"], found["to"], found["reason"]) == (*full, "full")
