"""A cluster's processes, as far as it goes without Spark: what they refuse to become."""

import pytest

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
