"""The format of tables: options that are not its own to take."""

import pytest

from brokers.pipeline.jobs.table_source import TableDataSource
from shared.errors import ConfigError


@pytest.mark.parametrize(
    ("option", "why"),
    [
        ({"namespace": "dms"}, "which logs"),
        ({"Subscribe": "x"}, "which logs"),
        ({"maxValueBytes": "7"}, "whole"),
        ({"table": "events"}, "say which"),
    ],
)
def test_an_option_that_is_the_tables_business_is_refused_by_its_name(
    option: dict[str, str], why: str
) -> None:
    with pytest.raises(ConfigError, match=why) as refused:
        TableDataSource({"table": "dms.events", "path": "data", **option})
    assert refused.value.key in {key.lower() for key in option}
