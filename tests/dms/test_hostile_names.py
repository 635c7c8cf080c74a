"""Queues whose names would deceive a log, a metric or a path: what a real server makes of them."""

import unicodedata
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from brokers.commands import control
from tests.support import dms_spec as spec
from tests.support.dms_spec import SpecClient
from tests.support.server import Server, until

NAMES = (
    *('quoted "x" {y="z"} 1', "back\\slash", "%s{0}$(id)", "=cmd", " ", "-rf"),
    *("../../escaped", "/etc", ".", "..", ".hidden", "CON", "Case", "case", "é" * 32),
    *("from\N{RIGHT-TO-LEFT OVERRIDE}right", "two\N{LINE SEPARATOR}lines", "\N{ZERO WIDTH SPACE}"),
)
OPTIONS = b'{"max_deliveries": 1, "dead_letter": "no such queue"}'
REVERSED = "evil\N{RIGHT-TO-LEFT OVERRIDE}gpj"


def test_hostile_names_are_names_and_nothing_more(tmp_path: Path) -> None:
    with Server(tmp_path, "--enable", "dms", "--log-level", "debug") as server:
        before = _metrics(server)
        with SpecClient(server.address("dms")) as client:
            for name in (*NAMES, REVERSED):
                assert client.ask(spec.CREATE, spec.name(name) + OPTIONS)[1] == 0, name
                client.produce(name, b"x")
                client.nack(client.consume(name)[0])  # which has nowhere to go, and stays
            queues = client.queues()
            for name in ("a\nb", "a\0b", "\x1b[31m", "\x7f", "\x85"):
                assert client.ask(spec.CREATE, spec.name(name))[1] == 5, name
        assert queues == dict.fromkeys([*NAMES, REVERSED], 1)

        def new() -> set[str]:
            names = {series.partition("{")[0] for series in _metrics(server) - before}
            return names - {"brokers_loop_stretch_seconds_max"}  # whose label says what was slowest

        until(lambda: "brokers_net_closed_total" in new())  # it has seen that the client has gone
        assert new() == {"brokers_net_closed_total", "brokers_dms_requests_refused_total"}, "none for a queue"
        said = server.said
        server.kill()
        server.start()
        with SpecClient(server.address("dms")) as client:
            assert client.queues() == queues
        assert server.stop() == 0
    assert {path.name for path in tmp_path.iterdir()} == {"data"}
    files = [path.name for path in (server.data / "dms").iterdir()]
    assert len({name.lower() for name in files}) == len(files) == 2 * len(queues)
    assert all(name.isascii() and not name.startswith(".") for name in files)
    assert "evil\\u202egpj" in said
    assert not [char for char in said if unicodedata.category(char) in ("Cc", "Cf", "Zl") and char != "\n"]


def _metrics(server: Server) -> set[str]:
    """The names and labels of all series, as a scraper reads them."""
    text = control.request(server.data, "GET", "/metrics")
    families = text_string_to_metric_families(text)
    return {f"{sample.name}{sample.labels}" for family in families for sample in family.samples}
