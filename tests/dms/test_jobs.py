"""Jobs: each comes at its time and not before, once, in its order, also over restarts."""

import errno
import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dms import job_requests, wire
from dms.settings import MS_MAX
from dms.wire import Refusal, Status, Type
from shared.objects import BadArgument, ObjectMissing
from tests.dms.world import NAME, Peer, World, deliveries, deliveries_with, statuses, with_queue
from tests.support.commits import fail, journal_write

OK = [Status.OK]
UNIX_MS = 1_700_000_000_000


def bodies(peer: Peer, count: int = 9) -> list[bytes]:
    """What comes at once."""
    found = peer.consume_with("orders", count)
    peer.world.advance(31)
    assert not deliveries(peer.take())
    return [body for _, _, body in found]


def test_a_job_is_delivered_with_what_its_producer_said(world: World) -> None:
    peer = with_queue(world)
    headers = {"trace": "é\n", "n": 1.5}
    assert statuses(peer.produce_with("orders", b"one", headers=headers, key="k", priority=3)) == OK
    ((held, about, body),) = peer.consume_with("orders")
    assert body == b"one"
    assert about["headers"] == headers
    assert (about["key"], about["deliveries"], about["produced_ms"]) == ("k", 1, UNIX_MS)
    assert about["priority"] == 3
    assert statuses(peer.nack(held)) == OK
    ((held, again, _),) = peer.consume_with("orders")
    assert again == {**about, "deliveries": 2}
    assert statuses(peer.ack(held)) == OK
    assert world.depths() == {"orders": 0}


def test_whoever_asks_without_gets_the_body_alone(world: World) -> None:
    peer = with_queue(world)
    peer.produce_with("orders", b"one", headers={"a": "b"})
    assert [body for _, body in peer.consume("orders")] == [b"one"]
    peer.produce("orders", b"two")
    ((_, about, body),) = peer.consume_with("orders")
    assert (about["seq"], about["deliveries"], about["priority"], body) == (1, 1, 0, b"two")


def test_both_kinds_of_consume_do_not_wait_on_one_connection(world: World) -> None:
    peer = with_queue(world)
    assert peer.consume("orders") == []
    assert statuses(peer.ask(Type.CONSUME_WITH, NAME)) == [Status.PROTOCOL_ERROR]
    world.advance(31)
    assert statuses(peer.take()) == [Status.TIMEOUT]
    assert peer.consume_with("orders") == []
    assert statuses(peer.ask(Type.CONSUME, NAME)) == [Status.PROTOCOL_ERROR]
    world.connect().produce("orders", b"one")
    assert peer.take()[0][0] == Type.DELIVER_WITH


@pytest.mark.parametrize("payload", [b"\xff\xff\xff", wire.pack_name("orders")])
@pytest.mark.parametrize("count", [1, 20])
def test_a_consume_beside_consume_with_is_looked_at_whatever_it_names(
    world: World, payload: bytes, count: int
) -> None:
    peer = with_queue(world)
    peer.produce("orders", b"one")
    ((held, _, _),) = peer.consume_with("orders")
    consume = wire.pack(Type.CONSUME, 7, payload)
    peer.consume_with("orders")
    peer.send(consume * count)
    assert statuses(peer.take()) == [Status.PROTOCOL_ERROR] * count
    peer.send((wire.pack(Type.ACK, held) + consume) * count)
    answers = statuses(peer.take())
    assert answers == [Status.OK, *[Status.PROTOCOL_ERROR] * (2 * count - 1)]


@pytest.mark.parametrize("said", [{"delay_ms": 5000}, {"at": UNIX_MS + 5000}])
def test_a_job_does_not_come_before_its_time_and_holds_up_nobody(world: World, said: dict[str, int]) -> None:
    peer, worker = with_queue(world), world.connect()
    assert statuses(peer.produce_with("orders", b"later", **said)) == OK
    peer.produce("orders", b"now")
    assert [body for _, body in worker.consume("orders", 2)] == [b"now"]
    world.advance(4.9)
    assert deliveries(worker.take()) == []
    world.advance(0.2)
    assert [body for _, body in deliveries(worker.take())] == [b"later"]


def test_the_first_moment_of_unix_time_is_a_time_that_has_passed(world: World) -> None:
    peer = with_queue(world, options=b'{"delay_ms":60000}')
    assert statuses(peer.produce_with("orders", b"at once", at=0)) == OK
    assert [body for _, body in peer.consume("orders")] == [b"at once"]


