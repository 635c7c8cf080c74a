"""Bridges that are made by the API: in a file of the data folder, beside those of the settings.

A start and a reload read both. A bridge of the settings is changed there alone.
"""

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from brokers.bridges.settings import SECTION, BridgeSettings, Ends, faults_together, parse_bridges
from brokers.errors import Problem
from shared.local_path import read_file

NAME = "bridges.json"


def read_own(folder: Path) -> Sequence[Mapping[str, Any]]:
    """The tables in a data folder's file. Raises OSError and ValueError."""
    try:
        tables = json.loads(read_file(folder / NAME))
    except (FileNotFoundError, NotADirectoryError):
        return []
    except PermissionError:
        if os.access(folder, os.X_OK):
            raise
        return []  # whoever opens the folder says so
    if not isinstance(tables, list) or not all(isinstance(each, dict) for each in tables):
        raise ValueError("it is no list of objects")
    return tables


def with_own(
    bridges: Sequence[BridgeSettings], tables: Sequence[Mapping[str, Any]], ends: Ends, source: str
) -> tuple[tuple[BridgeSettings, ...], list[Problem]]:
    """The bridges of the settings and those of such tables; and what is wrong with these."""
    own, problems = parse_bridges(list(tables), ends, source)
    names = {each.name for each in bridges}
    problems += [
        Problem(f"{SECTION}.{each.name}.name", "the settings have a bridge of this name", source)
        for each in own
        if each.name in names
    ]
    every = (*bridges, *own)
    return every, problems or list(faults_together(every, ends, source))
