"""Logins by the users file, and what its rules allow, for AMQP and for leased connections. No sockets."""

from collections.abc import Callable
from typing import Any

import pytest
from pamqp import base, commands

from dmp.amqp.wire import Direct, encode
from dmp.data_types import short
from dmp.settings import DmpSettings, Users
from dmp.wire import AMQP_HEADER, DMP_HEADER
from shared.access import Access, Guard, Required, Rule, User
from tests.dmp.amqp_peer import Frames, Peer, bodies, start_ok
from tests.dmp.world import World

C = commands
CANCELS = {"authentication_failure_close": True, "consumer_cancel_notify": True}


def user(name: str, *allow: str, certificate: bool = False) -> User:
    return User(name, tuple(map(Rule.parse, allow)), certificate=certificate)


def users(*those: User) -> dict[str, User]:
    return {each.name: each for each in those}


EVERYTHING = user("ann", "dmp:*:*")


class Place:
    """A world with users; each one's password is `secret`."""

    def __init__(self, world: World, access: Access, guard: Guard) -> None:
        self.world = world
        self.access = access
        self.guard = guard
        self.audited: list[dict[str, str]] = []

    @classmethod
    async def open(
        cls,
        *those: User,
        required: Required = "never",
        settings: DmpSettings | None = None,
        file: bool = True,
    ) -> "Place":
        access = Access(users(*those) if file else None)

        def check(name: str, password: bytes, peer: str, done: Callable[[bool], None]) -> None:
            done(name in (access.users or {}) and password == b"secret")

        access.check_password = check
        guard = access.guard("dmp", required)
        place = cls(await World.open(settings, access=guard), access, guard)
        access.audit = lambda **fields: place.audited.append(fields)
        return place

    def say(
        self,
        response: str = "\0ann\0secret",
        *,
        mechanism: str = "PLAIN",
        certificate: str = "",
        capabilities: dict[str, Any] | None = None,
        peer: str = "127.0.0.1:1",
    ) -> tuple[Peer, list[str]]:
        """A client as far as its start-ok."""
        one = Peer(self.world, peer=peer)
        one.connection.certificate_user = certificate
        one.send(AMQP_HEADER + encode(start_ok(capabilities, response, mechanism), 0))
        return one, one.names()

    def login(self, response: str = "\0ann\0secret", **options: Any) -> Peer:
        """As far as an open channel."""
        one, names = self.say(response, **options)
        assert names == ["Connection.Start", "Connection.Tune"]
        one.method(C.Connection.TuneOk(0, 0, 0), 0)
        one.method(C.Connection.Open("/"), 0)
        one.method(C.Channel.Open())
        assert one.names() == ["Connection.OpenOk", "Channel.OpenOk"]
        return one

    def rules(self, *allow: str) -> None:
        """Ann's are these from now on."""
        self.access.replace(users(user("ann", *allow)))


def denied(frames: Frames) -> bool:
    *_, (_, last) = frames
    return isinstance(last, C.Channel.Close) and last.reply_code == 403 and "not allowed" in last.reply_text


async def test_a_user_of_the_file_logs_in_with_his_password_and_nobody_else_does() -> None:
    place = await Place.open(EVERYTHING, required="always")
    place.login()
    for response in ("\0ann\0wrong", "\0bob\0secret", "\0guest\0guest", "ann", "\0anonymous\0wrong", "\0\0"):
        peer, names = place.say(response, capabilities=CANCELS)
        assert names == ["Connection.Start", "Connection.Close"]
        peer, names = place.say(response)
        assert names == ["Connection.Start"], "without the capability there is no word"
        assert peer.connection.finished
    assert place.guard.logins_failed == place.world.broker.counts.logins_refused == 12
    assert {line["user"] for line in place.audited} == {"ann", "(unknown)"}