def test_jobs_stand_where_they_came(world: World) -> None:
    peer = with_queue(world)
    peer.produce("orders", b"1", b"2")
    peer.produce_with("orders", b"3", headers={"a": 1})
    peer.produce("orders", b"4")
    peer.produce_with("orders", b"5")
    peer.produce("orders", b"6", b"7")
    found = peer.consume("orders", 7)
    assert [body for _, body in found] == [b"%d" % number for number in range(1, 8)]
    peer.nack(*[held for held, _ in found])
    assert [body for _, body in peer.consume("orders", 7)] == [b"%d" % number for number in range(1, 8)]


def test_a_job_that_is_too_old_dies_wherever_it_waits(world: World) -> None:
    peer = with_queue(world, options=b'{"dead_letter":"dead"}')
    peer.create("dead")
    peer.produce_with("orders", b"ready", ttl_ms=1000)
    peer.produce_with("orders", b"waits", ttl_ms=2000, delay_ms=1500)
    peer.produce_with("orders", b"held", ttl_ms=1000, key="k", headers={"a": "b"})
    assert [about["seq"] for _, about, _ in peer.consume_with("orders", 2)][1:]
    peer.nack(wire.DELIVERY_ID_BIT)
    world.advance(1.2)
    assert world.depths() == {"orders": 2, "dead": 1}
    peer.nack(wire.DELIVERY_ID_BIT + 1)
    world.advance(1)
    assert world.depths() == {"orders": 0, "dead": 3}
    dead = {body: about for _, about, body in peer.consume_with("dead", 3)}
    assert dead[b"held"]["dead"] == {
        "reason": "ttl",
        "queue": "orders",
        "count": 1,
        "time": UNIX_MS + 1200,
        "text": "",
    }
    assert (dead[b"held"]["key"], dead[b"held"]["headers"]) == ("k", {"a": "b"})
    assert dead[b"waits"]["dead"]["count"] == 0


def test_a_nack_says_when_and_why(world: World) -> None:
    peer = with_queue(world, options=b'{"max_deliveries":2,"dead_letter":"dead"}')
    peer.create("dead")
    peer.produce("orders", b"plain")
    peer.produce_with("orders", b"job")
    for text in (b"first", b"second"):
        found = peer.consume_with("orders", 2)
        assert {body for _, _, body in found} == {b"plain", b"job"}
        for number, (held, _, _) in enumerate(found):
            name = NAME if number else b"\0\0"
            assert statuses(peer.ask(Type.NACK, name + (3000).to_bytes(4) + text, held)) == OK
        if text == b"first":
            assert peer.consume_with("orders", 2) == []
            world.advance(2.9)
            assert peer.take() == []
            world.advance(0.2)
            for held, _, _ in [(frame[3], 0, 0) for frame in peer.take()]:
                peer.ask(Type.NACK, b"\0\0" + (1).to_bytes(4) + b"second", held)
            break
    for _, about, _ in peer.consume_with("dead", 2):
        assert (about["dead"]["text"], about["dead"]["reason"]) == ("second", "max_deliveries")
    assert world.depths()["orders"] == 0


@pytest.mark.parametrize(
    ("options", "payload", "waits"),
    [
        (b'{"retry_ms":60000}', b"", True),
        (b"", b"\0\0" + (60_000).to_bytes(4), True),
        (b"", b"\0\0" + bytes(4) + b"no such host", False),
    ],
)
@pytest.mark.parametrize("job", [True, False])
def test_what_a_nack_has_said_outlives_a_crash_behind_its_answer(
    options: bytes, payload: bytes, waits: bool, job: bool
) -> None:
    world = World()
    peer = with_queue(world, options=options)
    if job:
        peer.produce_with("orders", b"one", dedup="d")
    else:
        peer.produce("orders", b"one")
    ((held, _),) = peer.consume("orders")
    assert statuses(peer.ask(Type.NACK, payload, held)) == OK
    world.kill()
    peer = world.connect()
    if waits:
        assert peer.consume_with("orders") == []
        world.advance(61)
    ((_, about, _),) = peer.consume_with("orders")
    assert about["deliveries"] == 2
    if job and not waits:
        (frame,) = peer.job(Type.GET_JOB, "orders", dedup="d")
        assert json.loads(wire.split_object(frame[4])[0])["text"] == "no such host"


