"""What is refused, and how: the specification's codes, on the channel or the connection."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pamqp import commands
from pamqp.encode import field_table

from dmp.amqp.wire import Direct, encode
from dmp.refusals import Code
from dmp.settings import DmpSettings, Users
from dmp.wire import AMQP_HEADER
from shared.errors import ConfigError
from shared.net.listeners import check_exposure
from shared.net.settings import TlsSettings
from tests.dmp.amqp_peer import Peer, close_of, closed, content_header, opened, publish, start_ok
from tests.dmp.world import World

C = commands


def declared(name: str, **arguments: object) -> bytes:
    return encode(C.Queue.Declare(0, name, arguments=dict(arguments)), 1)


DECLARED = declared("q")
PUBLISH = encode(C.Basic.Publish(0, "", "q"), 1)
SHORT_OF_ITS_END = publish("", "q", b"abc")[:-11]


@pytest.mark.parametrize(
    ("code", "data"),
    [
        (403, encode(C.Exchange.Declare(0, "amq.mine"), 1)),
        (403, encode(C.Exchange.Declare(0, "", "direct"), 1)),
        (403, encode(C.Exchange.Declare(0, "", passive=True), 1)),
        (403, encode(C.Exchange.Delete(0, "amq.topic"), 1)),
        (403, encode(C.Exchange.Delete(0, ""), 1)),
        (403, declared("amq.mine")),
        (403, DECLARED + encode(C.Queue.Bind(0, "q", "", "k"), 1)),
        (403, DECLARED + encode(C.Queue.Unbind(0, "q", "", "q"), 1)),
        (403, encode(C.Exchange.Bind(0, "", "amq.topic", "k"), 1)),
        (403, encode(C.Exchange.Unbind(0, "", "amq.topic", "k"), 1)),
        (403, DECLARED + 2 * encode(C.Basic.Consume(0, "q", exclusive=True), 1)),
        (403, DECLARED + encode(Direct.Get("q"), 1)),
        (404, encode(C.Exchange.Declare(0, "none", passive=True), 1)),
        (404, encode(C.Exchange.Bind(0, "none", "amq.topic", "k"), 1)),
        (404, encode(C.Queue.Declare(0, "none", True), 1)),
        (404, encode(C.Queue.Bind(0, "none", "amq.topic", "k"), 1)),
        (404, DECLARED + encode(C.Queue.Bind(0, "q", "none", "k"), 1)),
        (404, encode(C.Queue.Purge(0, "none"), 1)),
        (404, encode(C.Basic.Get(0, "none"), 1)),
        (404, encode(C.Basic.Consume(0, "none"), 1)),
        (404, publish("none", "", b"x")),
        (404, encode(Direct.Put("none"), 1)),
        (404, encode(Direct.Get("none"), 1)),
        (405, encode(C.Queue.Declare(0, "theirs", True), 1)),
        (405, declared("theirs")),
        (405, encode(C.Queue.Declare(0, "own", exclusive=True), 1) + declared("own")),
        (405, DECLARED + encode(C.Queue.Declare(0, "q", exclusive=True), 1)),
        (405, encode(C.Queue.Bind(0, "theirs", "amq.topic", "k"), 1)),
        (405, encode(C.Queue.Delete(0, "theirs"), 1)),
        (405, encode(C.Queue.Purge(0, "theirs"), 1)),
        (405, encode(C.Basic.Get(0, "theirs"), 1)),
        (405, encode(C.Basic.Consume(0, "theirs"), 1)),
        (405, encode(Direct.Get("theirs"), 1)),
        (405, encode(C.Queue.Declare(0, "own", exclusive=True), 1) + 2 * encode(Direct.Get("own"), 1)),
        (406, DECLARED + encode(C.Queue.Declare(0, "q", auto_delete=True), 1)),
        (406, DECLARED + declared("q", **{"x-expires": 5000})),
        (406, declared("x", **{"x-message-ttl": -1})),
        (406, declared("x", **{"x-expires": 0})),
        (406, declared("x", **{"x-max-length": "many"})),
        (406, declared("x", **{"x-max-priority": 256})),
        (406, declared("x", **{"x-overflow": "reject-publish-dlx"})),
        (406, encode(C.Exchange.Declare(0, "odd", "quantum"), 1)),
        (406, declared("x", **{"x-queue-type": "stream"})),
        (406, declared("x", **{"x-queue-type": "quorum"})),  # not durable
        (406, encode(C.Queue.Declare(0, "x", False, True, True, arguments={"x-queue-type": "quorum"}), 1)),
        (406, declared("x", **{"x-single-active-consumer": 1})),
        (406, declared("x", **{"x-dead-letter-routing-key": "alone"})),
        (406, encode(C.Exchange.Declare(0, "x", arguments={"alternate-exchange": 5}), 1)),
        (406, encode(C.Exchange.Declare(0, "x", arguments={"alternate-exchange": "\u00fc" * 128}), 1)),
        (406, DECLARED + publish("", "q", b"x") + encode(C.Queue.Delete(0, "q", if_empty=True), 1)),
        (
            406,
            DECLARED + encode(C.Basic.Consume(0, "q"), 1) + encode(C.Queue.Delete(0, "q", if_unused=True), 1),
        ),
        (406, encode(C.Basic.Ack(1), 1)),
        (406, encode(C.Tx.Commit(), 1)),
        (406, encode(C.Tx.Rollback(), 1)),
        (406, encode(C.Confirm.Select(), 1) + encode(C.Tx.Select(), 1)),
        (406, encode(C.Tx.Select(), 1) + encode(C.Confirm.Select(), 1)),
        (406, encode(C.Tx.Select(), 1) + encode(C.Basic.Ack(1), 1)),
        (406, encode(C.Basic.Nack(1), 1)),
        (406, encode(C.Basic.Reject(1), 1)),
        (406, DECLARED + publish("", "q", b"x", properties=b"\x01\x00\x03abc")),  # expiration
        (406, DECLARED + publish("", "q", b"x", properties=b"\x00\x10\x03ann")),  # user-id
    ],
)
async def test_what_is_not_to_be_had_costs_the_channel_and_no_more(
    world: World, peer: Peer, code: int, data: bytes
) -> None:
    other = Peer(world).login()
    other.ask(C.Queue.Declare(0, "theirs", exclusive=True))
    peer.send(data)
    close = close_of(peer)
    assert (close.name, close.reply_code) == ("Channel.Close", code)
    assert close.reply_text.startswith(f"{Code(code).name} - ")
    assert world.broker.counts.refusals == {Code(code).name: 1}
    peer.send(encode(C.Channel.CloseOk(), 1) + encode(C.Channel.Open(), 1))
    assert peer.names() == ["Channel.OpenOk"]


@pytest.mark.parametrize(
    ("code", "data"),
    [
        (501, b"\x01\0\x01\0\x10\0\0"),  # above frame_max
        (501, b"\x08\0\0\0\0\0\x01a\xce"),
        (502, b"\x01\0\x01\0\0\0\x02\0\x1e\xce"),
        (502, b"\x01\0\x01\0\0\0\x05\0\x3c\0\x0a\x01\xce"),
        (502, PUBLISH + content_header(5, b"\x00\x01")),
        (502, PUBLISH + content_header(5, b"\x80\x00\x09text")),
        (503, encode(C.Channel.Open(), 0)),
        (503, encode(C.Connection.Open("/"), 0)),
        (503, encode(C.Basic.Deliver("t", 1, False, "", ""), 1)),
        (503, encode(C.Connection.Open("/"), 1)),
        (503, encode(C.Channel.FlowOk(True), 1)),
        (504, encode(C.Basic.Qos(), 2)),  # not open
        (504, encode(C.Channel.Open(), 1)),  # open
        (504, content_header(5, channel=9)),
        (505, b"\x08\0\x01\0\0\0\0\xce"),  # a heartbeat on a channel
        (505, PUBLISH + content_header(5).replace(b"\0\x3c", b"\0\x3d")),  # of another class
        (505, content_header(5)),  # nobody has published
        (505, SHORT_OF_ITS_END + encode(C.Basic.Qos(), 1)),  # amid a content
        (505, PUBLISH + encode(C.Channel.Flow(True), 1)),
        (505, PUBLISH + b"\x03\0\x01\0\0\0\x01a\xce"),  # no header
        (505, PUBLISH + content_header(2) + b"\x03\0\x01\0\0\0\x03abc\xce"),
        (530, b"".join(encode(C.Channel.Open(), number) for number in range(60000, 60000 + 2047))),
        (530, DECLARED + 2 * encode(C.Basic.Consume(0, "q", "same"), 1)),
        (540, encode(C.Tx.Select(), 1) + publish("", "q", b"x", immediate=True)),
        (540, encode(C.Basic.Qos(1, 0), 1)),  # prefetch-size
        (540, b"\x01\0\x01\0\0\0\x04\0\x1e\0\x0a\xce"),  # class access is history
    ],
)
async def test_what_is_not_legal_ends_the_connection_with_its_code(
    peer: Peer, code: int, data: bytes
) -> None:
    peer.send(data)
    close = close_of(peer)
    assert (close.name, close.reply_code) == ("Connection.Close", code)
    assert close.reply_text.startswith(f"{Code(code).name} - ")
    peer.send(publish("", "q", b"ignored") + encode(C.Connection.CloseOk(), 0))
    assert peer.connection.finished
    assert peer.connection.taken() == b""


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (
            {"x-message-ttl": 5},
            "'x-message-ttl' for queue 'q' in vhost '/': received the value '5' of type 'byte'",
        ),
        ({"x-message-ttl": 1 << 40}, f"received the value '{1 << 40}' of type 'long' but current is none"),
        ({"x-max-length": 5}, "'x-max-length'"),
        ({"x-max-length-bytes": 5}, "'x-max-length-bytes'"),
        ({"x-expires": 5}, "'x-expires'"),
        ({"x-max-priority": 5}, "'x-max-priority'"),
        ({"x-overflow": "reject-publish"}, "'x-overflow'"),
        ({"x-single-active-consumer": True}, "received the value 'true' of type 'bool' but current is none"),
        ({"x-dead-letter-exchange": "amq.direct"}, "the value 'amq.direct' of type 'longstr'"),
        ({"x-queue-type": "quorum"}, "'x-queue-type'"),
    ],
)
async def test_another_declaration_names_the_argument_and_both_values_as_they_were_sent(
    peer: Peer, arguments: dict[str, Any], said: str
) -> None:
    peer.ask(C.Queue.Declare(0, "q", durable=True))
    peer.method(C.Queue.Declare(0, "q", durable=True, arguments=arguments))
    close = close_of(peer)
    assert close.reply_code == 406
    assert said in close.reply_text
    again = Peer(peer.world).login()
    again.ask(C.Queue.Declare(0, "other", durable=True, arguments=arguments))
    again.method(C.Queue.Declare(0, "other", durable=True))
    assert "received none but current is the value" in close_of(again).reply_text


async def test_another_declaration_of_flags_and_alternates_is_told_in_their_words(peer: Peer) -> None:
    peer.ask(C.Queue.Declare(0, "q"))
    peer.method(C.Queue.Declare(0, "q", durable=True))
    assert close_of(peer).reply_text.endswith(
        "arg 'durable' for queue 'q' in vhost '/': received 'true' but current is 'false'"
    )
    peer = Peer(peer.world).login()
    peer.ask(C.Exchange.Declare(0, "e", "fanout"))
    peer.method(C.Exchange.Declare(0, "e", "fanout", arguments={"alternate-exchange": "amq.topic"}))
    assert "received the value 'amq.topic' of type 'longstr' but current is none" in close_of(peer).reply_text


@pytest.mark.parametrize(
    ("of", "method"),
    [
        ("queue", lambda arguments: C.Queue.Declare(0, "new", arguments=arguments)),
        ("exchange", lambda arguments: C.Exchange.Declare(0, "new", "fanout", arguments=arguments)),
        ("consumer", lambda arguments: C.Basic.Consume(0, "q", arguments=arguments)),
    ],
)
@pytest.mark.parametrize(
    "name",
    [
        "x-delivery-limits",
        "x-consumer-timeout",
        "x-delay",
        "x-cache-size",
        "x-delayed-type",
        "x-stream-offset",
    ],
)
async def test_an_argument_that_nobody_would_act_upon_is_refused_by_its_name(
    peer: Peer, of: str, method: Callable[[dict[str, Any]], Any], name: str
) -> None:
    peer.ask(C.Queue.Declare(0, "q"))
    peer.method(method({name: 5}))
    close = close_of(peer)
    assert (close.name, close.reply_code) == ("Channel.Close", 406)
    assert f"invalid arg '{name}' for {of}" in close.reply_text


async def test_an_exchange_of_the_delayed_type_is_of_the_type_it_routes_by(peer: Peer) -> None:
    peer.ask(C.Exchange.Declare(0, "e", "x-delayed-message", arguments={"x-delayed-type": "topic"}))
    peer.ask(C.Exchange.Declare(0, "e", "topic"))
    peer.ask(C.Queue.Declare(0, "q"))
    peer.ask(C.Queue.Bind(0, "q", "e", "#.b"))
    peer.publish("e", "a.b", b"x")
    assert peer.ask_get("q") == b"x"
    for arguments in ({}, {"x-delayed-type": "x-delayed-message"}, {"x-delayed-type": 5}):
        peer = Peer(peer.world).login()
        peer.method(C.Exchange.Declare(0, "f", "x-delayed-message", arguments=arguments))
        close = close_of(peer)
        assert close.reply_code == 406
        assert "invalid arg 'x-delayed-type' for exchange" in close.reply_text


@pytest.mark.parametrize("name", ["x-quorum-initial-group-size", "x-max-in-memory-length"])
async def test_a_number_that_changes_nothing_has_to_be_one(peer: Peer, name: str) -> None:
    peer.ask(C.Queue.Declare(0, "q", arguments={name: 3}))
    peer.method(C.Queue.Declare(0, "r", arguments={name: "three"}))
    assert f"invalid arg '{name}' for queue" in close_of(peer).reply_text


async def test_no_header_is_refused_nor_an_argument_of_ones_own(peer: Peer) -> None:
    peer.ask(C.Queue.Declare(0, "q", arguments={"mine": 1, "x-queue-mode": "lazy"}))
    peer.ask(C.Exchange.Declare(0, "e", "fanout", arguments={"mine": 1}))
    peer.ask(C.Queue.Bind(0, "q", "e", "", arguments={"x-of-ones-own": 1}))
    headers = b"\x20\0" + field_table({"x-delay": "5", "x-deduplication-header": "k"})
    peer.publish("e", "", b"x", properties=headers)
    assert peer.ask_get("q") == b"x"


@pytest.mark.parametrize("method", [b"\0\x50", b"\0\x5a", b"\0\x78"])  # ack, reject, nack
@pytest.mark.parametrize("within", [b"", encode(C.Tx.Select(), 1)])
async def test_an_unknown_delivery_tag_is_named_as_it_was_sent(
    peer: Peer, method: bytes, within: bytes
) -> None:
    peer.send(within + b"\x01\0\x01\0\0\0\x0d\0\x3c" + method + b"\xff" * 7 + b"\xfe\0\xce")
    close = close_of(peer)
    assert (close.name, close.reply_code) == ("Channel.Close", 406)
    assert close.reply_text.endswith(f"unknown delivery tag {(1 << 64) - 2}")


async def test_a_close_names_the_method_that_it_is_about(peer: Peer) -> None:
    peer.send(encode(C.Queue.Purge(0, "none"), 1))
    ((_, close),) = peer.frames()
    assert (close.class_id, close.method_id) == (50, 30)
    peer.send(encode(C.Tx.Select(), 7) + encode(C.Channel.CloseOk(), 1))
    ((_, close),) = peer.frames()
    assert (close.class_id, close.method_id) == (90, 10)


@pytest.mark.parametrize("data", [b"\x05\0\0\0\0\0\0\xce", b"\x08\0\0\0\0\0\0\xcd", b"GET / HTTP/1.1"])
async def test_what_cannot_be_framed_is_answered_with_nothing_counted_and_logged_with_its_reason(
    world: World, peer: Peer, data: bytes
) -> None:
    peer.send(data)
    assert "0xcd" in str(peer.fault) or "of type" in str(peer.fault)
    assert world.broker.counts.refusals == {"FRAME_ERROR": 1}
    assert peer.connection.finished
    assert peer.connection.taken() == b""


TUNED = [encode(start_ok(), 0), encode(C.Connection.TuneOk(0, 0, 0), 0)]


@pytest.mark.parametrize(
    ("expected", "parts"),
    [
        (530, [encode(start_ok(), 0), encode(C.Connection.TuneOk(0, 100, 0), 0)]),
        (530, [encode(start_ok(), 0), encode(C.Connection.TuneOk(65535, 0, 0), 0)]),
        (530, [encode(start_ok(), 0), encode(C.Connection.TuneOk(0, 1 << 30, 0), 0)]),
        (503, [encode(start_ok(mechanism="CRAM"), 0)]),
        (530, [*TUNED, encode(C.Connection.Open("no"), 0)]),
        (503, [encode(C.Connection.Open("/"), 0)]),
        (503, [encode(C.Channel.Open(), 1)]),
        (403, [encode(start_ok({"authentication_failure_close": True}, "\0guest\0wrong"), 0)]),
        (403, [encode(start_ok({"authentication_failure_close": True}, "guest"), 0)]),
        (501, [b"\x01\0\0" + (8185).to_bytes(4, "big")]),  # the largest frame takes eight bytes less
        (502, [encode(start_ok({str(number): True for number in range(256)}), 0)]),
    ],
)
async def test_a_login_that_goes_wrong(expected: int, parts: list[bytes]) -> None:
    peer = Peer(await World.open())
    peer.send(AMQP_HEADER + b"".join(parts))
    assert closed(peer) == ("Connection.Close", expected)


async def test_frames_may_be_large_from_tune_ok_on(peer: Peer) -> None:
    name = "n" * 200
    headers = field_table({f"{name}{number}": number for number in range(400)})
    peer.send(DECLARED + publish("", "q", b"x", properties=b"\x20\0" + headers))
    assert peer.names()[-1] == "Queue.DeclareOk"
    assert peer.ask_get("q") == b"x"


async def test_guest_comes_from_loopback_only() -> None:
    world = await World.open(DmpSettings(users=Users.parse("guest:guest, ann:secret")))
    for user, password, names in (("guest", "guest", 1), ("ann", "secret", 2)):
        peer = Peer(world, peer="192.0.2.7:5000")
        peer.send(AMQP_HEADER + encode(start_ok(response=f"\0{user}\0{password}"), 0))
        assert len(peer.names()) == names


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.5"])
def test_tls_is_enough_beyond_loopback_only_for_users_of_ones_own(host: str) -> None:
    encrypts = TlsSettings(certificate=Path("server.pem"))
    for text in ("", "guest:guest", "guest:other"):
        settings = DmpSettings(users=Users.parse(text)) if text else DmpSettings()
        with pytest.raises(ConfigError, match="--insecure"):
            check_exposure("serve.host", host, encrypts, logs_in=settings.logs_in)
    for text in ("ann:secret", "guest:guest, ann:secret"):
        check_exposure("serve.host", host, encrypts, logs_in=DmpSettings(users=Users.parse(text)).logs_in)


async def test_a_refused_channel_ignores_what_was_on_its_way_and_comes_back(peer: Peer) -> None:
    peer.send(
        encode(C.Queue.Declare(0, "none", True), 1)
        + publish("", "q", b"lost")
        + encode(C.Basic.Get(0, "none"), 1)
        + encode(C.Channel.Close(200, "", 0, 0), 1)
    )
    assert peer.names() == ["Channel.Close", "Channel.CloseOk"]
    peer.send(encode(C.Channel.CloseOk(), 1) + encode(C.Channel.Open(), 1))
    assert peer.names() == ["Channel.OpenOk"]


async def test_a_message_above_the_limit_is_refused_and_its_body_thrown_away() -> None:
    _, peer = await opened(DmpSettings(body_bytes_max=1000))
    peer.send(publish("", "q", bytes(1001), part=100))
    assert closed(peer) == ("Channel.Close", 406)
    _, peer = await opened()
    peer.send(encode(C.Basic.Publish(0, "", "q"), 1) + content_header(1 << 60))
    assert closed(peer) == ("Channel.Close", 406)


async def test_content_begun_on_many_channels_has_a_bound() -> None:
    _, peer = await opened(DmpSettings(message_bytes_max=1000))
    for number in range(2, 5):
        begun = encode(C.Basic.Publish(0, "", "q"), number) + content_header(900, channel=number)
        peer.send(encode(C.Channel.Open(), number) + begun)
    assert closed(peer) == ("Connection.Close", 506)


async def test_a_publish_after_its_exchange_is_gone_is_refused(peer: Peer) -> None:
    peer.ask(C.Exchange.Declare(0, "e", "fanout"))
    peer.publish("e", "", b"same", b"same")
    peer.ask(C.Exchange.Delete(0, "e"))
    peer.publish("e", "", b"same")
    assert closed(peer) == ("Channel.Close", 404)


async def test_an_internal_exchange_takes_nothing_from_clients(world: World, peer: Peer) -> None:
    peer.ask(C.Exchange.Declare(0, "in", "fanout", internal=True))
    peer.publish("in", "", b"x")
    assert closed(peer) == ("Channel.Close", 403)
    peer = Peer(world).login()
    peer.method(Direct.Put("in"))
    assert closed(peer) == ("Channel.Close", 403)


async def test_a_refusal_within_a_run_of_publishes_names_the_publish() -> None:
    world, peer = await opened()
    peer.ask(C.Exchange.Declare(0, "gone"))
    peer.publish("gone", "", b"known from this on")
    world.topology.delete_exchange(b"gone")
    peer.ask(C.Queue.Declare(0, "q"))
    peer.publish("gone", "", b"not known any more")
    ((_, close),) = peer.frames()
    assert (close.reply_code, close.class_id, close.method_id) == (404, 60, 40)
