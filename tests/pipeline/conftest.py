"""One Spark session for all of pytest, and one worker for it: starting one takes longer than most tests."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.pipeline.folders import ORDERS, RECORDS
from tests.pipeline.passed import passed
from tests.pipeline.served import where
from tests.support.folders import fill
from tests.support.process_group import QUICK_JVM
from tests.support.server import Server

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["passed"]  # a fixture, found by its name here

CONFIG = {
    "spark.driver.memory": "1g",
    "spark.driver.extraJavaOptions": QUICK_JVM,
    # What runs over some hundred rows is not worth being compiled: a third of the time of most tests.
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.shuffle.partitions": "2",
    "spark.default.parallelism": "2",
    "spark.sql.streaming.metricsEnabled": "false",
    "spark.ui.enabled": "false",
}


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator["SparkSession"]:
    """As a user gets it, but small. Streams must be stopped by the test that starts them."""
    from brokers.pipeline import session

    folders = {
        "spark.local.dir": str(tmp_path_factory.mktemp("spark-local")),
        "spark.sql.warehouse.dir": str(tmp_path_factory.mktemp("spark-warehouse")),
    }
    python = tmp_path_factory.mktemp("python") / "python"
    python.write_text(f"#!{sys.executable}\n" + Path(__file__).with_name("preloaded.py").read_text())
    python.chmod(0o755)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYSPARK_PYTHON", str(python))
        # A task that fails runs once more, as it would on a cluster.
        found = session("local[2,2]", name="tests", config=CONFIG | folders)
    found.sparkContext.setLogLevel("ERROR")
    yield found
    found.stop()


_VIEWED: dict[Path, list[str]] = {}
"""The folder whose tables the session has, and their names."""


def viewed(spark: "SparkSession", folder: Path) -> list[str]:
    """Make a folder's tables, unless they are those that the session has: that takes seconds. Their names."""
    from brokers.pipeline import views

    if folder not in _VIEWED:
        made = views(spark, folder)
        _VIEWED.clear()
        _VIEWED[folder] = made
    return _VIEWED[folder]


@pytest.fixture
def asked(spark: "SparkSession", passed: Path) -> Callable[[str], list[dict[str, Any]]]:
    """`asked(query)`: its rows, over the tables of `passed`."""
    viewed(spark, passed)
    return lambda query: spark.sql(query).toArrow().to_pylist()


@pytest.fixture
def others() -> Iterator[None]:
    """The test makes other tables."""
    yield
    _VIEWED.clear()


@pytest.fixture
def configure(spark: "SparkSession") -> Iterator[Callable[[str, str], None]]:
    """`configure(key, value)`: a setting of the session, until the test ends."""
    before: dict[str, str | None] = {}

    def configure(key: str, value: str) -> None:
        before.setdefault(key, spark.conf.get(key, None))
        spark.conf.set(key, value)

    yield configure
    for key, value in before.items():
        if value is None:
            spark.conf.unset(key)
        else:
            spark.conf.set(key, value)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A data folder with the topic `orders`: RECORDS, in several index entries."""
    data = tmp_path / "data"
    fill(data, {ORDERS: RECORDS})
    return data


@pytest.fixture(scope="session")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same, for tests that leave it as it is."""
    data = tmp_path_factory.mktemp("plain") / "data"
    fill(data, {ORDERS: RECORDS})
    return data


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Server(tmp_path_factory.mktemp("server"), "--enable", "logmq") as server:
        yield server


@pytest.fixture(scope="module", params=["folder", "servers"])
def place(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[[Path], dict[str, str]]]:
    """`place(folder)`: options that say where its logs are; it is read as it is, or a server runs on it."""
    servers: dict[Path, Server] = {}

    def place(folder: Path) -> dict[str, str]:
        if request.param == "folder":
            return {"path": str(folder)}
        if folder not in servers:
            keeper = tmp_path_factory.mktemp("server")
            servers[folder] = Server(keeper, "--enable", "logmq", data=folder).start()
        return {"servers": where(servers[folder])}

    yield place
    for server in servers.values():
        server.kill()


@pytest.fixture
def read(spark: "SparkSession") -> Callable[..., "DataFrame"]:
    """`read(folder, subscribe="orders")`: what the source makes of a data folder."""

    def read(folder: Path, **options: str) -> "DataFrame":
        return spark.read.format("logmq").options(**options).load(str(folder))

    return read


@pytest.fixture(scope="session")
def s3_endpoint() -> Iterator[str]:
    """The URL of a server of S3, of moto's, in this process."""
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


@pytest.fixture
def s3(s3_endpoint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A new bucket's URL. The environment says how it is reached."""
    import boto3

    name = tmp_path.name.replace("_", "-").lower()
    for key, value in {
        "AWS_ENDPOINT_URL": s3_endpoint,
        "AWS_REGION": "us-east-1",
        "AWS_ACCESS_KEY_ID": "key",
        "AWS_SECRET_ACCESS_KEY": "secret",
    }.items():
        monkeypatch.setenv(key, value)
    boto3.client("s3", region_name="us-east-1", endpoint_url=s3_endpoint).create_bucket(Bucket=name)
    return f"s3://{name}"