@pytest.mark.parametrize(
    "payload",
    [b"\0", b"\0\0", b"\0\0\0\0\0", NAME + b"\0\0\0", b"\0\0\0\0\0\0\xff", b"\0\0\0\0\0\0" + b"x" * 501],
)
def test_a_nack_that_is_no_nack_is_refused_and_the_message_stays_held(world: World, payload: bytes) -> None:
    peer = with_queue(world)
    peer.produce("orders", b"one")
    ((held, _),) = peer.consume("orders")
    assert statuses(peer.ask(Type.NACK, payload, held)) == [Status.PROTOCOL_ERROR]
    assert statuses(peer.ack(held)) == OK


def test_what_is_not_acknowledged_in_time_goes_to_another(world: World) -> None:
    peer = with_queue(world, options=b'{"ack_ms":1000,"max_deliveries":2}')
    other = world.connect()
    peer.produce("orders", b"plain")
    peer.produce_with("orders", b"job")
    held = [held for held, _ in peer.consume("orders", 2)]
    world.advance(0.8)
    assert statuses(peer.ask(Type.TOUCH, message_id=held[0])) == OK
    world.advance(0.5)
    assert [body for _, body in other.consume("orders", 2)] == [b"job"]
    assert statuses(peer.ack(held[1])) == [Status.PROTOCOL_ERROR]
    assert statuses(peer.ask(Type.TOUCH, message_id=held[1])) == [Status.PROTOCOL_ERROR]
    world.advance(0.6)
    assert [body for _, body in deliveries(other.take())] == [b"plain"]
    world.advance(1.1)  # each has been delivered twice
    assert world.depths() == {"orders": 0}
    assert world.engine.counts.overdue == 4


def test_an_acknowledged_delivery_has_no_deadline(world: World) -> None:
    peer = with_queue(world, options=b'{"ack_ms":1000}')
    peer.produce("orders", b"1", b"2")
    held = [held for held, _ in peer.consume("orders", 2)]
    peer.ack(held[0])
    peer.nack(held[1])
    ((again, _),) = peer.consume("orders")
    world.advance(0.9)
    peer.ask(Type.TOUCH, NAME, again)
    world.advance(0.9)
    assert statuses(peer.ack(again)) == OK
    world.advance(5)
    assert world.engine.counts.overdue == 0


@pytest.mark.parametrize("least", [b"1", b"99", b"-1"])
def test_a_deadline_is_a_tenth_of_a_second_at_least(world: World, least: bytes) -> None:
    peer = world.connect()
    assert statuses(peer.create("orders", b'{"ack_ms":%b}' % least)) == [Status.PROTOCOL_ERROR]


# -- by name


def test_a_job_is_looked_at_put_off_and_cancelled_by_its_name(world: World) -> None:
    peer = with_queue(world)
    peer.produce_with("orders", b"one", dedup="d", delay_ms=5000, headers={"a": "b"})
    (frame,) = peer.job(Type.GET_JOB, "orders", dedup="d")
    about, body = wire.split_object(frame[4])
    job = json.loads(about)
    assert (job["state"], job["dedup"], job["deliveries"], body) == ("waiting", "d", 0, b"one")
    assert 0 <= job["due_ms"] - UNIX_MS - 5000 <= 1
    assert statuses(peer.job(Type.RESCHEDULE, "orders", seq=job["seq"], delay_ms=1000)) == OK
    world.advance(1.1)
    (frame,) = peer.job(Type.GET_JOB, "orders", seq=job["seq"])
    assert json.loads(wire.split_object(frame[4])[0])["state"] == "ready"
    ((held, _),) = peer.consume("orders")
    for type_, said in ((Type.CANCEL, {}), (Type.RESCHEDULE, {"delay_ms": 1})):
        (frame,) = peer.job(type_, "orders", dedup="d", **said)
        assert (frame[2], b"held" in frame[4]) == (Status.PROTOCOL_ERROR, True)
    (frame,) = peer.job(Type.GET_JOB, "orders", dedup="d")
    assert json.loads(wire.split_object(frame[4])[0])["state"] == "held"
    peer.nack(held)
    assert statuses(peer.job(Type.RESCHEDULE, "orders", dedup="d", at=UNIX_MS + 9000)) == OK
    assert peer.consume("orders") == []
    assert statuses(peer.job(Type.CANCEL, "orders", dedup="d")) == OK
    world.advance(10)
    assert peer.take() == []
    assert world.depths() == {"orders": 0}
    for type_, said in ((Type.CANCEL, {}), (Type.GET_JOB, {}), (Type.RESCHEDULE, {"at": 0})):
        assert statuses(peer.job(type_, "orders", dedup="d", **said)) == [Status.PROTOCOL_ERROR]


