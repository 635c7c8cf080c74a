"""How servers are named and reached: options of the source, and addresses."""

import pytest

from brokers.pipeline.source.options import Reach, parse, parse_servers
from brokers.pipeline.source.planning import open_reader
from shared.errors import ConfigError


@pytest.mark.parametrize(
    ("given", "reach"),
    [
        ({}, Reach()),
        ({"TLS": "true"}, Reach(tls=True)),
        (
            {"tlsCa": "a", "tlsCertificate": "c", "tlsKey": "k", "connectTimeoutMs": "1500"},
            Reach(False, "a", "c", "k", 1.5),
        ),
        ({"replyTimeoutMs": "10", "retryTimeoutMs": "20"}, Reach(reply_seconds=0.01, retry_seconds=0.02)),
    ],
)
def test_how_servers_are_reached_is_an_option(given: dict[str, str], reach: Reach) -> None:
    assert parse({"servers": "a", "subscribe": "t", **given}).reach == reach


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"servers": "a:x"}, "servers: 'a:x' is not host:port"),
        ({"servers": "a:65536"}, "servers: 'a:65536' is not host:port"),
        ({"tlsKey": "k"}, "tlsKey: needs tlsCertificate"),
        ({"tls": "perhaps"}, "tls: not true or false"),
        ({"retryTimeoutMs": "0"}, "retryTimeoutMs: not a whole number above 0"),
        ({"replyTimeoutMs": str(1 << 31)}, "replyTimeoutMs: above 2147483647"),
        ({"servers": "a..b:1"}, "servers: 'a..b:1' is not host:port"),
        ({"servers": "http://a:1"}, "servers: 'http://a:1' is not host:port"),
        ({"namespace": "dms"}, "namespace: only a data folder"),
        ({"subscribe": "t,a b"}, "subscribe: 'a b': a name is"),
    ],
)
def test_a_wrong_option_of_reaching_servers_is_named(given: dict[str, str], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        parse({"servers": "a", "subscribe": "t", **given})


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"tlsCa": "/nowhere.pem"}, "tlsCa: /nowhere.pem cannot be used: No such file"),
        ({"tlsCa": __file__}, "tlsCa: .* cannot be used"),
        ({"tlsCertificate": "/nowhere.pem"}, "tlsCertificate: /nowhere.pem cannot be used"),
    ],
)
def test_a_file_that_is_no_good_for_tls_is_named(given: dict[str, str], text: str) -> None:
    chosen = parse({"servers": "a", "subscribe": "t", **given})
    with pytest.raises(ConfigError, match=text), open_reader(chosen, "a"):
        pass


@pytest.mark.parametrize(
    ("text", "servers"),
    [
        ("a", [("a", 8080)]),
        ("a:1, b:2 ,", [("a", 1), ("b", 2)]),
        ("[::1],[::1]:9", [("::1", 8080), ("::1", 9)]),
    ],
)
def test_servers_are_hosts_with_or_without_ports(text: str, servers: list[tuple[str, int]]) -> None:
    parsed = parse_servers(text)
    assert [(each.host, each.port) for each in parsed] == servers
    assert parse_servers(",".join(map(str, parsed))) == parsed


@pytest.mark.parametrize(
    "text", ["", ",", "a:", "a:x", "a:0", "a:70000", "::1", "[::1", "[::1]8", "a b", "a,a:8080"]
)
def test_what_names_no_server_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        parse_servers(text)
