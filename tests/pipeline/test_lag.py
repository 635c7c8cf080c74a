"""The lag of streams for Prometheus, and the notebook, which has a stream of its own."""

import json
import urllib.request
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from brokers.pipeline import lag
from brokers.pipeline.lag import StreamLag
from tests.pipeline.archive.model import Spark, archiver
from tests.support.folders import fill

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NOTEBOOK = Path(lag.__file__).with_name("example.ipynb")
TIME = "2026-11-21T10:00:00.000Z"


def progress(rows: int = 5, **behind: int) -> Any:
    offset = json.dumps({"behind_bytes": {"/data": behind}})
    sources = [SimpleNamespace(latestOffset=offset), SimpleNamespace(latestOffset='{"0": 1}')]
    found = SimpleNamespace(
        id="7", name="copy", timestamp=TIME, batchDuration=1500, numInputRows=rows, sources=sources
    )
    return SimpleNamespace(progress=found)


def test_a_query_is_told_of_while_it_runs() -> None:
    told = StreamLag()

    def value(name: str, **labels: str) -> float | None:
        return told.registry.get_sample_value(f"brokers_stream_{name}", {"query": "copy", **labels})

    told.onQueryStarted(SimpleNamespace(id="7", name="copy", timestamp=TIME))  # type: ignore[arg-type]
    assert value("failures_total") == 0
    told.onQueryProgress(progress(orders=700, bills=3))
    orders = {"source": "/data", "topic": "orders"}
    assert value("behind_bytes", **orders) == 700
    assert value("batch_seconds") == 1.5
    assert value("told_timestamp_seconds") == 1795255200
    told.onQueryProgress(progress(orders=100))
    assert value("rows_total") == 10
    assert value("behind_bytes", **orders) == 100
    assert value("behind_bytes", source="/data", topic="bills") is None
    told.onQueryIdle(SimpleNamespace(id="7", timestamp=TIME))  # type: ignore[arg-type]
    assert value("behind_bytes", **orders) == 0
    told.onQueryTerminated(SimpleNamespace(id="7", exception="no space"))  # type: ignore[arg-type]
    assert value("behind_bytes", **orders) is None
    assert value("batch_seconds") is None
    assert value("failures_total") == 1


@pytest.mark.usefixtures("others")
def test_the_notebook_runs_from_its_first_cell_to_its_last(
    spark: "SparkSession",
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    values = [
        b'{"item": "pen", "price": 1.5}',
        b'{"item": "lamp", "price": 20}',
        b'{"item": "pen", "price": 2}',
    ]
    fill(tmp_path / "data", {("logmq", "orders"): values})
    with archiver(Spark(), tmp_path / "archive", tmp_path / "data") as job:
        list(job.once())
    monkeypatch.setenv("BROKERS_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("BROKERS_ARCHIVE", str(tmp_path / "archive"))
    monkeypatch.setattr("tempfile.mkdtemp", lambda *_, **__: str(tmp_path))
    names: dict[str, Any] = {}
    for cell in json.loads(NOTEBOOK.read_text())["cells"]:
        assert not cell.get("outputs")
        if cell["cell_type"] == "code":
            exec("".join(cell["source"]), names)  # noqa: S102 - it is ours
    assert names["copied"] == 3
    assert [tuple(row) for row in names["by_item"].collect()] == [("lamp", 20.0), ("pen", 3.5)]
    assert names["archived"].count() == 3
    assert "records copied" in capsys.readouterr().out


def test_prometheus_is_answered() -> None:
    class Session:
        """A session whose queries are none."""

        streams = SimpleNamespace(addListener=lambda _: None, removeListener=lambda _: None)

    server = lag.serve(Session(), port=0)  # type: ignore[arg-type]
    server.lag.onQueryProgress(progress(orders=9))
    with urllib.request.urlopen(f"http://127.0.0.1:{server.port}/metrics") as answer:
        assert b'topic="orders"} 9.0' in answer.read()
    server.close()
