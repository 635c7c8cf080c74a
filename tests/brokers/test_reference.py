"""The reference pages are what the code says today."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.support.reference import FOLDER, pages, serving


@pytest.fixture(scope="module")
def current(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, str]:
    """The pages of a server that has done next to nothing: counters by reason begin when there is one."""
    folder: Path = tmp_path_factory.mktemp("reference")
    with serving(folder) as server:
        return pages(server)


@pytest.mark.parametrize("name", ["settings.md", "commands.md", "metrics.md", "api.md"])
def test_a_reference_page_is_current(name: str, current: Mapping[str, str]) -> None:
    assert (FOLDER / name).read_text() == current[name], "`make reference` makes it anew"
