"""The package as other projects have it: installed by pip into an environment of its own."""

import importlib.metadata
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
import venv
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import brokers.dms.wire
import pytest
from packaging.requirements import Requirement

import dms.wire
from brokers import checkout
from brokers.packaging.wheel import inside
from tests.support.echo import install_echo
from tests.support.server import Server, speak

ROOT = Path(__file__).parents[2]
INSIDE = ("dmp", "dms", "kqmsgq", "logmq", "pubsub", "shared")
PYPUBSUB = Path(sys.prefix) / "beside"
"""PyPubSub, which has a package with the name of a folder of this project; the Makefile installs it there."""
USE_OF_PYPUBSUB = """
from pubsub import pub
heard = []
listener = lambda number: heard.append(number)
pub.subscribe(listener, "numbers")
pub.sendMessage("numbers", number=7)
import shared
print(heard, shared.mine)
"""
CLIENTS = "\n".join(
    [
        "import brokers.aio, brokers.sync",
        *(f"import brokers.{name}.client" for name in ("dmp", "dms", "kqmsgq", "logmq", "pubsub")),
        "brokers.connect('dms://127.0.0.1:1'), brokers.connect('logmq://127.0.0.1:1')",
    ]
)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)],
        cwd=ROOT,
        check=True,
        capture_output=True,
    )
    (made,) = folder.glob("*.whl")
    return made


