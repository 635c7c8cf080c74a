"""The package as other projects have it: installed by pip into an environment of its own."""

import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
import venv
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[2]
PACKAGES = ("brokers", "dmp", "dms", "kqmsgq", "logmq", "pubsub", "shared")
CLIENTS = "import dmp.client, dms.client, kqmsgq.client, logmq.client, pubsub.client"


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
    for name in sorted(closure("brokers") - {"brokers"}):  # as a registry would bring them
        for file in importlib.metadata.files(name) or ():
            if ".." not in file.parts:
                (site / file).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(file.locate(), site / file)
    # pip checks that what the wheel asks for is there; no registry is asked. To bring the new environment a
    # pip of its own would take longer than all else here.
    pip = sys.executable, "-m", "pip", "--disable-pip-version-check"
    done = subprocess.run(
        [*pip, "--python", folder / "bin" / "python", "install", "--no-index", "--quiet", wheel],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return folder / "bin"


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


def run(*words: str | Path, folder: Path) -> subprocess.CompletedProcess[str]:
    environ = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    return subprocess.run(
        words, cwd=folder, env=environ, capture_output=True, text=True, check=False, timeout=60
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


def test_another_package_named_shared_is_named_as_the_cause(fresh: Path, tmp_path: Path) -> None:
    (tmp_path / "shared.py").write_text("")
    for name in ("dmp", "dms", "kqmsgq", "logmq", "pubsub"):
        done = run(fresh / "python", "-c", f"import {name}.client", folder=tmp_path)
        assert f"ImportError: {name} needs the package shared of brokers; found another" in done.stderr
        assert str(tmp_path / "shared.py") in done.stderr


def test_type_checkers_read_every_package(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    assert {f"{package}/py.typed" for package in PACKAGES} <= set(names)
    assert {name.partition("/")[0] for name in names if ".dist-info" not in name} == set(PACKAGES)


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
