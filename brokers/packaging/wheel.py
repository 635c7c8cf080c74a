"""Hatchling's hook for the wheel: every folder of the project goes inside `brokers`.

A checkout has `dms`, `shared` and the others side by side. In an environment these names belong to whoever
comes first: PyPubSub has a package `pubsub`, and many projects have a `shared`. So pyproject.toml puts `dms`
at `brokers/dms` in a wheel (`sources`), and this hook writes copies in which the names match.
`from dms.wire import Kind` becomes `from brokers.dms.wire import Kind`, and so do the entry points. Only
import statements change, found by Python's own parser; no line moves. An editable install imports the folders
of the checkout as they are, under both names (brokers/checkout.py).

Beside the package a wheel has the units for systemd, and manual pages (`man brokers-dms`), which are made of
the reference page of the commands.
"""

import ast
import re
from collections.abc import Iterator, Mapping
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
        reference = Path(self.root, "brokers", "docs", "reference", "commands.md").read_text()
        for name, text in manual(reference, self.metadata.version).items():
            page = Path(self._copies.name, name)
            page.write_text(text)
            build_data["shared_data"][str(page)] = f"share/man/man1/{name}"
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


def manual(reference: str, version: str) -> Mapping[str, str]:
    """Return manual pages by their files' names: one for the program, and one for each command.

    `reference`: the page that `make reference` makes of the commands.
    """
    head, *commands = re.split(r"^## (?=brokers )", reference, flags=re.MULTILINE)
    synopsis, _, rest = head.partition("## Table of Contents")
    made = ["brokers\n" + synopsis.partition("`make reference`.\n")[2] + rest.partition("**Commands**:\n")[2]]
    return {
        f"{name.replace(' ', '-')}.1": "\n".join(_roff(name, text, version)) + "\n"
        for name, _, text in (page.partition("\n") for page in made + commands)
    }


def _roff(name: str, text: str, version: str) -> Iterator[str]:
    """The lines of a manual page. `text`: headings, paragraphs, lists and blocks of code, as Markdown."""
    yield f'.TH "{name.replace(" ", "-").upper()}" 1 "" "brokers {version}" "brokers"'
    about = next(
        line for line in text.splitlines() if re.match(r"\w", line) and not line.startswith("brokers ")
    )
    yield from (".SH NAME", _escaped(f"{name.replace(' ', '-')} - {about.rstrip('.')}"), ".SH DESCRIPTION")
    for line in text.splitlines():
        if line.startswith("```"):
            yield ".EE" if line == "```" else ".EX"
        elif heading := re.match(r"#+ (.*)", line):
            yield f'.SH "{_escaped(heading[1])}"'
        elif item := re.match(r"\* (?:`(.*?)`|\[`(.*?)`\]\(.*?\)): (.*)", line):
            yield from (".TP", f"\\fB{_escaped(item[1] or item[2])}\\fR", _escaped(item[3]))
        elif title := re.fullmatch(r"\*\*(.*)\*\*:", line):
            yield f'.SS "{_escaped(title[1])}"'
        else:
            yield _escaped(line) if line else ".PP"


def _escaped(text: str) -> str:
    """Text for roff, without Markdown's marks: no backslash, hyphen or first dot means anything there."""
    plain = re.sub(r"\*+(\[.*?\])\*+", r"\1", text).replace("`", "")
    plain = plain.replace("\\", "\\e").replace("-", "\\-")
    return "\\&" + plain if plain.startswith((".", "'")) else plain