@pytest.mark.parametrize(
    ("response", "mechanism", "certificate", "asked"),
    [
        ("\0ann\0secret", "PLAIN", "", True),
        ("\0guest\0guest", "PLAIN", "", False),
        ("", "EXTERNAL", "ann", False),
    ],
)
async def test_a_secret_that_is_renewed_is_looked_at_as_in_a_login_where_one_was(
    response: str, mechanism: str, certificate: str, asked: bool
) -> None:
    place = await Place.open(user("ann", "dmp:*:*", certificate=True), user("anonymous", "dmp:*:*"))
    peer = place.login(response, mechanism=mechanism, certificate=certificate)
    declare = encode(C.Queue.Declare(queue="q"), 1)
    peer.send(encode(C.Connection.UpdateSecret("secret", "renewed"), 0) + declare)
    assert peer.names() == ["Connection.UpdateSecretOk", "Queue.DeclareOk"]
    peer.send(encode(C.Connection.UpdateSecret("wrong", "renewed"), 0) + declare)
    if not asked:
        assert peer.names() == ["Connection.UpdateSecretOk", "Queue.DeclareOk"]
        return
    ((_, close),) = peer.frames()
    assert (close.name, close.reply_code, close.class_id, close.method_id) == (
        "Connection.Close",
        530,
        10,
        70,
    )
    assert place.guard.logins_failed == 1
    assert place.audited[-1]["user"] == "ann"


async def test_a_password_that_is_checked_later_holds_the_dialog_up_and_nothing_else() -> None:
    place = await Place.open(EVERYTHING)
    answers: list[Callable[[bool], None]] = []
    place.access.check_password = lambda name, password, peer, done: answers.append(done)
    peer, names = place.say()
    assert names == ["Connection.Start"]
    peer.method(C.Connection.TuneOk(0, 0, 0), 0)
    peer.method(C.Connection.Open("/"), 0)
    assert peer.names() == []
    answers.pop()(True)
    assert peer.names() == ["Connection.Tune", "Connection.OpenOk"]
    peer, _ = place.say()
    peer.lose()
    answers.pop()(True)
    peer, _ = place.say(capabilities=CANCELS)
    answers.pop()(False)
    assert peer.names() == ["Connection.Close"]


async def test_guest_from_loopback_is_anonymous_where_no_login_is_asked_for_and_no_failure() -> None:
    place = await Place.open(EVERYTHING, user("anonymous", "dmp:*:public*"))
    guest = place.login("\0guest\0guest")
    assert isinstance(guest.ask(C.Queue.Declare(0, "public")), C.Queue.DeclareOk)
    assert denied(guest.say(C.Queue.Declare(0, "mine")))
    assert place.guard.logins_failed == 0
    assert place.say("\0guest\0guest", peer="192.0.2.7:5000")[1] == ["Connection.Start"]
    assert place.guard.logins_failed == 1


async def test_users_of_the_settings_count_where_there_is_no_users_file() -> None:
    settings = DmpSettings(users=Users.parse("bob:old"))
    place = await Place.open(settings=settings, file=False)
    bob = place.login("\0bob\0old")
    assert isinstance(bob.ask(C.Queue.Declare(0, "q")), C.Queue.DeclareOk)
    assert place.say("\0guest\0guest")[1] == ["Connection.Start"]
    place = await Place.open(EVERYTHING, settings=settings)
    assert place.say("\0bob\0old")[1] == ["Connection.Start"]
    place.login("\0guest\0guest")


async def test_a_certificate_is_a_login_by_itself() -> None:
    sensor = user("sensor", "dmp:*:mine", certificate=True)
    place = await Place.open(EVERYTHING, sensor, required="always")
    for response, mechanism in (("", "EXTERNAL"), ("sensor", "EXTERNAL"), ("\0guest\0guest", "PLAIN")):
        peer = place.login(response, mechanism=mechanism, certificate="sensor")
        assert isinstance(peer.ask(C.Queue.Declare(0, "mine")), C.Queue.DeclareOk)
        assert denied(peer.say(C.Queue.Declare(0, "other")))
    peer = place.login(certificate="sensor")
    assert isinstance(peer.ask(C.Queue.Declare(0, "other")), C.Queue.DeclareOk), "a login counts more"
    for stranger in ("ann", "stranger"):
        assert place.say("", mechanism="EXTERNAL", certificate=stranger)[1] == ["Connection.Start"]
    _, names = place.say("", mechanism="EXTERNAL")
    assert names == ["Connection.Start", "Connection.Close"], "it was not offered"


