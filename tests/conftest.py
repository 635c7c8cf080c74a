"""Fixtures that any test may ask for, and which worker runs what."""

import pytest
from hypothesis import settings
from xdist.scheduler import LoadScopeScheduling

pytest_plugins = ["tests.support.server"]

settings.register_profile("unhurried", deadline=None)  # a busy machine is no failure
settings.load_profile("unhurried")


class OneSparkSession(LoadScopeScheduling):
    """Tests go to whichever worker is free, but those of the pipeline all to one: they share a session."""

    def _split_scope(self, nodeid: str) -> str:
        return "pipeline" if nodeid.startswith("tests/pipeline/") else nodeid


def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> LoadScopeScheduling:
    return OneSparkSession(config, log)
