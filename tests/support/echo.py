"""The throw-away sixth protocol, installed for a test as a package that no file of the project knows."""

import os
import shutil
from pathlib import Path

SOURCE = Path(__file__).parent / "sixth_protocol" / "echo_protocol"


def install_echo(folder: Path) -> dict[str, str]:
    """Install the package `echo-protocol` into `folder`; the environment in which a process has it.

    What pip writes for a wheel, by hand: the package and its metadata with the entry point, so that no
    network and no build is needed.
    """
    shutil.copytree(SOURCE, folder / "echo_protocol", ignore=shutil.ignore_patterns("__pycache__"))
    info = folder / "echo_protocol-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: echo-protocol\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[brokers.protocols]\necho = echo_protocol.plugin:plugin\n")
    path = os.pathsep.join(filter(None, [str(folder), os.environ.get("PYTHONPATH")]))
    return {"PYTHONPATH": path, "BROKERS_ECHO_PORT": "0"}