@pytest.fixture(scope="module")
def fresh(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment's `bin` where the wheel was installed, beside what it asks for without an extra."""
    folder = tmp_path_factory.mktemp("fresh")
    venv.create(folder)
    (site,) = folder.glob("lib/python*/site-packages")
    shutil.copytree(PYPUBSUB, site, dirs_exist_ok=True)
    for name in sorted(closure("brokers") - {"brokers"}):  # as a registry would bring them
        for file in importlib.metadata.files(name) or ():
            if ".." not in file.parts:
                (site / file).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(file.locate(), site / file)  # as old, or it would be compiled again
    # pip checks that what the wheel asks for is there; no registry is asked. To bring the new environment a
    # pip of its own would take longer than all else here.
    pip = sys.executable, "-m", "pip", "--disable-pip-version-check"
    done = subprocess.run(
        [
            *pip,
            "--python",
            folder / "bin" / "python",
            "install",
            "--no-index",
            "--no-compile",
            "--quiet",
            wheel,
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return folder / "bin"


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, str]:
    """Variables with which this Python has the wheel, a sixth protocol, and all that both need.

    Modules with the names of the checkout's folders come first on its path, and cannot be imported.
    """
    site = tmp_path_factory.mktemp("site")
    zipfile.ZipFile(wheel).extractall(site)
    for name in INSIDE:
        (site / f"{name}.py").write_text("raise ImportError('a name of somebody else')")
    return {**install_echo(site), "PYTHONSAFEPATH": "1"}


def closure(name: str) -> set[str]:
    """It and all that it needs, extras aside."""
    found: set[str] = set()
    wanted = [name]
    while wanted:
        one = wanted.pop()
        if one not in found:
            found.add(one)
            wanted += needed(one)
    return found


def needed(name: str) -> Iterator[str]:
    for one in map(Requirement, importlib.metadata.requires(name) or ()):
        if one.marker is None or one.marker.evaluate({"extra": ""}):
            yield one.name


def run(
    *words: str | Path, folder: Path, environ: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    clean.update(environ or {})
    return subprocess.run(
        words,
        cwd=folder,
        env=clean,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def test_clients_need_trio_attrs_and_a_codec_and_nothing_else(fresh: Path, tmp_path: Path) -> None:
    done = run(fresh / "python", "-W", "error", "-c", CLIENTS, folder=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert not closure("brokers") & {"rich", "cyclopts", "structlog", "hypercorn", "crc32c"}


def test_the_commands_say_which_extra_they_need(fresh: Path, tmp_path: Path) -> None:
    done = run(fresh / "brokers", "--version", folder=tmp_path)
    assert done.returncode == 1
    assert done.stderr.startswith("brokers: the commands need ")
    assert done.stderr.endswith("pip install 'brokers[serve]' brings it\n")


def test_a_command_that_needs_arrow_names_its_extra() -> None:
    without = "import sys; sys.modules['pyarrow'] = None; from brokers.__main__ import main; main()"
    words = (sys.executable, "-c", without, "pipeline", "archived", "nowhere")
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 1
    assert done.stderr.endswith("pyarrow, which is not installed; pip install 'brokers[spark]' brings it\n")


def test_it_stands_beside_other_packages_with_the_names_of_its_folders(fresh: Path, tmp_path: Path) -> None:
    (tmp_path / "shared.py").write_text("mine = True")
    done = run(fresh / "python", "-W", "error", "-c", CLIENTS + USE_OF_PYPUBSUB, folder=tmp_path)
    assert (done.stdout, done.stderr) == ("[7] True\n", "")
    (site,) = fresh.parent.glob("lib/python*/site-packages")
    theirs = [file.relative_to(PYPUBSUB) for file in PYPUBSUB.rglob("*.py")]
    assert len(theirs) > 10
    assert [file for file in theirs if (site / file).read_bytes() != (PYPUBSUB / file).read_bytes()] == []


def test_the_wheel_takes_one_name_and_type_checkers_read_it(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    assert "brokers/py.typed" in names
    beside = re.compile(r"brokers-[\d.]+\.(dist-info|data)/")
    assert {name.partition("/")[0] for name in names if not beside.match(name)} == {"brokers"}
    assert len(names) == len(set(names))
    assert {f"brokers/{name}/__init__.py" for name in INSIDE} <= set(names)
    assert not {"brokers/checkout.py", "brokers/packaging/wheel.py"} & set(names)


def test_it_brings_units_and_manual_pages_into_the_environment(fresh: Path) -> None:
    folder = fresh.parent
    assert (folder / "lib" / "systemd" / "system" / "brokers.service").is_file()
    assert (folder / "lib" / "systemd" / "system" / "brokers.socket").is_file()
    assert (folder / "share" / "man" / "man1" / "brokers-dms.1").read_text().startswith(".TH ")


def test_the_wheel_is_served_and_asked_with_a_sixth_protocol(
    installed: Mapping[str, str], tmp_path: Path
) -> None:
    with Server(tmp_path, environ=installed, prefix=("env",)) as server:
        assert speak(server.address("logmq"), b"PRODUCE orders hello\n") == b"OK 0\n"
        assert speak(server.address("echo"), b"hello") == b"hello"
        brokers = sys.executable, "-m", "brokers"
        words = "dmp", "exchanges", "--json", "-D", str(server.data)
        told = run(*brokers, *words, folder=tmp_path, environ=installed).stdout
        assert "amq.topic" in [json.loads(line)["name"] for line in told.splitlines()]
        words = "logmq", "consume", "orders", "--port", str(server.address("logmq")[1])
        assert run(*brokers, *words, folder=tmp_path, environ=installed).stdout == "hello\n"
        assert server.stop() == 0


def test_what_spark_is_sent_of_the_wheel_unpickles_where_nothing_else_of_it_is(
    installed: Mapping[str, str], tmp_path: Path
) -> None:
    """A reader, pickled, and the zip file in which its class is."""
    program = """
import pickle, shutil, sys
from brokers.pipeline.session import zip_of_ours
from brokers.pipeline.source.data_source import LogmqDataSource
shutil.copy(zip_of_ours(), "ours.zip")
source = LogmqDataSource({"servers": "127.0.0.1:1", "subscribe": "orders"})
pickle.dump(source, open("source.pickle", "wb"))
"""
    done = run(sys.executable, "-c", program, folder=tmp_path, environ=installed)
    assert (done.returncode, done.stderr) == (0, "")
    assert {name.partition("/")[0] for name in zipfile.ZipFile(tmp_path / "ours.zip").namelist()} == {
        "brokers",
        "echo_protocol",
    }
    program = """
import pickle, sys
source = pickle.load(open("source.pickle", "rb"))
print(source.name(), sys.modules[type(source).__module__].__file__, "logmq" in sys.modules)
"""
    away = {**installed, "PYTHONPATH": str(tmp_path / "ours.zip")}
    done = run(sys.executable, "-c", program, folder=tmp_path, environ=away)
    where = tmp_path / "ours.zip" / "brokers" / "pipeline" / "source" / "data_source.py"
    assert (done.stdout, done.stderr) == (f"logmq {where} False\n", "")


@pytest.mark.parametrize(
    ("source", "written"),
    [
        ("from dms.wire import Kind", "from brokers.dms.wire import Kind"),
        (
            "def f():\n    from dms import (\n        a,\n    )",
            "def f():\n    from brokers.dms import (\n        a,\n    )",
        ),
        ("import shared", "from brokers import shared"),
        ("import shared as ours", "from brokers import shared as ours"),
    ],
)
def test_an_import_of_a_folder_is_one_of_what_is_inside(source: str, written: str) -> None:
    assert inside(source.encode(), frozenset(INSIDE)).decode() == written


@pytest.mark.parametrize(
    "source",
    [
        '"""\nfrom dms.wire import Kind\n"""',
        "# from dms import wire",
        "from .dms import wire",
        "from dmsx import wire",
        "from trio import dms",
        "dms = 'dms.wire'",
    ],
)
def test_what_only_looks_like_an_import_stays(source: str) -> None:
    assert inside(source.encode(), frozenset(INSIDE)).decode() == source


def test_an_import_that_binds_the_folders_own_name_ends_the_build() -> None:
    with pytest.raises(ValueError, match="line 2"):
        inside(b"import trio\nimport dms.wire", frozenset(INSIDE))


def test_a_checkout_has_the_same_modules_under_both_names() -> None:
    assert brokers.dms.wire is dms.wire
    assert dms.wire.__spec__ is not None
    assert dms.wire.__spec__.name == dms.wire.__name__ == "dms.wire"
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    places = project["tool"]["hatch"]["build"]["targets"]["wheel"]["sources"]
    assert places == {name: f"brokers/{name}" for name in (*INSIDE, *checkout.FOLDERS)}


def test_the_page_the_dashboard_and_the_alerts_are_in_the_package(wheel: Path) -> None:
    folder = ROOT / "brokers" / "page"
    wanted = {
        str(path.relative_to(ROOT)) for path in folder.rglob("*") if path.suffix in (".html", ".css", ".js")
    }
    wanted |= {"brokers/grafana.json", "brokers/alerts.yml"}
    assert len(wanted) > 5
    assert wanted <= set(zipfile.ZipFile(wheel).namelist())


def test_no_version_is_pinned_so_that_it_fits_beside_what_a_project_has() -> None:
    wanted = [Requirement(text) for text in importlib.metadata.requires("brokers") or ()]
    assert [str(one) for one in wanted if "==" in str(one.specifier)] == []


def test_what_is_locked_is_in_the_ranges_that_are_asked_for() -> None:
    lock = (ROOT / "requirements.lock").read_text()
    wanted = [Requirement(text) for text in importlib.metadata.requires("brokers") or ()]
    for one in wanted:
        if one.name != "brokers":
            versions = re.findall(rf"^{re.escape(one.name)}==(\S+)", lock, re.MULTILINE)
            assert versions, one
            assert all(one.specifier.contains(version) for version in versions), one
