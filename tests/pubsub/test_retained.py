"""Retained messages: the last one of a topic, for who subscribes later, before anything newer."""

import pytest
import trio

import pubsub.retained
from pubsub.settings import PubsubSettings
from pubsub.wire import Command, Kind, datagram, encode_command, encode_id
from shared.budget import Account
from shared.plugin import UdpEndpoint
from tests.pubsub.test_kept_log import MODE, Life
from tests.pubsub.world import Peer, framed
from tests.support.connections import MemoryConnection


class Retaining(Life):
    def __init__(self, *retain: str, **settings: int) -> None:
        super().__init__()
        self.settings = PubsubSettings(**MODE, retain=retain, **settings)  # type: ignore[arg-type]

    def send(self, topic: bytes, *texts: bytes, kind: Kind = Kind.STRING) -> None:
        endpoint = self.service.endpoints[1]
        assert isinstance(endpoint, UdpEndpoint)
        sent = [datagram(topic, kind, text) for text in texts]
        frames = b"".join(framed(each, b"127.0.0.1:9") for each in sent)
        assert endpoint.sink.receive_frames(frames, [len(each) for each in sent]) is None
        self.settle()

    async def subscriber(self, *patterns: bytes) -> Peer:
        peer = Peer(self, MemoryConnection())  # type: ignore[arg-type]
        self.number += 1
        asked = (encode_command(Command.SUBSCRIBE, each) for each in patterns)
        peer.send(encode_id(b"S%d" % self.number) + b"".join(asked))
        return peer


def values(peer: Peer) -> list[bytes]:
    return [message.value for message in peer.messages()]


@pytest.fixture
async def life(nursery: trio.Nursery) -> Retaining:
    life = Retaining("hall/*")
    await life.start()
    nursery.start_soon(life.service.run)
    await trio.testing.wait_all_tasks_blocked()
    return life


async def looked(peer: Peer) -> list[bytes]:
    """What has come, once the server has looked back."""
    found: list[bytes] = []
    while True:
        await trio.testing.wait_all_tasks_blocked()
        some = values(peer)
        if not some:
            return found
        found += some


async def test_who_subscribes_gets_the_last_message_of_each_topic_before_anything_newer(
    life: Retaining,
) -> None:
    life.send(b"hall/1", b"old", b"last of 1")
    life.send(b"hall/2", b"last of 2")
    life.send(b"cellar", b"not retained")
    one = await life.subscriber(b"hall/1", b"cellar")
    life.send(b"hall/1", b"newer")
    assert values(one) == [b"last of 1", b"newer"]
    all_of_it = await life.subscriber(b"*")
    life.send(b"hall/2", b"newest")
    assert sorted(await looked(all_of_it)) == [b"last of 2", b"newer", b"newest"]
    all_of_it.send(encode_command(Command.SUBSCRIBE, b"hall/2"))
    assert await looked(all_of_it) == [b"newest"], "at each subscription, also to what it has"


async def test_what_is_retained_is_on_disk(life: Retaining) -> None:
    life.send(b"hall/1", b"\0\0\0\0\7", kind=Kind.INT)
    life.send(b"hall/2", b"gone")
    life.send(b"hall/2", b"")
    await life.crash(power=3)
    assert values(await life.subscriber(b"hall/1", b"hall/2")) == [b"7"]


async def test_an_empty_message_ends_it_and_reaches_subscribers(life: Retaining) -> None:
    live = await life.subscriber(b"hall/1")
    life.send(b"hall/1", b"here", b"")
    assert values(live) == [b"here", b""]
    assert values(await life.subscriber(b"hall/1")) == []
    assert life.sessions.retained is not None
    assert len(life.sessions.retained) == 0


async def test_a_topic_too_many_is_told_and_counted_and_ended_ones_make_room(
    capsys: pytest.CaptureFixture[str],
) -> None:
    life = Retaining("*", retained_max=2)
    await life.start()
    for topic in (b"a", b"b", b"c", b"d"):
        life.send(topic, b"text")
    assert life.sessions.counts.retained_refused == 2
    assert capsys.readouterr().out.count("a message is not retained") == 1
    life.send(b"a", b"")
    life.send(b"c", b"text")
    assert values(await life.subscriber(b"a", b"c")) == [b"text"]


async def test_its_memory_is_the_budgets() -> None:
    life = Retaining("hall/*")
    life.budget = Account("pubsub", 10_000)
    await life.start()
    account = life.budget.account("messages")
    account.limit_bytes = 2 * pubsub.retained.ROW_BYTES
    life.send(b"hall/1", b"text")
    life.send(b"hall/2", b"text")
    assert life.sessions.counts.retained_refused == 1
    life.send(b"hall/1", b"")
    assert account.used_bytes == 0


async def test_what_no_pattern_matches_any_more_ends(life: Retaining) -> None:
    life.send(b"hall/1", b"one")
    life.send(b"hall/2", b"two")
    await life.service.take_settings(PubsubSettings(**MODE, retain=("hall/2", "new")))  # type: ignore[arg-type]
    life.send(b"new", b"three")
    assert values(await life.subscriber(b"hall/1", b"hall/2", b"new")) == [b"two", b"three"]
    life.settings = PubsubSettings(**MODE, retain=("new",))  # type: ignore[arg-type]
    await life.crash()
    assert values(await life.subscriber(b"hall/2", b"new")) == [b"three"]


async def test_while_much_waits_for_the_disk_the_last_of_each_topic_waits_to_be_written(
    life: Retaining, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pubsub.retained, "PENDING_BYTES_MAX", 0)
    endpoint = life.service.endpoints[1]
    assert isinstance(endpoint, UdpEndpoint)
    for number in range(100):
        sent = datagram(b"hall/%d" % (number % 2), Kind.STRING, b"%d" % number)
        endpoint.sink.receive_frames(framed(sent, b"1.2.3.4:5"), [len(sent)])
    log = life.context.store.namespace("pubsub", MODE["durability"]).logs["retained"]
    assert log.end < 500, "one is written, the others wait"
    assert values(await life.subscriber(b"hall/0", b"hall/1")) == [b"98", b"99"]
    await trio.testing.wait_all_tasks_blocked()
    life.settle()
    await trio.testing.wait_all_tasks_blocked()
    await life.crash()
    assert values(await life.subscriber(b"hall/0", b"hall/1")) == [b"98", b"99"]


async def test_the_list_shows_it_and_ends_it(life: Retaining) -> None:
    life.send(b"hall/\xff", b"\0\0\0\0\0", kind=Kind.INT)
    listed = next(each for each in life.service.objects if each.kind.name == "retained")
    (topic,) = listed.items()
    assert listed.row(topic) == {
        "topic": "hall/\\xff",
        "type": "INT",
        "bytes": 5,
        "time": "2023-11-14T22:13:20.000Z",
        "sender": "127.0.0.1:9",
    }
    (delete,) = listed.actions
    assert listed.find(["hall/1"]) is None
    assert await delete.call(listed.find(["hall/\\xff"]), {}, False) == {"deleted": 1}
    assert (listed.items(), listed.row(topic)) == ([], None)
    await life.crash()
    assert life.sessions.retained is not None
    assert len(life.sessions.retained) == 0


def test_a_pattern_of_the_settings_is_one_of_topics() -> None:
    for wrong in ("", "x" * 51, "a\0"):
        with pytest.raises(ValueError, match="a pattern of retain has 1 to 50 bytes"):
            PubsubSettings(retain=(wrong,))