DECLARE = C.Queue.Declare(0, "q")
LETTERS = C.Queue.Declare(0, "p", arguments={"x-dead-letter-exchange": "x"})
DEFAULT_LETTERS = C.Queue.Declare(0, "p", arguments={"x-dead-letter-exchange": ""})
ALTERNATE = C.Exchange.Declare(0, "z", arguments={"alternate-exchange": "x"})


@pytest.mark.parametrize(
    ("method", "needs"),
    [
        (DECLARE, ["manage:q"]),
        (C.Queue.Declare(0, ""), ["manage:amq.gen-*"]),
        (LETTERS, ["manage:p", "write:x"]),
        (DEFAULT_LETTERS, ["manage:p", "write:amq.default"]),
        (C.Queue.Delete(0, "q"), ["manage:q"]),
        (C.Queue.Purge(0, "q"), ["manage:q"]),
        (C.Queue.Bind(0, "q", "x"), ["read:x", "write:q"]),
        (C.Queue.Unbind(0, "q", "x"), ["read:x", "write:q"]),
        (C.Exchange.Declare(0, "x"), ["manage:x"]),
        (ALTERNATE, ["manage:z", "write:x"]),
        (C.Exchange.Delete(0, "y"), ["manage:y"]),
        (C.Exchange.Bind(0, "y", "x"), ["read:x", "write:y"]),
        (C.Exchange.Unbind(0, "y", "x"), ["read:x", "write:y"]),
        (C.Basic.Get(0, "q"), ["read:q"]),
        (C.Basic.Consume(0, "q"), ["read:q"]),
        (C.Basic.Consume(0, "amq.rabbitmq.reply-to", no_ack=True), ["read:amq.rabbitmq.reply-to"]),
        (Direct.Put("x"), ["write:x"]),
        (Direct.Put(""), ["write:amq.default"]),
        (Direct.Get("own"), ["read:own"]),
    ],
)
async def test_a_method_needs_just_these_rights(method: base.Frame, needs: list[str]) -> None:
    place = await Place.open(EVERYTHING)
    peer = place.login()
    for made in (DECLARE, C.Queue.Declare(0, "own", exclusive=True)):
        assert isinstance(peer.ask(made), C.Queue.DeclareOk)
    for name in ("x", "y"):
        assert isinstance(peer.ask(C.Exchange.Declare(0, name)), base.Frame)
    for left_out in needs:
        others = [f"dmp:{each}" for each in needs if each != left_out]
        wrong = [f"dmp:{action}:{left_out.partition(':')[2]}" for action in ("read", "write", "manage")]
        place.rules(*others, *(rule for rule in wrong if rule != f"dmp:{left_out}"))
        assert denied(peer.say(method)), left_out
        peer.send(encode(C.Channel.CloseOk(), 1) + encode(C.Channel.Open(), 1))
        peer.frames()
    place.rules(*(f"dmp:{each}" for each in needs))
    peer.method(method)
    place.world.settle()
    assert [value.name for _, value in peer.frames() if isinstance(value, C.Channel.Close)] == []


@pytest.mark.parametrize("action", ["read", "write", "manage"])
async def test_a_passive_declaration_needs_any_right(action: str) -> None:
    place = await Place.open(EVERYTHING)
    peer = place.login()
    peer.ask(DECLARE)
    peer.ask(C.Exchange.Declare(0, "x"))
    place.rules(f"dmp:{action}:[qx]", f"dmp:{action}:q", f"dmp:{action}:x")
    assert isinstance(peer.ask(C.Queue.Declare(0, "q", True)), C.Queue.DeclareOk)
    assert isinstance(peer.ask(C.Exchange.Declare(0, "x", passive=True)), C.Exchange.DeclareOk)
    place.rules()
    assert denied(peer.say(C.Queue.Declare(0, "q", True)))


