"""`brokers conform`: the vectors go well here, in either role, and what differs is told."""

import socket
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brokers import plugins
from brokers.conform.cli import played
from brokers.conform.notation import Differs, More, parse, read, write
from brokers.conform.playing import Conversation, Difference, Link, Player, Step, conversations
from brokers.errors import ExitCode, Failure
from logmq.client import connect
from tests.brokers.conftest import Run
from tests.support.server import Server
from tests.support.vectors import played_server

ONE_PORT = ("dms", "logmq", "pubsub", "kqmsgq", "dmp")


def written(text: str, **names: bytes) -> bytes:
    return write(parse(text), dict(names), lambda name: f"fresh-{name}".encode())


@pytest.mark.parametrize(
    ("text", "data"),
    [
        ("", b""),
        ("de ad beef", b"\xde\xad\xbe\xef"),
        ("'OK ' 30 0a", b"OK 0\n"),
        ("41*3 ''", b"AAA"),
        ("#4 01 ( 'abc' )", b"\0\0\0\3\1abc"),
        ("#2 ( #1 ( 'a' ) #1 ( ) )", b"\0\3\1a\0"),
        ("$id*4=00000007 '-' $id", b"\0\0\0\7-\0\0\0\7"),
        ("$topic ' ' $topic", b"fresh-topic fresh-topic"),
        ("$id*14", b"fresh-id\0\0\0\0\0\0"),
        ("$_*2 $_='x' 0a", b"\0\0x\n"),
    ],
)
def test_the_notation_says_these_bytes(text: str, data: bytes) -> None:
    assert written(text) == data
    assert read(parse(text), data + b"rest", {})[0] == len(data)
    if data:
        with pytest.raises(More):
            read(parse(text), data[:-1], {})


@pytest.mark.parametrize("text", ["d", "OK", "'open", "( 00", "00 )", ") (", "#3 ( )", "$ 00"])
def test_what_is_no_notation_is_an_error(text: str) -> None:
    with pytest.raises(ValueError, match=r"no bytes|parentheses"):
        parse(text)


@pytest.mark.parametrize(
    ("text", "data", "at", "why"),
    [
        ("'OK 0' 0a", b"OK 1\n", 3, "30 expected, 31 came"),
        ("#1 ( 'abc' )", b"\2abc", 3, "1 bytes less than expected, by their length"),
        ("#1 ( 'abc' )", b"\4abcd", 4, "1 bytes more than expected, by their length"),
        ("$id*2 $id", b"abad", 3, "62 expected, 64 came"),
        ("#1 ( $name 00 )", b"\2ab", 1, "what has to come behind it is not there"),
    ],
)
def test_the_first_byte_that_differs_is_told(text: str, data: bytes, at: int, why: str) -> None:
    with pytest.raises(Differs) as raised:
        read(parse(text), data, {})
    assert (raised.value.at, raised.value.text) == (at, why)


PIECES = st.sampled_from(
    (
        "'text'",
        "00ff",
        "20*3",
        "$size*2=0102 00",
        "$_*3",
        "$line='abc' 0a",
        "#1 ( 'in' $_='any' )",
        "#2 ( $rest )",
    )
)


@given(st.lists(PIECES, max_size=6), st.binary(max_size=8), st.data())
def test_what_is_written_is_read_once_it_is_all_there(
    pieces: Sequence[str], rest: bytes, drawn: st.DataObject
) -> None:
    parts = parse(" ".join(pieces))
    data = write(parts, {}, str.encode)
    assert read(parts, data + rest, {})[0] == len(data)
    cut = drawn.draw(st.integers(0, len(data)))
    if cut < len(data):
        with pytest.raises(More):
            read(parts, data[:cut], {})


@given(st.lists(PIECES, max_size=6), st.binary(max_size=40))
def test_garbage_differs_or_is_waited_for(pieces: Sequence[str], data: bytes) -> None:
    try:
        end, _ = read(parse(" ".join(pieces)), data, {})
    except (Differs, More):
        return
    assert end <= len(data)


def test_every_protocol_has_vectors_and_each_step_says_what_it_is() -> None:
    assert set(plugins.names()) == set(ONE_PORT)
    for protocol in ONE_PORT:
        names = [each.name for each in conversations(protocol)]
        assert len(set(names)) == len(names) > 2
        for conversation in conversations(protocol):
            assert {step.connection for step in conversation.steps} == set(conversation.connections)


@pytest.mark.parametrize("protocol", ONE_PORT)
def test_the_vectors_go_well_against_this_server_more_than_once(
    protocol: str, shared_server: Server, command: Run
) -> None:
    port = shared_server.address(protocol)[1]
    for _ in range(2):
        code, out, said = command("conform", protocol, "127.0.0.1", str(port))
        assert (code, said) == (ExitCode.OK, "")
        assert out.count("ok  ") == len(conversations(protocol))


@pytest.mark.parametrize("protocol", ONE_PORT)
def test_both_roles_agree_about_every_conversation(protocol: str) -> None:
    with played_server(protocol) as port:
        rows = list(played(conversations(protocol), "127.0.0.1", port))
    assert [row["result"] for row in rows] == ["ok"] * len(conversations(protocol))