def test_the_api_looks_at_a_job_puts_it_off_and_cancels_it(world: World) -> None:
    peer = with_queue(world)
    peer.produce("orders", b"plain")
    with pytest.raises(ObjectMissing, match="no job 'd'"):
        world.call("job", queue="orders", dedup="d")
    peer.produce_with("orders", b"one", dedup="d", delay_ms=5000)
    (shown,) = world.call("job", queue="orders", dedup="d")
    assert (shown["text"], shown["state"]) == ("one", "waiting")
    assert 0 <= shown["properties"]["due_ms"] - UNIX_MS - 5000 <= 1
    said = {"queue": "orders", "position": shown["position"]}
    assert world.call("reschedule", **said, delay="1s") == {"rescheduled": 1}
    world.advance(1.1)
    ((_, plain), (held, _)) = peer.consume("orders", 2)
    assert plain == b"plain"
    (shown,) = world.call("job", **said)
    assert shown["state"] == "held"
    with pytest.raises(Refusal, match="held"):
        world.call("cancel", **said)
    peer.nack(held)
    assert world.call("cancel", **said) == {"cancelled": 1}
    assert world.depths() == {"orders": 1}
    for action, more in (("cancel", {}), ("reschedule", {"delay": "1s"})):
        with pytest.raises(BadArgument, match="1 is no job"):
            world.call(action, queue="orders", position=1, **more)


def test_a_message_that_waits_or_is_held_is_delivered_now_by_hand(world: World) -> None:
    peer = with_queue(world, options=b'{"retry_ms":60000}')
    for body in (b"tried", b"held", b"row"):
        peer.produce("orders", body)
    peer.produce_with("orders", b"later", dedup="d", delay_ms=90_000)
    (tried, held) = [held for held, _ in peer.consume("orders", 2)]
    peer.nack(tried)

    def requeue(**said: Any) -> Any:
        return world.call("requeue", queue="orders", **said)

    states = [world.call("job", queue="orders", position=number)[0]["state"] for number in (1, 2, 3)]
    assert states == ["waiting", "held", "ready"]
    for said in ({"position": 1}, {"position": 2}, {"dedup": "d"}):
        assert requeue(**said, dry_run=True) == {"requeued": 1}
    assert world.depths() == {"orders": 4}
    assert [body for _, body in peer.consume("orders", 4)] == [b"row"]
    assert requeue(position=1) == {"requeued": 1}
    assert [body for _, body in deliveries(peer.take())] == [b"tried"]
    assert requeue(position=2) == {"requeued": 1}
    assert [body for _, body in deliveries(peer.take())] == [b"held"]
    assert statuses(peer.ack(held)) == [Status.PROTOCOL_ERROR]
    assert requeue(dedup="d") == {"requeued": 1}
    world.advance(0.01)
    assert [body for _, body in deliveries(peer.take())] == [b"later"]
    assert requeue(dedup="d") == {"requeued": 1}
    assert requeue(position=3) == {"requeued": 1}
    with pytest.raises(ObjectMissing, match="no message 9"):
        requeue(position=9)


def test_what_a_whole_queue_delays_and_what_is_ready_is_not_requeued(world: World) -> None:
    peer = with_queue(world, options=b'{"delay_ms":1000}')
    peer.produce("orders", b"one")
    with pytest.raises(BadArgument, match="change its delay_ms"):
        world.call("requeue", queue="orders", position=1)
    world.advance(1.1)
    with pytest.raises(BadArgument, match="is ready"):
        world.call("requeue", queue="orders", position=1)


def test_a_message_that_is_no_job_has_no_name(world: World) -> None:
    peer = with_queue(world)
    peer.produce("orders", b"one")
    assert statuses(peer.job(Type.CANCEL, "orders", seq=1)) == [Status.PROTOCOL_ERROR]
    assert statuses(peer.job(Type.CANCEL, "missing", seq=1)) == [Status.QUEUE_NOT_FOUND]


