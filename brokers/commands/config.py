"""`brokers config ...`: settings are checked, shown and explained."""

from collections.abc import Sequence
from typing import Annotated, Any

from cyclopts import Parameter

from brokers.commands.flags import ConfigFile, host_app
from shared.cli.options import Json, flag

app, command = host_app(
    "config",
    "Check settings, show them, or say what they are for.",
    "show",
    "check brokers.toml",
    "explain net.backlog",
)


@command("check brokers.toml", "check brokers.toml --no-ports")
def check(
    config: ConfigFile = None,
    *,
    ports: Annotated[
        bool,
        Parameter(
            help="Try the addresses and ports; not where other servers run.",
            negative="--no-ports",
            show_default=False,
        ),
    ] = True,
) -> str:
    """Read the settings as serving would, and say all that is wrong with them (exit 78).

    Certificates, the data folder, addresses and ports are tried; ports that the
    server of the data folder has itself are free to it. What serve.definitions
    names is made in an empty folder, which is removed.
    """
    from brokers.settings.checking import checked

    settings = checked(config, ports=ports)
    return f"{len(settings.shown(human=True))} settings are in order"


@command("show brokers.toml", "show --json | jq 'select(.source != \"default\")'")
def show(config: ConfigFile = None, *, json: Json = False) -> Sequence[Any]:
    """List the settings: each with its value, and where that comes from."""
    from brokers.settings.config import as_served

    return as_served(config).shown(human=not json)


@command("explain", "explain net dms.queues", "explain serve dms --toml > brokers.toml")
def explain(
    *settings: Annotated[str, Parameter(help="A setting or a section; without any, all.")],
    toml: Annotated[bool, flag("As a settings file to begin with: all is there, in comments.")] = False,
    json: Json = False,
) -> Any:
    """Say what settings are for, with their defaults and what they take."""
    from brokers.plugins import load_working
    from brokers.settings.config import OWN_SECTIONS
    from brokers.settings.explaining import as_toml, chosen, explained

    protocols = {plugin.name: plugin.settings for plugin in load_working()[0]}
    rows = chosen(explained({**OWN_SECTIONS, **protocols}), settings)
    if toml:
        return as_toml(rows)
    return rows if json else "\n\n".join(map(str, rows))