async def test_our_client_of_logmq_does_what_the_vectors_have() -> None:
    with played_server("logmq", "produce and consume") as port:
        async with connect("127.0.0.1", port, retry_seconds=0) as client:
            assert await client.produce("orders", b"hello-world") == 0
            record = await client.consume("orders", 0)
            assert record is not None
            assert record.payload == b"hello-world"
            assert await client.consume("orders", 15) is None


class Said(Link):
    """The other side has said all that it will."""

    def __init__(self, *chunks: bytes) -> None:
        self._chunks = list(chunks)

    def send(self, data: bytes) -> None:
        pass

    def receive(self, seconds: float) -> bytes:
        if not self._chunks:
            raise TimeoutError
        return self._chunks.pop(0)

    def end(self) -> None:
        pass


PING = (Step.parse("C>", "'PING' 0a", "ping"), Step.parse("C<", "'PONG' 0a", "pong"))


@pytest.mark.parametrize(
    ("chunks", "why"),
    [
        ((b"PI", b"NG\n"), "step 2, C, pong: byte 1: 4f expected, 49 came"),
        ((b"PON",), "step 2, C, pong: byte 3: nothing more came"),
        ((b"PON", b""), "step 2, C, pong: byte 3: the connection was closed"),
        ((b"PONG\nPONG\n",), "step 2, C: 5 bytes more than expected came: 50 4f 4e 47 0a"),
    ],
)
def test_the_step_in_which_a_server_differs_is_told(chunks: Sequence[bytes], why: str) -> None:
    link = Said(*chunks)
    with pytest.raises(Difference) as raised:
        Player(lambda name: link, True).play(Conversation("ping", {"C": "tcp"}, PING))
    assert str(raised.value) == why


def test_what_is_sent_again_may_be_answered_again_but_only_so_often() -> None:
    steps = [Step.parse("P>>", "'x'", ""), Step.parse("C<", "'x'", ""), Step.parse("C<", "'y'", "")]
    sent: list[bytes] = []

    class Slow(Said):
        def send(self, data: bytes) -> None:
            sent.append(data)
            if len(sent) == 3:
                self._chunks = [b"x", b"xx", b"xy" if again else b"y"]

    for again in (False, True):
        sent.clear()
        link = Slow()
        player = Player(lambda name, link=link: link, True)  # type: ignore[misc]
        conversation = Conversation("again", {"C": "tcp", "P": "tcp"}, steps)
        if again:
            with pytest.raises(Difference, match="79 expected, 78 came"):
                player.play(conversation)
        else:
            player.play(conversation)


def test_a_difference_ends_the_command_with_exit_code_1(shared_server: Server, command: Run) -> None:
    port = str(shared_server.address("kqmsgq")[1])
    code, out, said = command("conform", "logmq", "127.0.0.1", port, "--name", "produce and*")
    assert (code, said) == (ExitCode.FAILED, "brokers: 1 of 1 conversations differ\n")
    assert out == ("differs  produce and consume  step 2, C, its offset: byte 0: the connection was closed\n")


def test_a_client_that_says_something_else_is_told_to_differ() -> None:
    (conversation,) = [each for each in conversations("logmq") if each.name == "produce and consume"]
    rows = played([conversation], "127.0.0.1", 0, serve=True)
    host, _, port = next(rows)["address"].rpartition(":")
    with socket.create_connection((host, int(port))) as client:
        client.sendall(b"PRODUCE t hello\n")
        row = next(rows)
    assert row["why"] == "step 1, C, PRODUCE of 'hello-world': byte 15: 2d expected, 0a came"
    with pytest.raises(Failure):
        next(rows)


def test_where_nobody_answers_nothing_differs(command: Run) -> None:
    code, out, said = command("conform", "logmq", "127.0.0.1", "1")
    assert (code, out) == (ExitCode.UNAVAILABLE, "")
    assert said == "brokers: 127.0.0.1:1: no server answers (Connection refused)\n"


def test_a_port_that_is_taken_is_told(command: Run) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        code, out, said = command("conform", "logmq", "127.0.0.1", str(port), "--serve")
    assert (code, out) == (ExitCode.CONFIGURATION, "")
    assert said == f"brokers: cannot listen on 127.0.0.1:{port}: Address already in use\n"


@pytest.mark.parametrize("port", ["-1", "65536", "x"])
def test_what_is_no_port_is_a_mistake(port: str, command: Run) -> None:
    code, _, said = command("conform", "logmq", "127.0.0.1", port)
    assert code == ExitCode.USAGE
    assert "PORT" in said


def test_names_that_are_not_there_are_a_mistake(command: Run) -> None:
    code, _, said = command("conform", "logmq", "127.0.0.1", "1", "--name", "nix")
    assert code == ExitCode.USAGE
    assert said == "brokers: --name: logmq has no conversation 'nix'\n"
    assert command("conform", "nix", "127.0.0.1", "1")[0] == ExitCode.CONFIGURATION
