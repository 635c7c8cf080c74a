"""The tables that installed protocols offer, found by entry point."""

from collections.abc import Sequence
from typing import ClassVar

import attrs

from brokers import plugins
from brokers.errors import ExitCode
from brokers.pipeline.source.options import NAMESPACE
from shared.errors import BrokerError, ConfigError
from shared.tables.table import LogTable, tables_of


class NoTable(BrokerError):
    """No protocol has a table of that name."""

    exit_code: ClassVar[int] = ExitCode.MISSING


@attrs.frozen
class Offered:
    """A table, and the name of its protocol."""

    protocol: str
    table: LogTable

    @property
    def name(self) -> str:
        return f"{self.protocol}.{self.table.name}"

    @property
    def is_served(self) -> bool:
        """Whether a server gives its logs. All others are in a data folder alone."""
        return self.table.namespace == NAMESPACE

    def logs(self, *, served: bool) -> dict[str, str]:
        """Return the source's options for its logs. Raises ConfigError."""
        if not served:
            return {"subscribePattern": self.table.logs, "namespace": self.table.namespace}
        if not self.is_served:
            raise ConfigError("servers", f"only LogMQ's topics are served; {self.name} needs a path")
        return {"subscribePattern": self.table.logs}


def offered() -> Sequence[Offered]:
    """Return the tables of all installed protocols."""
    return [Offered(plugin.name, table) for plugin in plugins.load_all()[0] for table in tables_of(plugin)]


def table_of(name: str) -> Offered:
    """Return the table that `dms.lives` names. Raises NoTable, which lists all tables."""
    every = {each.name: each for each in offered()}
    if name not in every:
        raise NoTable(f"no protocol has a table {name!r}; there are: {', '.join(every)}")
    return every[name]
