"""A cluster's processes, as far as it goes without Spark: what they refuse to become."""

import re
from functools import partial

import pytest

from brokers.errors import ExitCode, Refusal
from brokers.pipeline import cluster
from shared.errors import UsageError


def test_a_mistake_is_told_in_a_line_before_spark_is_there_to_say_it(monkeypatch: pytest.MonkeyPatch) -> None:
    became: list[str] = []
    monkeypatch.setattr(cluster, "become", lambda name, arguments: became.append(name))
    with pytest.raises(UsageError, match=r"URL: not spark://host:port: '10\.0\.0\.1:7077'"):
        cluster.worker("10.0.0.1:7077")
    for memory in ("x", "0g", "4", "4 g"):
        with pytest.raises(UsageError, match="--memory"):
            cluster.worker("spark://10.0.0.1:7077", memory=memory)
    with pytest.raises(UsageError, match="--cores"):
        cluster.worker("spark://10.0.0.1:7077", cores=0)
    assert became == []
    cluster.worker("spark://[::1]:7077,there:7077", cores=1, memory="600m")
    cluster.worker("spark://there:7077", memory="4G")
    assert became == ["worker.Worker"] * 2


@pytest.mark.parametrize("host", ["no-such-host.invalid", "a..b", "192.0.2.1"])
def test_a_host_that_nothing_can_listen_on_is_a_setting_that_cannot_be_used(
    host: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster, "become", lambda name, arguments: None)
    for start in (cluster.master, partial(cluster.worker, "spark://there:7077")):
        with pytest.raises(Refusal, match=rf"^--host: cannot listen on {re.escape(host)}: ") as refused:
            start(host=host)
        assert refused.value.code is ExitCode.CONFIGURATION


@pytest.mark.parametrize(
    ("host", "given"),
    [("127.0.0.1", "127.0.0.1"), ("localhost", "localhost"), ("::1", "[::1]"), ("[::1]", "[::1]")],
)
def test_a_host_is_given_as_spark_wants_it(host: str, given: str, monkeypatch: pytest.MonkeyPatch) -> None:
    became: list[str] = []
    monkeypatch.setattr(cluster, "become", lambda name, arguments: became.extend(arguments))
    monkeypatch.setattr(cluster, "_fault", lambda host: None)  # not every machine has IPv6
    cluster.master(host=host)
    assert became[:2] == ["--host", given]