def test_a_key_that_waits_adds_nothing(world: World) -> None:
    peer = with_queue(world)
    for _ in range(3):
        assert statuses(peer.produce_with("orders", b"one", dedup="d")) == OK
    assert world.depths() == {"orders": 1}
    ((held, _),) = peer.consume("orders")
    assert statuses(peer.produce_with("orders", b"two", dedup="d")) == OK
    assert world.depths() == {"orders": 1}
    peer.ack(held)
    assert statuses(peer.produce_with("orders", b"three", dedup="d")) == OK
    assert [body for _, body in peer.consume("orders")] == [b"three"]


def test_a_key_is_known_for_its_time_also_over_restarts() -> None:
    world = World()
    peer = with_queue(world, options=b'{"dedup_ms":60000}')

    def comes(key: str) -> bool:
        before = world.depths()["orders"]
        assert statuses(peer.produce_with("orders", b"one", dedup=key)) == OK
        return world.depths()["orders"] > before

    def finish() -> None:
        ((held, _),) = peer.consume("orders")
        assert statuses(peer.ack(held)) == OK

    for number in range(40):
        assert comes(f"{number}")
        finish()
        if number % 7 == 0:
            log = world.engine.queues[b"orders"].log
            assert log is not None
            log.snapshot()
        if number % 11 == 0:
            world.settle()
            world.kill()
            peer = world.connect()
        assert not any(comes(f"{known}") for known in range(number + 1))
    world.advance(59)
    assert not comes("39")
    world.advance(2)
    assert comes("39")


# -- what is refused

TEXTS = st.text(max_size=140)
VALUES = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), TEXTS, st.lists(st.integers()))


def refusal_of(check: Callable[[], object]) -> Refusal | None:
    try:
        check()
    except Refusal as refusal:
        return refusal
    return None


KEYS = ["delay_ms", "at", "ttl_ms", "priority", "key", "dedup", "headers", "x"]


@given(st.dictionaries(st.sampled_from(KEYS), VALUES))
def test_any_object_is_taken_or_refused_by_name(said: dict[str, Any]) -> None:
    taken: list[job_requests.JobRequest] = []
    text = json.dumps(said).encode()
    refused = refusal_of(lambda: taken.append(job_requests.job_request_untrusted(text, UNIX_MS)))
    if refused is None:
        assert "x" not in said
        assert 0 <= taken[0].priority <= 9
        assert len(taken[0].key.encode()) <= 128
    else:
        assert refused.status is Status.PROTOCOL_ERROR
        assert any(key in refused.text for key in said) or "JSON" in refused.text


@given(st.binary(max_size=200))
def test_any_bytes_are_refused_or_taken(data: bytes) -> None:
    for check in (
        lambda: job_requests.job_request_untrusted(data, UNIX_MS),
        lambda: job_requests.job_name_untrusted(data),
        lambda: job_requests.job_time_untrusted(data, UNIX_MS),
        lambda: job_requests.nack_untrusted(data),
        lambda: wire.split_object(data),
    ):
        refused = refusal_of(check)
        assert refused is None or refused.status is Status.PROTOCOL_ERROR


@pytest.mark.parametrize(
    ("said", "named"),
    [
        ({"delay": 1}, "unknown key delay"),
        ({"delay_ms": -1}, "delay_ms"),
        ({"delay_ms": 1.0}, "delay_ms"),
        ({"delay_ms": True}, "delay_ms"),
        ({"delay_ms": MS_MAX + 1}, "delay_ms"),
        ({"at": UNIX_MS + MS_MAX + 1}, "at"),
        ({"at": 1, "delay_ms": 1}, "not both"),
        ({"ttl_ms": MS_MAX + 1}, "ttl_ms"),
        ({"ttl_ms": 5, "delay_ms": 6}, "ttl_ms (5) is below"),
        ({"priority": 10}, "priority"),
        ({"key": ""}, "key"),
        ({"key": "é" * 65}, "key"),
        ({"key": "a\n"}, "key"),
        ({"dedup": 1}, "dedup"),
        ({"headers": {"a": None}}, "headers"),
        ({"headers": {"a": "x" * 2048}}, "headers"),
        ({"headers": []}, "headers"),
    ],
)
def test_what_a_job_cannot_have_is_refused_by_name(said: dict[str, Any], named: str) -> None:
    world = World()
    peer = with_queue(world)
    (frame,) = peer.produce_with("orders", b"one", **said)
    assert frame[2] == Status.PROTOCOL_ERROR
    assert named in frame[4].decode()
    assert world.depths() == {"orders": 0}


