"""The reference pages are what the code says today."""

import pytest

from tests.support.reference import FOLDER, pages
from tests.support.server import Server


@pytest.mark.parametrize("name", ["settings.md", "commands.md", "metrics.md", "api.md"])
def test_a_reference_page_is_current(name: str, shared_server: Server) -> None:
    assert (FOLDER / name).read_text() == pages(shared_server)[name], "`make reference` makes it anew"
