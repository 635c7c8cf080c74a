"""The tables that installed protocols have, found by entry point."""

from collections.abc import Sequence
from typing import ClassVar

import attrs

from brokers import plugins
from brokers.errors import ExitCode
from brokers.pipeline.jobs.where import SERVED, Where
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


def logs_of(found: Offered, *, served: bool) -> dict[str, str]:
    """Return the source's options for the logs of a table. Raises ConfigError."""
    table = found.table
    if not served:
        return {"subscribepattern": table.logs, "namespace": table.namespace}
    if table.namespace != SERVED:
        text = f"only the logs of {SERVED} are served; {found.protocol}.{table.name} needs a path"
        raise ConfigError("servers", text)
    return {"subscribepattern": table.logs}


def offered(name: str | None = None, protocol: str | None = None) -> Sequence[Offered]:
    """Return the tables of that name and protocol; None: of any. Raises NoTable, which lists all tables."""
    every = [Offered(plugin.name, table) for plugin in plugins.load_all()[0] for table in tables_of(plugin)]
    found = [each for each in every if name in (None, each.table.name) and protocol in (None, each.protocol)]
    if not found:
        asked = " ".join(filter(None, [protocol, name]))
        there = ", ".join(f"{each.protocol} {each.table.name}" for each in every)
        raise NoTable(f"no protocol has a table {asked}; there are: {there or 'none'}")
    return found


def offered_if_any(name: str | None = None, protocol: str | None = None) -> Sequence[Offered]:
    """The same as `offered`, but empty instead of an error where there is none."""
    try:
        return offered(name, protocol)
    except NoTable:
        return ()


def with_column(column: str, protocol: str | None = None) -> Sequence[Offered]:
    """Return the tables whose decoded rows have a column."""
    return [each for each in offered_if_any(None, protocol) if column in each.table.schema.names]


def present(chosen: Sequence[Offered], where: Where) -> Sequence[Offered]:
    """Return the tables whose namespace a folder has. Returns at least one, for its columns."""
    if where.servers is not None:
        return chosen
    spaces = {each.table.namespace for each in chosen}
    there = {space for space in spaces if any((folder / space).is_dir() for folder in where.folders)}
    return [each for each in chosen if each.table.namespace in there] or chosen[:1]


def only_served(chosen: Sequence[Offered], where: Where) -> Sequence[Offered]:
    """Return the tables that can be read there: a server gives only topics. Raises NoTable if none can."""
    if where.servers is None:
        return chosen
    found = [each for each in chosen if each.table.namespace == SERVED]
    if not found:
        tables = ", ".join(f"{each.protocol} {each.table.name}" for each in chosen)
        of_topics = [each for each in offered() if each.table.namespace == SERVED]
        there = ", ".join(f"{each.protocol} {each.table.name}" for each in of_topics)
        raise NoTable(
            f"a server does not give what {tables} is made of: read the broker's data folder. "
            f"With --servers there are: {there}"
        )
    return found