@pytest.mark.parametrize(
    "text",
    [
        *(b"[]", b"", b"{", b"\xff", b"[" * 3000),
        *(b'{"headers":{"a":NaN}}', b'{"headers":{"a":"\\ud800"}}', b'{"headers":{"\\ud800":1}}'),
        b'{"key":"\\ud800"}',
    ],
)
def test_what_is_no_object_of_texts_is_refused(text: bytes) -> None:
    peer = with_queue(World())
    frames = peer.ask(Type.PRODUCE_WITH, NAME + len(text).to_bytes(2) + text)
    assert statuses(frames) == [Status.PROTOCOL_ERROR]


def test_a_full_queue_refuses_a_job_and_a_missing_one_is_missing(world: World) -> None:
    peer = with_queue(world, options=b'{"depth":1}')
    assert statuses(peer.produce_with("orders", delay_ms=1)) == OK
    assert statuses(peer.produce_with("orders")) == [Status.QUEUE_FULL]
    assert statuses(peer.produce_with("missing")) == [Status.QUEUE_NOT_FOUND]


# -- the administration


def test_jobs_are_shown_moved_and_purged(world: World) -> None:
    peer = with_queue(world)
    peer.create("other")
    peer.produce("orders", b"plain")
    peer.produce_with("orders", b"ready", headers={"a": "b"}, dedup="d")
    peer.produce_with("orders", b"waits", delay_ms=60_000, key="k")
    (row,) = world.call("queues", queue="orders")
    assert (row["ready"], row["delayed"], row["held"]) == (2, 1, 0)
    shown = {row["text"]: row for row in world.call("peek", queue="orders", limit=10)}
    assert set(shown) == {"plain", "ready", "waits"}
    assert shown["waits"]["properties"]["key"] == "k"
    assert shown["waits"]["properties"]["due_ms"] == UNIX_MS + 60_001
    discarded = world.call("discard", queue="orders", position=shown["waits"]["position"])
    assert discarded == {"discarded": 1}
    assert world.call("move", queue="orders", to="other") == {"moved": 2, "left": 0}
    peer.produce_with("other", b"again", dedup="d")  # which came along
    peer.produce_with("orders", b"waits", delay_ms=60_000)
    peer.produce_with("orders", b"ready")
    peer.produce("orders", b"plain")
    assert world.call("purge", queue="orders")["purged"] == 3
    assert world.depths() == {"orders": 0, "other": 2}


def test_the_api_puts_jobs_too(world: World) -> None:
    peer = with_queue(world)
    said = {"delay_ms": 1000, "key": "k", "headers": {"a": "b"}}
    assert world.call("messages", queue="orders", text="one", properties=said) == {"published": 1}
    world.settle()
    with pytest.raises(BadArgument, match="properties: unknown key colour"):
        world.call("messages", queue="orders", text="one", properties={"colour": "red"})
    assert peer.consume_with("orders") == []
    world.advance(1.1)
    ((_, about, body),) = deliveries_with(peer.take())
    assert (body, about["key"], about["headers"]) == (b"one", "k", {"a": "b"})


def test_known_keys_are_charged_and_forgotten_in_time(world: World) -> None:
    peer = with_queue(world, options=b'{"dedup_ms":60000}')
    before = world.engine.queues[b"orders"].loaded_bytes
    for number in range(20):
        peer.produce_with("orders", dedup=f"{number}")
        ((held, _),) = peer.consume("orders")
        peer.ack(held)
    assert world.engine.queues[b"orders"].loaded_bytes - before > 20 * 100
    world.advance(62)
    assert world.engine.queues[b"orders"].loaded_bytes == before


def test_a_redrive_makes_a_job_again(world: World) -> None:
    peer = with_queue(world, options=b'{"max_deliveries":1,"dead_letter":"dead"}')
    peer.create("dead")
    peer.produce_with("orders", b"one", key="k", headers={"a": "b"}, dedup="d")
    ((held, _),) = peer.consume("orders")
    peer.nack(held)
    assert world.call("redrive", queue="dead") == {"moved": 1, "left": 0}
    world.settle()
    ((_, about, body),) = peer.consume_with("orders")
    assert (about["key"], about["headers"], about["dedup"], body) == ("k", {"a": "b"}, "d", b"one")
    assert "dead" not in about


