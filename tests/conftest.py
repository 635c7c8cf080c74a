"""Fixtures that any test may ask for."""

from hypothesis import settings

pytest_plugins = ["tests.support.server"]

settings.register_profile("unhurried", deadline=None)  # a busy machine is no failure
settings.load_profile("unhurried")
