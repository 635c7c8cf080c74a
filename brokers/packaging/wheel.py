"""Hatchling's hook for the wheel: every folder of the project goes inside `brokers`.

A checkout has `dms`, `shared` and the others side by side. In an environment these names belong to whoever
comes first: PyPubSub has a package `pubsub`, and many projects have a `shared`. So pyproject.toml puts `dms`
at `brokers/dms` in a wheel (`sources`), and this hook writes copies in which the names match.
`from dms.wire import Kind` becomes `from brokers.dms.wire import Kind`, and so do the entry points. Only
import statements change, found by Python's own parser; no line moves. An editable install imports the folders
of the checkout as they are, under both names (brokers/checkout.py).
"""

import ast
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

GROUP = "brokers.protocols"


class WheelHook(BuildHookInterface[Any]):
    """Hatchling calls `initialize` before a build, and `finalize` after it."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if version != "standard":
            return
        self._copies = TemporaryDirectory()
        names = frozenset(self.build_config.target_config["sources"])
        for file in self.build_config.builder.recurse_selected_project_files():
            if file.path.endswith(".py"):
                copy = Path(self._copies.name, file.distribution_path)
                copy.parent.mkdir(parents=True, exist_ok=True)
                copy.write_bytes(inside(Path(file.path).read_bytes(), names))
                build_data["force_include"][str(copy)] = file.distribution_path
        points = self.metadata.core.entry_points[GROUP]
        points.update({name: f"brokers.{module}" for name, module in points.items()})

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        if version == "standard":
            self._copies.cleanup()


def inside(source: bytes, names: frozenset[str]) -> bytes:
    """Return the source, in which an import of one of the packages `names` is one of `brokers.<name>`.

    Raises ValueError for `import dms.wire`: what stands below would use the name `dms`, which that binds.
    """
    lines = source.splitlines(keepends=True)
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and not node.level and _top(node.module or "") in names:
            old, new = b"from ", b"from brokers."
        elif isinstance(node, ast.Import) and names & {_top(alias.name) for alias in node.names}:
            if len(node.names) > 1 or node.names[0].name not in names:
                raise ValueError(f"line {node.lineno}: write `from ... import ...`")
            old, new = b"import ", b"from brokers import "
        else:
            continue
        line, at = lines[node.lineno - 1], node.col_offset
        lines[node.lineno - 1] = line[:at] + line[at:].replace(old, new, 1)
    return b"".join(lines)


def _top(module: str) -> str:
    return module.partition(".")[0]