def test_a_redriven_job_has_its_name_and_a_window_of_it_again() -> None:
    world = World()
    peer = with_queue(world, options=b'{"max_deliveries":1,"dead_letter":"dead","dedup_ms":60000}')
    peer.create("dead")
    peer.produce_with("orders", b"one", dedup="d")
    ((held, _),) = peer.consume("orders")
    peer.nack(held)
    world.advance(50)
    assert world.call("redrive", queue="dead") == {"moved": 1, "left": 0}

    world.advance(20)  # the first window has ended, and the job is there
    peer.produce_with("orders", b"again", dedup="d")
    assert world.depths()["orders"] == 1
    world.settle()
    world.kill()
    peer = world.connect()
    assert statuses(peer.job(Type.RESCHEDULE, "orders", dedup="d", delay_ms=0)) == OK
    assert statuses(peer.job(Type.CANCEL, "orders", dedup="d")) == OK
    world.advance(20)
    peer.produce_with("orders", b"again", dedup="d")
    assert world.depths()["orders"] == 0
    world.advance(45)  # the crash has set back ages by the last move
    peer.produce_with("orders", b"another", dedup="d")
    assert world.depths()["orders"] == 1


# -- restarts


def test_a_job_for_a_time_of_day_comes_at_it_though_no_server_ran_meanwhile() -> None:
    world = World()
    peer = with_queue(world)
    peer.produce_with("orders", b"at", at=UNIX_MS + 60_000)
    peer.produce_with("orders", b"delay", delay_ms=60_000)
    world.unix_ms += 50_000  # passes while nothing runs
    world.kill()
    peer = world.connect()
    assert peer.consume("orders") == []
    world.advance(11)
    assert [body for _, body in deliveries(peer.take())] == [b"at"]
    assert peer.consume("orders") == []


def test_what_the_disk_refuses_was_never_there() -> None:
    world = World()
    peer = with_queue(world)
    peer.produce_with("orders", b"first", dedup="a", delay_ms=1000)
    for type_, said in (
        (Type.PRODUCE_WITH, {"dedup": "d"}),
        (Type.CANCEL, {"dedup": "a"}),
        (Type.RESCHEDULE, {"dedup": "a", "delay_ms": 60_000}),
    ):
        fail(world.disk, errno.ENOSPC, journal_write, times=1)
        assert statuses(peer.job(type_, "orders", **said)) == [Status.INTERNAL], type_
        assert world.depths() == {"orders": 1}
        (frame,) = peer.job(Type.GET_JOB, "orders", dedup="a")
        about = json.loads(wire.split_object(frame[4])[0])
        assert (about["state"], about["due_ms"]) == ("waiting", UNIX_MS + 1001)
        assert statuses(peer.job(Type.GET_JOB, "orders", dedup="d")) == [Status.PROTOCOL_ERROR]


def test_jobs_of_one_read_are_answered_in_order_each_as_if_alone(world: World) -> None:
    peer = with_queue(world, options=b'{"depth":4}')
    peer.create("other")

    def job(number: int, queue: str = "orders", **said: Any) -> bytes:
        return wire.pack(
            Type.PRODUCE_WITH, number, wire.pack_name(queue) + wire.pack_object(said) + b"%d" % number
        )

    peer.send(
        job(1, dedup="a")
        + job(2, dedup="a")
        + job(3, "other", delay_ms=5)
        + job(4, "missing")
        + job(5, delay_ms=5)
        + job(6, delay_ms=-5)
        + job(7)
        + wire.pack(Type.PRODUCE, 8, wire.pack_name("orders") + b"plain")
        + job(9)
        + job(10, "other")
    )
    frames = peer.take()
    assert [frame[3] for frame in frames] == [*range(1, 11)]
    assert {frame[3]: Status(frame[2]).name for frame in frames if frame[2]} == {
        4: "QUEUE_NOT_FOUND",
        6: "PROTOCOL_ERROR",
        9: "QUEUE_FULL",
    }
    assert world.depths() == {"orders": 4, "other": 2}
    world.advance(1)
    assert [body for _, body in peer.consume("orders", 9)] == [b"1", b"5", b"7", b"plain"]