@pytest.mark.parametrize(("exchange", "name"), [("x", "x"), ("", "amq.default")])
async def test_publishing_needs_write_on_the_exchange_also_on_the_fast_path(exchange: str, name: str) -> None:
    place = await Place.open(EVERYTHING)
    peer = place.login()
    peer.ask(DECLARE)
    peer.ask(C.Exchange.Declare(0, "x"))
    peer.ask(C.Queue.Bind(0, "q", "x", "q"))
    place.rules(f"dmp:write:{name}", "dmp:read:q")
    peer.publish(exchange, "q", b"a")
    peer.publish(exchange, "q", b"b", b"c")
    assert [peer.ask_get("q") for _ in range(3)] == [b"a", b"b", b"c"]
    place.rules("dmp:read:*", "dmp:manage:*", "dmp:write:q")
    peer.publish(exchange, "q", b"d")
    assert denied(peer.frames())
    assert place.world.broker.queues[b"q"].depth == 0
    assert place.guard.denied == {"write": 1}


async def test_a_transaction_is_decided_by_the_rules_at_its_commit() -> None:
    place = await Place.open(EVERYTHING)
    peer = place.login()
    peer.ask(DECLARE)
    for rules in (("dmp:read:*",), ("dmp:write:*",)):
        place.rules("dmp:*:*")
        peer.ask(C.Tx.Select())
        peer.publish("", "q", b"a")
        peer.ask(C.Tx.Commit())
        got = peer.say(C.Basic.Get(0, "q"))[0][1]
        peer.publish("", "q", b"b")
        peer.method(C.Basic.Ack(got.delivery_tag))
        place.rules(*rules)
        assert denied(peer.say(C.Tx.Commit()))
        peer.send(encode(C.Channel.CloseOk(), 1) + encode(C.Channel.Open(), 1))
        place.world.advance(0)
        place.rules("dmp:*:*")
        peer.frames()
        assert peer.ask_get("q") == b"a"
        assert place.world.broker.queues[b"q"].depth == 0


@pytest.mark.parametrize("cancels", [False, True])
async def test_a_consumer_that_loses_its_right_is_cancelled_and_may_acknowledge(
    cancels: bool,
) -> None:
    place = await Place.open(EVERYTHING, user("bob", "dmp:*:*"))
    peer, bob = place.login(capabilities=CANCELS if cancels else None), place.login("\0bob\0secret")
    for name in ("q", "r"):
        peer.ask(C.Queue.Declare(0, name))
        peer.publish("", name, b"1", b"2")
    assert bodies(peer.say(C.Basic.Get(0, "q"))) == [b"1"]
    for name in ("q", "r"):
        peer.method(C.Basic.Consume(0, name, name))
    assert bodies(peer.frames()) == [b"2", b"1", b"2"]
    place.access.replace(users(user("ann", "dmp:read:r"), user("bob", "dmp:*:*")))
    place.world.advance(0)
    assert peer.names() == ["Basic.Cancel"] * cancels
    lost, kept = (place.world.broker.queues[name] for name in (b"q", b"r"))
    assert [(queue.held, queue.takers.number) for queue in (lost, kept)] == [(2, 0), (2, 1)]
    for tag in (1, 3):
        peer.method(C.Basic.Ack(tag))
    assert [queue.held for queue in (lost, kept)] == [1, 1]
    assert not bodies(bob.say(C.Basic.Get(0, "q", True)))


