"""A cluster's processes, as far as it goes without Spark: what they refuse to become."""

import re
from functools import partial
from pathlib import Path

import pytest

from brokers.errors import ExitCode, Failure
from brokers.pipeline import cluster, secret
from shared.errors import UsageError

Became = list[tuple[list[str], dict[str, str]]]


@pytest.fixture(autouse=True)
def usual(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Where the secret of who names no file is: there is none yet."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    return secret.usual()


@pytest.fixture
def became(monkeypatch: pytest.MonkeyPatch) -> Became:
    """What a command would have become: its arguments, and what it adds to the environment."""
    found: Became = []
    monkeypatch.setattr(cluster, "become", lambda name, arguments, more: found.append((arguments, more)))
    monkeypatch.setattr(cluster, "listen_fault", lambda host: None)  # no machine has every address
    return found


def test_a_mistake_is_told_in_a_line_before_spark_is_there_to_say_it(monkeypatch: pytest.MonkeyPatch) -> None:
    became: list[str] = []
    monkeypatch.setattr(cluster, "become", lambda name, *_: became.append(name))
    with pytest.raises(UsageError, match=r"URL: not spark://host:port: '10\.0\.0\.1:7077'"):
        cluster.worker("10.0.0.1:7077")
    for memory in ("x", "0g", "4", "4 g"):
        with pytest.raises(UsageError, match="--memory"):
            cluster.worker("spark://10.0.0.1:7077", memory=memory)
    with pytest.raises(UsageError, match="--cores"):
        cluster.worker("spark://10.0.0.1:7077", cores=0)
    assert became == []
    cluster.worker("spark://127.0.0.1:7077,there:7077", cores=1, memory="600m", insecure=True)
    cluster.worker("spark://there:7077", memory="4G", host="127.0.0.1", insecure=True)
    assert became == ["worker.Worker"] * 2


@pytest.mark.parametrize("host", ["no-such-host.invalid", "a..b", "192.0.2.1"])
def test_a_host_that_nothing_can_listen_on_is_a_setting_that_cannot_be_used(
    host: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster, "become", lambda *_: None)
    for start in (cluster.master, partial(cluster.worker, "spark://there:7077")):
        with pytest.raises(Failure, match=rf"^--host: cannot listen on {re.escape(host)}: ") as refused:
            start(host=host)
        assert refused.value.code is ExitCode.CONFIGURATION


@pytest.mark.parametrize(
    ("host", "given"),
    [("127.0.0.1", "127.0.0.1"), ("localhost", "localhost"), ("::1", "[::1]"), ("[::1]", "[::1]")],
)
def test_a_host_is_given_as_spark_wants_it(host: str, given: str, became: Became) -> None:
    cluster.master(host=host)
    ((arguments, _),) = became
    assert arguments[:2] == ["--host", given]


def test_nothing_listens_beyond_this_machine_unless_told_and_who_comes_must_know_a_secret(
    became: Became, usual: Path
) -> None:
    with pytest.raises(Failure, match="copy the master's there"):
        cluster.worker("spark://127.0.0.1:7077")
    cluster.master()
    cluster.worker("spark://127.0.0.1:7077")
    for arguments, more in became:
        assert arguments[:2] == ["--host", "127.0.0.1"]
        assert more == {"SPARK_LOCAL_IP": "127.0.0.1", secret.VARIABLE: usual.read_text().strip()}, (
            "of its page"
        )
    with secret.lent(settings := {}, environ := {"XDG_CONFIG_HOME": str(usual.parents[1])}):
        assert settings == {"spark.authenticate": "true"}
        assert "--properties-file" in environ["PYSPARK_SUBMIT_ARGS"]
    with secret.lent(settings := {"spark.authenticate": "false"}, environ):
        assert settings == {"spark.authenticate": "false"}


def test_a_secret_may_be_in_another_file_and_everybody_is_let_in_only_on_purpose(
    became: Became, tmp_path: Path
) -> None:
    file = tmp_path / "secret"
    worker = partial(cluster.worker, "spark://10.0.0.1:7077")
    cluster.master(host="10.0.0.1", insecure=True)
    cluster.master(host="10.0.0.1", secret_file=file)
    worker(host="10.0.0.2", secret_file=file)
    (_, open_), (arguments, made), (_, given) = became
    known = file.read_text().strip()
    assert secret.VARIABLE not in open_
    assert made[secret.VARIABLE] == given[secret.VARIABLE] == known
    assert known not in str(arguments)
    environ = cluster.environ({secret.VARIABLE: "another", "SPARK_DAEMON_JAVA_OPTS": "-Dx=y"}, tmp_path, made)
    assert environ[secret.VARIABLE] == known
    assert environ["SPARK_DAEMON_JAVA_OPTS"] == "-Dx=y -Dspark.authenticate=true"
    assert environ["SPARK_LOCAL_IP"] == "10.0.0.1"


def test_a_secret_is_made_once_for_its_owner_alone_and_one_that_others_may_read_is_none(
    tmp_path: Path,
) -> None:
    file = tmp_path / "secret"
    made = secret.read_or_make(file)
    assert (len(made) >= 32, file.stat().st_mode & 0o777) == (True, 0o600)
    assert secret.read_or_make(file) == secret.read(file) == made
    file.chmod(0o640)
    with pytest.raises(Failure, match="chmod 600") as refused:
        secret.read(file)
    assert made not in str(refused.value)
    file.chmod(0o600)
    for text in ("short", "two words of which each is long enough"):
        file.write_text(text)
        with pytest.raises(Failure, match="not one word of 16") as refused:
            secret.read(file)
        assert text not in str(refused.value)
    with pytest.raises(Failure, match="No such file"):
        secret.read(tmp_path / "none")


def test_a_driver_is_given_the_secret_in_a_file_that_is_gone_when_it_has_started(tmp_path: Path) -> None:
    made = secret.read_or_make(tmp_path / "secret")
    settings = {secret.SETTING: str(tmp_path / "secret"), "spark.cores.max": "1"}
    environ = {"PYSPARK_SUBMIT_ARGS": "--verbose pyspark-shell"}
    with secret.lent(settings, environ):
        assert settings == {"spark.authenticate": "true", "spark.cores.max": "1"}
        said = environ["PYSPARK_SUBMIT_ARGS"]
        assert said.endswith(" --verbose pyspark-shell")
        assert made not in said
        (name,) = re.findall(r"--properties-file (\S+)", said)
        assert Path(name).read_text() == f"spark.authenticate.secret {made}\n"
        assert Path(name).stat().st_mode & 0o777 == 0o600
    assert not Path(name).exists()
    assert environ == {"PYSPARK_SUBMIT_ARGS": "--verbose pyspark-shell"}
    with secret.lent({}, environ | {"XDG_CONFIG_HOME": str(tmp_path / "none")}):
        assert environ == {"PYSPARK_SUBMIT_ARGS": "--verbose pyspark-shell"}
