"""Addresses, and names made of what came."""

import pytest

from shared.addresses import MessageOrigin, NameTemplate, exchange_and_key, split, unescaped

CAME = MessageOrigin("dmp", b"orders.new.eu", b"orders.new.eu", b"10.0.0.1:4711", 1_700_000_000.5)


def test_an_address_is_a_protocol_and_what_it_reads_itself() -> None:
    assert split("pubsub:home/+/t:x") == ("pubsub", "home/+/t:x")
    for wrong in ("", "jobs", ":jobs", "Log mq:x", "/tmp:x"):
        with pytest.raises(ValueError, match="begins with a protocol"):
            split(wrong)


def test_a_slash_divides_an_exchange_from_a_key_unless_it_is_escaped() -> None:
    assert exchange_and_key("amq.topic/a/b.#") == (b"amq.topic", "a/b.#")
    assert exchange_and_key("a%2Fb/c") == (b"a/b", "c")
    assert exchange_and_key("a%2Fb") is None
    assert unescaped("a%2Fb%7Bc%25") == b"a/b{c%"


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("audit", b"audit"),
        ("audit-{key.1}", b"audit-orders"),
        ("{name.3}.{name.2}", b"eu.new"),
        ("{name}", b"orders.new.eu"),
        ("{protocol}/{sender}", b"dmp/10.0.0.1:4711"),
        ("log-{date}", b"log-2023-11-14"),
        ("x{name.4}", b"x"),
        ("{date.1}", b"2023-11-14"),
        ("%7Bname}", b"{name}"),
    ],
)
def test_a_name_is_made_of_fields(text: str, name: bytes) -> None:
    assert NameTemplate.parse(text).name_for(CAME) == name


def test_levels_are_split_at_slashes_and_dots_and_bytes_stay() -> None:
    origin = MessageOrigin("pubsub", b"home/\xff.attic")
    assert NameTemplate.parse("{name.2}-{name.3}-{name.1}-{key}").name_for(origin) == b"\xff-attic-home-"


@pytest.mark.parametrize("text", ["{nmae}", "a{", "{name.0}", "{name.}", "{name.x}", "", "{key.123}"])
def test_what_is_no_field_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"is no field|missing"):
        NameTemplate.parse(text)