async def test_sinks_and_feeds_end_with_their_right_and_a_lease_is_decided_when_it_is_used() -> None:
    place = await Place.open(EVERYTHING)
    peer = place.login()
    peer.ask(C.Exchange.Declare(0, "x", "fanout"))
    peer.ask(C.Queue.Declare(0, "own", exclusive=True))
    peer.ask(C.Queue.Bind(0, "own", "x"))
    late = peer.ask(Direct.Put("x")).lease
    sink, feed = (leased(place, peer.ask(method).lease) for method in (Direct.Put("x"), Direct.Get("own")))
    assert b"200 OK Ready" in sink.connection.taken()
    assert b"200 OK Ready" in feed.connection.taken()
    place.rules("dmp:write:x", "dmp:manage:own")
    assert not sink.connection.finished
    assert feed.connection.finished
    place.rules("dmp:read:own", "dmp:manage:x")
    assert sink.connection.finished
    assert sink.connection.taken() == short(b"403 NO-ACCESS not allowed")
    second = leased(place, late)
    assert second.connection.taken().endswith(short(b"403 NO-ACCESS not allowed"))
    feed.lose()
    again = peer.ask(Direct.Get("own")).lease
    place.rules("dmp:write:x")
    denied_feed = leased(place, again)
    assert denied_feed.connection.taken().endswith(short(b"403 NO-ACCESS not allowed"))
    place.rules("dmp:read:own")
    assert isinstance(peer.ask(Direct.Get("own")), Direct.GetOk), "the queue is leased to nobody"


def leased(place: Place, lease: str) -> Peer:
    one = Peer(place.world)
    one.send(DMP_HEADER + short(lease.encode()))
    return one


async def test_who_is_gone_is_closed_and_his_leases_are_worth_nothing() -> None:
    place = await Place.open(EVERYTHING)
    peer = place.login()
    peer.ask(C.Exchange.Declare(0, "x", "fanout"))
    late = peer.ask(Direct.Put("x")).lease
    sink = leased(place, peer.ask(Direct.Put("x")).lease)
    place.access.replace(users(user("ann", "dmp:*:*", certificate=True)))
    assert peer.connection.aborted
    assert sink.connection.aborted
    peer.lose()
    sink.lose()
    assert b"402 BAD-LEASE" in leased(place, late).connection.taken()
    assert place.guard.clients == set()


async def test_who_is_closed_by_an_administrator_is_told_and_shown_until_then() -> None:
    place = await Place.open(EVERYTHING)
    peer = place.login()
    peer.ask(C.Exchange.Declare(0, "x", "fanout"))
    session = peer.session
    assert (session.user, session.traffic["messages_in"], session.waits_for) == ("ann", 0, [])
    lease = peer.ask(Direct.Put("x")).lease
    session.kick("the test says so")
    (_, told), *_ = peer.frames()
    assert isinstance(told, C.Connection.Close)
    assert (told.reply_code, told.reply_text) == (320, "CONNECTION_FORCED - the test says so")
    assert b"402 BAD-LEASE" in leased(place, lease).connection.taken()
    peer.method(C.Connection.CloseOk(), 0)
    assert peer.connection.finished


ANNS = Users.parse("ann:secret")


@pytest.mark.parametrize(
    ("required", "file", "settings", "seconds"),
    [
        ("never", False, DmpSettings(), 30),
        ("never", True, DmpSettings(), 30),
        ("never", True, DmpSettings(users=ANNS), 30),
        ("never", True, DmpSettings(login_seconds=40), 30),
        ("always", True, DmpSettings(), 10),
        ("always", True, DmpSettings(login_seconds=4), 4),
        ("always", True, DmpSettings(login_seconds=40), 30),
        ("never", False, DmpSettings(users=ANNS), 10),
    ],
)
@pytest.mark.parametrize("header", [AMQP_HEADER, DMP_HEADER, b""])
async def test_whoever_must_log_in_has_less_time_for_his_first_word(
    required: Required, file: bool, settings: DmpSettings, seconds: int, header: bytes
) -> None:
    """Its first eight bytes come in the middle of it, and bring no more time."""
    place = await Place.open(EVERYTHING, required=required, settings=settings, file=file)
    peer = Peer(place.world)
    peer.advance(seconds / 2)
    peer.send(header)
    peer.advance(seconds / 2 - 1)
    assert not peer.connection.finished
    peer.advance(1)
    assert peer.connection.finished
    assert place.world.broker.counts.too_late == 1
