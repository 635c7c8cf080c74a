"""What the storage's tests share."""

import logging

import pytest
import structlog

from shared.storage import table


@pytest.fixture
def recoveries(monkeypatch: pytest.MonkeyPatch) -> None:
    """Thousands of stores are recovered: they log nothing, and their tables tidy themselves up early."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    monkeypatch.setattr(table, "SLACK_BYTES", 200)
